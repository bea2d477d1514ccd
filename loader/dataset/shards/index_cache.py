"""Open indexes and their row groups, the ones used last, bounded in bytes."""

from collections import OrderedDict

from ...storage import Store
from ...storage.shared.threads import Turns, lock
from .index import ROW_GROUP_ROWS, IndexFile, IndexPlace, IndexRows
from .shard import PageHashes

MAX_OPEN_FILES = 4096


class IndexCache:
    """The row groups used last, bounded in bytes; shared by all threads of a reader."""

    def __init__(self, store: Store, capacity_bytes: int = 256 * 2**20) -> None:
        self._store, self._capacity = store, capacity_bytes
        self._lock = lock()
        self._files: OrderedDict[str, IndexFile] = OrderedDict()
        self._groups: OrderedDict[tuple[str, int], tuple[IndexRows, int]] = OrderedDict()
        self._held_bytes = 0
        self._file_bytes = 0
        self._turns = Turns()

    def held(self, place: IndexPlace, row: int) -> IndexRows | None:
        """Return the row group around `row`, if it is in memory."""
        key = (place.path, row // ROW_GROUP_ROWS)
        with self._lock:
            found = self._groups.get(key)
            if found is None:
                return None
            self._groups.move_to_end(key)
            return found[0]

    def rows(self, place: IndexPlace, row: int) -> IndexRows:
        """Return the row group around `row` of an index.

        Threads that want the same one read it once. Raises: Corrupt; ObjectNotFound.
        """
        found = self.held(place, row)
        if found is None:
            key = (place.path, row // ROW_GROUP_ROWS)
            with self._turns.of(key):
                found = self.held(place, row) or self._read_group(place, key)
        return found

    def page_hashes(self, place: IndexPlace, shard_nbytes: int) -> PageHashes | None:
        """Return the page hashes as `IndexFile.page_hashes`. Raises: Corrupt; ObjectNotFound."""
        return self._file(place).page_hashes(shard_nbytes)

    def _read_group(self, place: IndexPlace, key: tuple[str, int]) -> IndexRows:
        rows = self._file(place).read_row_group(key[1])
        # Python str objects of the keys dominate: about 80 bytes each, and 24 bytes per field.
        held = len(rows.keys) * (80 + 24 * len(rows.offset))
        with self._lock:
            self._groups[key] = (rows, held)
            self._held_bytes += held
            while self._held_bytes > self._capacity and len(self._groups) > 1:
                self._held_bytes -= self._groups.popitem(last=False)[1][1]
        return rows

    def _file(self, place: IndexPlace) -> IndexFile:
        with self._turns.of(place.path):
            with self._lock:
                file = self._files.get(place.path)
            if file is None:
                file = IndexFile(self._store, place)
                with self._lock:
                    self._files[place.path] = file
                    self._file_bytes += file.held_bytes
                    while len(self._files) > MAX_OPEN_FILES or self._file_bytes > self._capacity // 4:
                        self._file_bytes -= self._files.popitem(last=False)[1].held_bytes
            return file
