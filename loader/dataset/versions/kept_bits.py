"""The table of windows at the true rows of a stream: a Parquet file with the bitmap in front of its rows.

The bitmap is read in pages of 256 KiB when windows in them are first drawn: a batch of 16 windows reads 4 MB at most.
Memory grows to an eighth of a byte per window.
"""

import hashlib
import io
import mmap
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ...errors import Corrupt, FormatTooNew, ObjectNotFound
from ...modalities.fields import is_of_the_machine
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
    table_facts,
)
from ..tables.parquet_ranges import Window, footer_nbytes

PAGE_BYTES = 2**18
TAIL_BYTES, ROW_BYTES = 2**16, 4
"""Bytes that are read at the end of a table first: these, and these for each row. Rows take about 3 bytes."""
ROW_GROUP_ROWS = 2**20
_PAGE = np.dtype([("crc32c", "<u4"), ("n_true", "<u4")])
_PAGE_BITS = 8 * PAGE_BYTES


class StoredBits(SelectTable):
    """A `SelectTable` of a stored bitmap, whose pages are read when first needed. Thread-safe; pickles without pages.

    pages: CRC-32C and number of true bits of each page.
    """

    def __init__(self, store: Store, path: str, n: int, pages: NDArray[Any]) -> None:
        self._store, self._path, self._n, self._pages = store, path, n, pages
        n_blocks = -(-n // BLOCK_BITS)
        self._bytes = _unwritten(n_blocks * (BLOCK_BITS // 8))
        self._starts = np.concatenate([[0], np.cumsum(pages["n_true"], dtype=np.int64)])
        before = np.repeat(self._starts[:-1], _PAGE_BITS // BLOCK_BITS)[:n_blocks]
        self._before = np.append(before, self._starts[-1])  # ascends, with or without a page's own counts
        self._unread = np.ones(len(pages), bool)
        self._lock = lock()

    def __reduce__(self) -> Any:
        return StoredBits, (self._store, self._path, self._n, self._pages)

    def packed(self) -> bytes:
        self._read(np.arange(len(self._pages)))
        return super().packed()

    def rank(self, n: int) -> int:
        self._read(np.arange(n // _PAGE_BITS, -(-n // _PAGE_BITS)))
        return super().rank(n)

    def bits(self, start: int, stop: int) -> Bools:
        self._read(np.arange(start // _PAGE_BITS, -(-stop // _PAGE_BITS)))
        return super().bits(start, stop)

    def after(self, n: int) -> SelectTable:
        self._read(np.arange(n // _PAGE_BITS, len(self._pages)))
        return super().after(n)

    def select(self, x: I64) -> I64:
        self._read(np.unique(np.searchsorted(self._starts, x, side="right") - 1))
        return super().select(x)

    def _read(self, numbers: I64) -> None:
        with self._lock:
            unread = numbers[self._unread[numbers]]
            if not len(unread):
                return
            pages = retry_corrupt(partial(self._verified, unread.tolist()))
            for number, data in zip(unread.tolist(), pages, strict=True):
                at, first = number * PAGE_BYTES, number * (_PAGE_BITS // BLOCK_BITS)
                self._bytes[at : at + len(data)] = np.frombuffer(data, np.uint8)
                words = self._bytes[at : at + PAGE_BYTES].view(np.uint64).reshape(-1, BLOCK_BITS // 64)
                ends = np.cumsum(np.bitwise_count(words).sum(axis=1, dtype=np.int64))
                self._before[first + 1 : first + len(ends)] += ends[:-1]
            self._unread[unread] = False

    def _verified(self, numbers: list[int]) -> list[bytes]:
        nbytes = -(-self._n // 8)
        spans = [
            ByteRange(MAGIC_BYTES + at, min(PAGE_BYTES, nbytes - at))
            for at in (number * PAGE_BYTES for number in numbers)
        ]
        blobs = self._store.get_ranges(self._path, spans, max_gap=0)
        for number, blob in zip(numbers, blobs, strict=True):
            if _page(np.frombuffer(blob.data, np.uint8)) != self._pages[number].item():
                raise Corrupt(
                    f"{self._store.url}/{self._path}: page {number} of its bitmap is damaged; delete it to "
                    "rebuild it"
                )
        return [blob.data for blob in blobs]


def _unwritten(nbytes: int) -> NDArray[np.uint8]:
    """Return zeros that take memory where they are written. `np.zeros` would take 2 MiB around each write."""
    if not nbytes:
        return np.zeros(0, np.uint8)
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def kept_table_bytes(
    first: I64, first_kept: I64, packed: NDArray[np.uint8], facts: Mapping[str, str]
) -> bytes:
    """Return the file. first, first_kept: int64 [episodes + 1]. packed: bitmap, uint8."""
    pages = _pages(packed)
    table = pa.table({"first": first, "first_kept": first_kept})
    groups = (table.slice(at, ROW_GROUP_ROWS) for at in range(0, len(first), ROW_GROUP_ROWS))
    own = {"pages": pages.tobytes().hex(), "rows_sha256": _rows_sha256(first, first_kept, pages)}
    return hashed_bytes(
        groups,
        table.schema,
        "windows",
        front=packed.data,
        facts={**facts, **own, "content_sha256": table_sha256(first, packed)},
        use_dictionary=False,
        column_encoding=dict.fromkeys(table.column_names, "DELTA_BINARY_PACKED"),
    )


def load_kept(store: Store, path: str, n_rows: int) -> tuple[I64, KeptWindows, str] | None:
    """Return the stored (first, kept windows, sha256 of the content); None if there is no table. Reads no bitmap.

    n_rows: rows that the table should have. Costs two requests. Raises: Corrupt.
    """
    try:
        nbytes = store.head(path).nbytes
        return retry_corrupt(partial(_load, store, path, n_rows, nbytes))
    except ObjectNotFound:
        return None


def _load(store: Store, path: str, n_rows: int, nbytes: int) -> tuple[I64, KeptWindows, str]:
    name = f"{store.url}/{path}"
    start = max(0, nbytes - TAIL_BYTES - ROW_BYTES * n_rows)
    tail = store.get_range(path, start, nbytes - start).data
    while (rows := _rows_start(tail, nbytes, name)) < start:
        tail, start = store.get_range(path, rows, start - rows).data + tail, rows
    first, first_kept, pages, facts = _parsed(Window(nbytes, start, tail), path, name)
    bits = StoredBits(store, path, int(first[-1]), pages)
    return first_kept, KeptWindows(first, bits), facts["content_sha256"]


def check_kept(data: bytes, path: str, name: str) -> None:
    """Raise Corrupt unless a whole file is a table whose bitmap, rows and checksums agree."""
    first, first_kept, pages, facts = _parsed(io.BytesIO(data), path, name)
    packed = np.frombuffer(data, np.uint8, -(-int(first[-1]) // 8), MAGIC_BYTES)
    is_whole = (
        np.array_equal(_pages(packed), pages) and table_sha256(first, packed) == facts["content_sha256"]
    )
    if not is_whole or not np.array_equal(_ranks(packed, first), first_kept):
        raise _damaged(name)


def _pages(packed: NDArray[np.uint8]) -> NDArray[Any]:
    return np.array([_page(packed[at : at + PAGE_BYTES]) for at in range(0, len(packed), PAGE_BYTES)], _PAGE)


def _page(octets: NDArray[np.uint8]) -> tuple[int, int]:
    return crc32c(octets.data), int(np.bitwise_count(octets).sum())


def _ranks(packed: NDArray[np.uint8], numbers: I64) -> I64:
    ranks, before = np.empty(len(numbers), np.int64), 0
    for at in range(0, len(packed) + 1, PAGE_BYTES):
        octets = np.append(packed[at : at + PAGE_BYTES], np.uint8(0))  # a number may follow the last bit
        starts = np.cumsum(np.bitwise_count(octets), dtype=np.int64)
        starts = np.append(0, starts) + before
        low, high = np.searchsorted(numbers, [8 * at, 8 * (at + PAGE_BYTES)])
        octet, bit = np.divmod(numbers[low:high] - 8 * at, 8)
        ranks[low:high] = starts[octet] + np.bitwise_count(octets[octet] & (1 << bit) - 1)
        before = int(starts[-1])
    return ranks


def _rows_start(tail: bytes, nbytes: int, name: str) -> int:
    """Return the first byte after the bitmap, from a file's last bytes; 0 if they lack the footer."""
    size = footer_nbytes(tail)
    if size > len(tail):
        return max(0, nbytes - size)
    try:
        reader = pq.ParquetFile(Window(nbytes, nbytes - len(tail), tail), pre_buffer=False)
        return max(0, MAGIC_BYTES + int((reader.metadata.metadata or {})[b"penstock.front_nbytes"]))
    except (*UNREADABLE, KeyError) as error:
        if is_of_the_machine(error):
            raise
        raise Corrupt(f"{name} is not a table of windows: {error}; delete it to rebuild it") from error


def _parsed(file: Any, path: str, name: str) -> tuple[I64, I64, NDArray[Any], dict[str, str]]:
    try:
        reader = pq.ParquetFile(file, page_checksum_verification=True, pre_buffer=False)
        check_schema_version(reader.schema_arrow, name)
        table = reader.read(use_threads=False)
        facts = table_facts(table)
        first, first_kept = integers(table["first"]), integers(table["first_kept"])
        pages = np.frombuffer(bytes.fromhex(facts["pages"]), _PAGE)
        is_whole = facts["path"] == path and facts["rows_sha256"] == _rows_sha256(first, first_kept, pages)
        is_whole = is_whole and bool(facts["content_sha256"]) and _fit(first, first_kept, pages)
        is_whole = is_whole and int(facts["front_nbytes"]) == -(-int(first[-1]) // 8)
    except FormatTooNew:
        raise
    except (*UNREADABLE, KeyError, TypeError) as error:
        if is_of_the_machine(error):
            raise
        raise Corrupt(f"{name} is not a table of windows: {error}; delete it to rebuild it") from error
    if not is_whole:
        raise _damaged(name)
    return first, first_kept, pages, facts


def _fit(first: I64, first_kept: I64, pages: NDArray[Any]) -> bool:
    """Return whether no episode keeps more windows than it has, and the pages agree with both totals."""
    for numbers in (first, first_kept):
        if not len(numbers) or numbers[0] or (numbers[1:] < numbers[:-1]).any():
            return False
    n_true, n_pages = int(pages["n_true"].sum(dtype=np.int64)), -(-int(first[-1]) // _PAGE_BITS)
    fewer = bool((np.diff(first_kept) <= np.diff(first)).all())
    return fewer and n_true == first_kept[-1] and len(pages) == n_pages


def _damaged(name: str) -> Corrupt:
    return Corrupt(f"{name} was damaged, edited or renamed; delete it to rebuild it")


def _rows_sha256(first: I64, first_kept: I64, pages: NDArray[Any]) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(first, "<i8").data)
    digest.update(np.ascontiguousarray(first_kept, "<i8").data)
    digest.update(pages.tobytes())
    return digest.hexdigest()
