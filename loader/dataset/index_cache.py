"""Open indexes and their row groups, the ones used last, bounded in bytes."""

import threading
from collections import OrderedDict

from ..storage import Store
from .index import ROW_GROUP_ROWS, IndexFile, IndexPlace, IndexRows

MAX_OPEN_FILES = 4096


class IndexCache:
    """The row groups used last, bounded in bytes; shared by all threads of a reader."""

    def __init__(self, store: Store, capacity_bytes: int = 256 * 2**20) -> None:
        self._store, self._capacity = store, capacity_bytes
        self._lock = threading.Lock()
        self._files: OrderedDict[str, IndexFile] = OrderedDict()
        self._groups: OrderedDict[tuple[str, int], tuple[IndexRows, int]] = OrderedDict()
        self._held_bytes = 0
        self._file_bytes = 0

    def holds(self, place: IndexPlace, row: int) -> bool:
        """Whether the row group around `row` is in memory; it may be gone a moment later."""
        with self._lock:
            return (place.path, row // ROW_GROUP_ROWS) in self._groups

    def rows(self, place: IndexPlace, row: int) -> IndexRows:
        """The row group around `row` of an index. Raises: Corrupt; ObjectNotFound."""
        path = place.path
        key = (path, row // ROW_GROUP_ROWS)
        with self._lock:
            if key in self._groups:
                self._groups.move_to_end(key)
                return self._groups[key][0]
            file = self._files.get(path)
        if file is None:
            file = IndexFile(self._store, place)
            with self._lock:
                if path not in self._files:  # another thread may have opened it too
                    self._files[path] = file
                    self._file_bytes += file.held_bytes
                while len(self._files) > MAX_OPEN_FILES or self._file_bytes > self._capacity // 4:
                    self._file_bytes -= self._files.popitem(last=False)[1].held_bytes
        rows = file.read_row_group(key[1])
        # Python str objects of the keys dominate: about 80 bytes each, and 24 bytes per field.
        held = len(rows.keys) * (80 + 24 * len(rows.offset))
        with self._lock:
            if key not in self._groups:
                self._groups[key] = (rows, held)
                self._held_bytes += held
            while self._held_bytes > self._capacity and len(self._groups) > 1:
                self._held_bytes -= self._groups.popitem(last=False)[1][1]
        return rows
