"""Keep open indexes and decoded row groups in memory, up to a bound in bytes."""

from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from ...errors import StoreError
from ...storage import ByteRange, Store, is_local
from ...storage.store import ObjectReader
from ...storage.threads import SizedLru, in_background, lock
from ..tables.parquet import MAGIC_BYTES
from ..tables.parquet_ranges import WHOLE_BELOW_BYTES
from .index import ROW_GROUP_ROWS, IndexFile, IndexPlace
from .index_rows import IndexRows
from .shard import PageHashes

if TYPE_CHECKING:
    from .early_rows import EarlyBytes

MAX_OPEN_FILES = 4096
CACHED_INDEX_BYTES = 256 * 2**20


class IndexPages(Protocol):
    """Pages of a node that indexes are read through."""

    def store(self, place: IndexPlace) -> ObjectReader:
        """Return the store to open an index in. It is used for as long as the index is open."""


class IndexCache:
    """Least-recently-used cache of row groups, bounded in bytes; shared by a reader's threads."""

    def __init__(
        self,
        store: Store,
        capacity_bytes: int = CACHED_INDEX_BYTES,
    ) -> None:
        self._store = store
        self._pages: list[IndexPages] = []  # of the loaders that run; the last one's are used
        self._groups = SizedLru(capacity_bytes)
        self._lock = lock()
        most_file_bytes = capacity_bytes // 4
        self._files = SizedLru(most_file_bytes)
        # Counted for a smaller file, so that at most `MAX_OPEN_FILES` are open.
        self._least_file_bytes = most_file_bytes // MAX_OPEN_FILES

    def add_pages(self, pages: IndexPages) -> None:
        """Open indexes through a node's pages from now on."""
        with self._lock:
            self._pages.append(pages)

    def remove_pages(self, pages: IndexPages) -> None:
        """Open no more indexes through these pages."""
        with self._lock:
            self._pages.remove(pages)

    def _place_store(self, place: IndexPlace) -> ObjectReader:
        with self._lock:
            if not self._pages:
                return self._store
            pages = self._pages[-1]
        return pages.store(place)

    def held(self, place: IndexPlace, row: int) -> IndexRows | None:
        """Return the row group around `row` if it is in the cache. No request."""
        number = row // ROW_GROUP_ROWS
        key = (place.path, number)
        group: IndexRows | None = self._groups.get(key)
        return group

    def rows(self, place: IndexPlace, row: int) -> IndexRows:
        """Return the row group around `row` of an index; threads share one read."""
        group = self.held(place, row)
        if group is not None:
            return group

        number = row // ROW_GROUP_ROWS
        key = (place.path, number)
        with self._groups.turns.of(key):
            group = self.held(place, row)  # another thread may have read it meanwhile
            if group is None:
                file, early = self._file_and_rows(place, number)
                unsealed_key = (
                    place.path,
                    number,
                    "unsealed",
                )
                unsealed = self._groups.get(unsealed_key)
                if unsealed is None:
                    unsealed = file.read_rows(number, early)
                group = file.with_checksums(unsealed)
                self._put(key, group)
        return group

    def keys(self, place: IndexPlace, row: int) -> list[str]:
        """Return the keys of the row group around `row`. Costs no request for a seal, unlike `rows`."""
        group = self.held(place, row)
        if group is None and not place.seal:
            group = self.rows(place, row)
        if group is not None:
            return group.keys

        number = row // ROW_GROUP_ROWS
        key = (place.path, number)
        unsealed_key = (
            place.path,
            number,
            "unsealed",
        )
        with self._groups.turns.of(key):
            group = self._groups.get(unsealed_key)
            if group is None:
                file, early = self._file_and_rows(place, number)
                group = file.read_rows(number, early)
                self._put(unsealed_key, group)
        return group.keys

    def _put(self, key: object, group: IndexRows) -> None:
        # Key strings dominate: about 80 bytes each, plus 24 bytes per field.
        row_nbytes = 80 + 24 * len(group.offset)
        nbytes = len(group.keys) * row_nbytes
        self._groups.put(key, group, nbytes)

    def page_hashes(
        self,
        place: IndexPlace,
        shard_nbytes: int,
    ) -> PageHashes | None:
        """Return the page hashes of the index's shard (`IndexFile.page_hashes`)."""
        file = self._file(place)
        return file.page_hashes(shard_nbytes)

    def _file_and_rows(
        self,
        place: IndexPlace,
        number: int,
    ) -> "tuple[IndexFile, EarlyBytes | None]":
        """Return (open index, bytes that may have a row group). If the index has to be opened, both come together."""
        file: IndexFile | None = self._files.get(place.path)
        if file is not None:
            return file, None
        likely = None
        if not is_local(self._store):  # there, a second read costs less than a thread
            likely = _likely_range(place, number)
        if likely is None:
            return self._file(place), None
        from .early_rows import EarlyBytes  # only for large indexes of a bucket

        with in_background(self._file, place) as opening:
            early = None
            with suppress(StoreError):  # reading the footer raises it
                blob = self._place_store(place).get_range(place.path, likely.offset, likely.nbytes)
                early = EarlyBytes(likely.offset, blob.data, blob.etag)
            return opening.result(), early

    def _file(self, place: IndexPlace) -> IndexFile:
        """Return the open index. Threads that want the same one wait for one of them to open it."""
        with self._groups.turns.of(place.path):
            file: IndexFile | None = self._files.get(place.path)
            if file is None:
                file = IndexFile(self._place_store(place), place)
                nbytes = max(file.held_bytes, self._least_file_bytes)
                self._files.put(place.path, file, nbytes)
            return file


def _likely_range(place: IndexPlace, number: int) -> ByteRange | None:
    """Return the range that probably has a row group; None if it comes with the footer, or nothing is known."""
    if place.nbytes - place.start <= WHOLE_BELOW_BYTES or not place.n_rows or not place.n_columns:
        return None
    from .early_rows import likely_range

    return likely_range(
        rows_start=MAGIC_BYTES + place.pages_nbytes,
        nbytes=place.nbytes,
        n_rows=place.n_rows,
        n_columns=place.n_columns,
        group_rows=ROW_GROUP_ROWS,
        group=number,
    )
