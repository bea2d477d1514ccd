"""Store the windows of a view's episodes, counted by `window_counts`.

    windows/<hash>.parquet      first; a row per episode, the number of its first window, then the number of all

With `keep` a bitmap of the windows at true rows stands in front of the rows (`StoredBits`, `load_kept`). It is read in
pages of 256 KiB when windows in them are first drawn: a batch of 16 windows reads 4 MB at most.
Memory grows to an eighth of a byte per window.
"""

import hashlib
import io
import mmap
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ...errors import Corrupt, FormatTooNew, ObjectNotFound
from ...modalities.fields import is_machine_fault
from ...order.random.keyed_permutation import I64
from ...order.sources.window_view import KeptWindows, table_sha256
from ...storage import Store
from ...storage.requests import retry_corrupt
from ...storage.store import ByteRange
from ...storage.threads import lock
from ..shards.bitmap import BLOCK_BITS, Bools, SelectTable
from ..shards.shard import crc32c
from ..tables.parquet import (
    MAGIC_BYTES,
    UNREADABLE,
    check_schema_version,
    hashed_bytes,
    integers,
    parse_stored,
    table_bytes,
    table_facts,
)
from ..tables.parquet_ranges import RangeFile, footer_nbytes

PAGE_BYTES = 2**18
_PAGE_BITS = 8 * PAGE_BYTES
TAIL_BYTES = 2**16
ROW_BYTES = 4
"""Bytes that are read at the end of a table first: these, and these for each row. Rows take about 3 bytes."""
ROW_GROUP_ROWS = 2**20
_PAGE = np.dtype([("crc32c", "<u4"), ("n_true", "<u4")])


class StoredBits(SelectTable):
    """A `SelectTable` of a stored bitmap, whose pages are read when first needed. Thread-safe; pickles without pages.

    pages: CRC-32C and number of true bits of each page.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        n: int,
        pages: NDArray[Any],
    ) -> None:
        self._store = store
        self._path = path
        self._n = n
        self._pages = pages
        n_blocks = -(-n // BLOCK_BITS)
        self._bytes = _unwritten(n_blocks * (BLOCK_BITS // 8))
        ends = np.cumsum(pages["n_true"], dtype=np.int64)
        self._starts = np.concatenate([[0], ends])  # int64 [pages + 1]: true bits before each page
        # The true bits before a page stand for all its blocks until the page is read: the numbers ascend either way,
        # so `select` finds a block of a page in memory, whether its neighbours are in memory or not.
        before_blocks = np.repeat(self._starts[:-1], _PAGE_BITS // BLOCK_BITS)[:n_blocks]
        self._before = np.append(before_blocks, self._starts[-1])
        self._is_unread = np.ones(len(pages), bool)
        self._lock = lock()

    def __reduce__(self) -> Any:
        return StoredBits, (self._store, self._path, self._n, self._pages)

    def packed(self) -> bytes:
        self._read(np.arange(len(self._pages)))
        return super().packed()

    def rank(self, n: int) -> int:
        # At a page's first bit the range is empty: the count before the page needs none of its bytes.
        self._read(np.arange(n // _PAGE_BITS, -(-n // _PAGE_BITS)))
        return super().rank(n)

    def bits(self, start: int, stop: int) -> Bools:
        self._read(np.arange(start // _PAGE_BITS, -(-stop // _PAGE_BITS)))
        return super().bits(start, stop)

    def after(self, n: int) -> SelectTable:
        self._read(np.arange(n // _PAGE_BITS, len(self._pages)))
        return super().after(n)

    def select(self, x: I64) -> I64:
        pages = np.searchsorted(self._starts, x, side="right") - 1  # [len(x)]: page of each member
        self._read(np.unique(pages))
        return super().select(x)

    def _read(self, numbers: I64) -> None:
        """Read the pages among these that were not read so far."""
        with self._lock:
            unread = numbers[self._is_unread[numbers]]
            if not len(unread):
                return
            pages = retry_corrupt(partial(self._verify_pages, unread.tolist()))
            for number, data in zip(unread.tolist(), pages, strict=True):
                self._fill(number, data)
            self._is_unread[unread] = False

    def _fill(self, number: int, data: bytes) -> None:
        """Place a page's bytes, and count the true bits before each of its blocks."""
        start = number * PAGE_BYTES
        self._bytes[start : start + len(data)] = np.frombuffer(data, np.uint8)
        octets = self._bytes[start : start + PAGE_BYTES]
        words = octets.view(np.uint64).reshape(-1, BLOCK_BITS // 64)
        block_counts = np.bitwise_count(words).sum(axis=1, dtype=np.int64)
        # int64 [blocks of the page]: true bits of the page up to each block's end
        ends = np.cumsum(block_counts)
        first_block = number * (_PAGE_BITS // BLOCK_BITS)
        # The first block has its count from the start: the true bits before the page.
        self._before[first_block + 1 : first_block + len(ends)] += ends[:-1]

    def _verify_pages(self, numbers: list[int]) -> list[bytes]:
        bitmap_nbytes = -(-self._n // 8)
        spans = []
        for number in numbers:
            start = number * PAGE_BYTES
            nbytes = min(PAGE_BYTES, bitmap_nbytes - start)
            spans.append(ByteRange(MAGIC_BYTES + start, nbytes))
        blobs = self._store.get_ranges(self._path, spans, max_gap=0)

        pages = []
        for number, blob in zip(numbers, blobs, strict=True):
            octets = np.frombuffer(blob.data, np.uint8)
            if _page_facts(octets) != self._pages[number].item():
                raise Corrupt(
                    f"{self._store.url}/{self._path}: page {number} of its bitmap is damaged; delete it to "
                    "rebuild it",
                    what=f"page {number} of the bitmap",
                    where=f"{self._store.url}/{self._path}",
                )
            pages.append(blob.data)
        return pages


def _unwritten(nbytes: int) -> NDArray[np.uint8]:
    """Return zeros that take memory where they are written. `np.zeros` would take 2 MiB around each write."""
    if not nbytes:
        return np.zeros(0, np.uint8)
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def kept_windows_bytes(
    first: I64,
    first_kept: I64,
    packed: NDArray[np.uint8],
    facts: Mapping[str, str],
) -> bytes:
    """Return the file. first, first_kept: int64 [episodes + 1]. packed: bitmap, uint8."""
    pages = _all_page_facts(packed)
    table = pa.table({"first": first, "first_kept": first_kept})
    row_groups = (table.slice(start, ROW_GROUP_ROWS) for start in range(0, len(first), ROW_GROUP_ROWS))
    own_facts = {
        **facts,
        "pages": pages.tobytes().hex(),
        "rows_sha256": _rows_sha256(first, first_kept, pages),
        "content_sha256": table_sha256(first, packed),
    }
    return hashed_bytes(
        row_groups,
        table.schema,
        "windows",
        front=packed.data,
        facts=own_facts,
        use_dictionary=False,
        column_encoding=dict.fromkeys(table.column_names, "DELTA_BINARY_PACKED"),
    )


def load_kept(
    store: Store,
    path: str,
    n_rows: int,
) -> tuple[I64, KeptWindows, str] | None:
    """Return the stored (first, kept windows, sha256 of the content); None if there is no table. Reads no bitmap.

    n_rows: rows that the table should have. Costs two requests. Raises: Corrupt.
    """
    try:
        nbytes = store.head(path).nbytes
        return retry_corrupt(
            partial(
                _load,
                store,
                path,
                n_rows,
                nbytes,
            )
        )
    except ObjectNotFound:
        return None


def _load(
    store: Store,
    path: str,
    n_rows: int,
    nbytes: int,
) -> tuple[I64, KeptWindows, str]:
    """Return the same as `load_kept`, of a table that exists. nbytes: of the file."""
    name = f"{store.url}/{path}"
    # A guess that usually holds footer and rows. If not, one or two more requests read the rest: footer, then rows.
    start = max(0, nbytes - TAIL_BYTES - ROW_BYTES * n_rows)
    tail = store.get_range(path, start, nbytes - start).data
    rows_start = _rows_start(tail, nbytes, name)
    while rows_start < start:
        tail = store.get_range(path, rows_start, start - rows_start).data + tail
        start = rows_start
        rows_start = _rows_start(tail, nbytes, name)
    rows = _parse_rows(RangeFile(nbytes, start, tail), path, name)
    n_bits = int(rows.first[-1])
    bits = StoredBits(
        store,
        path,
        n_bits,
        rows.pages,
    )
    return rows.first_kept, KeptWindows(rows.first, bits), rows.facts["content_sha256"]


def check_kept(
    data: bytes,
    path: str,
    name: str,
) -> None:
    """Raise Corrupt unless a whole file is a table whose bitmap, rows and checksums agree."""
    rows = _parse_rows(io.BytesIO(data), path, name)
    n_octets = -(-int(rows.first[-1]) // 8)
    packed = np.frombuffer(
        data,
        np.uint8,
        n_octets,
        MAGIC_BYTES,
    )
    is_whole = (
        np.array_equal(_all_page_facts(packed), rows.pages)
        and table_sha256(rows.first, packed) == rows.facts["content_sha256"]
        and np.array_equal(_ranks(packed, rows.first), rows.first_kept)
    )
    if not is_whole:
        raise _damage_error(name)


def _all_page_facts(packed: NDArray[np.uint8]) -> NDArray[Any]:
    """Return `_PAGE` [pages] of a bitmap."""
    starts = range(0, len(packed), PAGE_BYTES)
    facts = [_page_facts(packed[start : start + PAGE_BYTES]) for start in starts]
    return np.array(facts, _PAGE)


def _page_facts(octets: NDArray[np.uint8]) -> tuple[int, int]:
    """Return (CRC-32C, number of true bits)."""
    n_true = int(np.bitwise_count(octets).sum())
    return crc32c(octets.data), n_true


def _ranks(packed: NDArray[np.uint8], numbers: I64) -> I64:
    """Return int64 [n]: true bits before each of these ascending numbers. A page at a time, to bound the memory."""
    ranks = np.empty(len(numbers), np.int64)
    n_before = 0
    for start in range(0, len(packed) + 1, PAGE_BYTES):
        # One octet more, as a number may follow the last bit.
        octets = np.append(packed[start : start + PAGE_BYTES], np.uint8(0))
        ends = np.cumsum(np.bitwise_count(octets), dtype=np.int64)
        before_octets = np.append(0, ends) + n_before
        first_bit = 8 * start
        low, high = np.searchsorted(numbers, [first_bit, first_bit + 8 * PAGE_BYTES])
        octet, bit = np.divmod(numbers[low:high] - first_bit, 8)
        lower_bits = (1 << bit) - 1
        ranks[low:high] = before_octets[octet] + np.bitwise_count(octets[octet] & lower_bits)
        n_before = int(before_octets[-1])
    return ranks


def _rows_start(
    tail: bytes,
    nbytes: int,
    name: str,
) -> int:
    """Return the first byte of the rows, which follow the bitmap, from the last bytes of a file of `nbytes`.

    If `tail` lacks a part of the footer, returns where the footer begins: the caller reads from there, and asks again.
    """
    size = footer_nbytes(tail)
    if size > len(tail):
        return max(0, nbytes - size)
    try:
        range_file = RangeFile(nbytes, nbytes - len(tail), tail)
        reader = pq.ParquetFile(range_file, pre_buffer=False)
        metadata = reader.metadata.metadata or {}
        bitmap_nbytes = int(metadata[b"penstock.front_nbytes"])
        return max(0, MAGIC_BYTES + bitmap_nbytes)
    except (*UNREADABLE, KeyError) as error:
        if is_machine_fault(error):
            raise
        raise _unreadable(name, error) from error


class _KeptRows(NamedTuple):
    """The Parquet part of a file."""

    first: I64
    """int64 [episodes + 1]."""
    first_kept: I64
    """int64 [episodes + 1]."""
    pages: NDArray[Any]
    """dtype `_PAGE`; checksum and number of true bits of each."""
    facts: dict[str, str]


def _parse_rows(
    file: Any,
    path: str,
    name: str,
) -> _KeptRows:
    """Return a file's rows, checked against each other and their hash. Raises: Corrupt; FormatTooNew."""
    try:
        reader = pq.ParquetFile(file, page_checksum_verification=True, pre_buffer=False)
        check_schema_version(reader.schema_arrow, name)
        table = reader.read(use_threads=False)
        facts = table_facts(table)
        first = integers(table["first"])
        first_kept = integers(table["first_kept"])
        pages = np.frombuffer(bytes.fromhex(facts["pages"]), _PAGE)
        is_whole = (
            facts["path"] == path
            and facts["rows_sha256"] == _rows_sha256(first, first_kept, pages)
            and bool(facts["content_sha256"])
            and _fit(first, first_kept, pages)
            and int(facts["front_nbytes"]) == -(-int(first[-1]) // 8)
        )
    except FormatTooNew:
        raise
    except (*UNREADABLE, KeyError, TypeError) as error:
        if is_machine_fault(error):
            raise
        raise _unreadable(name, error) from error
    if not is_whole:
        raise _damage_error(name)
    return _KeptRows(
        first,
        first_kept,
        pages,
        facts,
    )


def _fit(
    first: I64,
    first_kept: I64,
    pages: NDArray[Any],
) -> bool:
    """Return whether no episode keeps more windows than it has, and the pages agree with both totals."""
    for numbers in (first, first_kept):
        if not len(numbers) or numbers[0] != 0:
            return False
        if (numbers[1:] < numbers[:-1]).any():
            return False
    windows = np.diff(first)
    kept_windows = np.diff(first_kept)
    if (kept_windows > windows).any():
        return False
    n_pages = -(-int(first[-1]) // _PAGE_BITS)
    n_true = int(pages["n_true"].sum(dtype=np.int64))
    return len(pages) == n_pages and n_true == int(first_kept[-1])


def windows_bytes(first: I64, path: str) -> bytes:
    """Return the file of a table without a bitmap. first: int64 [episodes + 1]."""
    return table_bytes(
        pa.table({"first": first}),
        "windows",
        facts={"path": path, "content_sha256": table_sha256(first)},
        use_dictionary=False,
        column_encoding={"first": "DELTA_BINARY_PACKED"},
    )


def check_windows(data: bytes, path: str, name: str) -> None:
    """Raise Corrupt unless a file is an undamaged table of windows, with or without a bitmap."""
    footer = data[len(data) - footer_nbytes(data) :]
    if b"penstock.front_sha256" in footer:
        check_kept(data, path, name)
    else:
        parse_windows(data, path, name)


def parse_windows(data: bytes, path: str, name: str) -> tuple[I64, str]:
    """Return the table in a file, int64 [episodes + 1], and the SHA-256 of its content. Raises: Corrupt."""
    table = parse_stored(data, path, name)
    packed = b""
    try:
        first = integers(table["first"])
        if "kept" in table.column_names:  # of an earlier release
            packed = b"".join(table["kept"].to_pylist())
    except (KeyError, TypeError) as error:
        raise _unreadable(name, error) from error
    is_ordered = len(first) and first[0] == 0 and not (first[1:] < first[:-1]).any()
    if is_ordered:
        sha256 = table_sha256(first, packed)
        if sha256 == table_facts(table).get("content_sha256"):
            return first, sha256
    message = f"{name} is not a table of windows, or was damaged or edited; delete it to rebuild it"
    raise Corrupt(message, what="content of the table", where=name)


def _unreadable(name: str, error: Exception) -> Corrupt:
    message = f"{name} is not a table of windows: {error}; delete it to rebuild it"
    return Corrupt(message, what="table of windows", where=name, given=str(error))


def _damage_error(name: str) -> Corrupt:
    message = f"{name} was damaged, edited or renamed; delete it to rebuild it"
    return Corrupt(message, what="content of the table", where=name)


def _rows_sha256(
    first: I64,
    first_kept: I64,
    pages: NDArray[Any],
) -> str:
    digest = hashlib.sha256()
    for numbers in (first, first_kept):
        digest.update(np.ascontiguousarray(numbers, "<i8").data)
    digest.update(pages.tobytes())
    return digest.hexdigest()
