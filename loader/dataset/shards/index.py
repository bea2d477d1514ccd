"""Read and write a shard's sidecar index: offset, size and checksum of each field of each row.

Columns: `key`, then per field f (int64) `f_offset`, `f_nbytes`, `f_crc32c`; delta encoded. The shard's page hashes
precede the rows.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import Corrupt
from ...modalities.fields import is_of_the_machine
from ...storage import Store
from ...storage.requests import retry_corrupt
from ...storage.threads import ByteLru, lock
from ..tables.parquet import (
    MAGIC_BYTES,
    TAIL_BYTES,
    WHOLE_BELOW_BYTES,
    PartHashes,
    Window,
    check_schema_version,
    footer_nbytes,
    hashed_table_bytes,
    integers,
    part_hashes,
    row_group_extent,
)
from .address import UNKNOWN_CRC, FieldAddress
from .shard import PAGE_BYTES, Crcs, PageHashes, crc32c, read_seal, seal_path

ROW_GROUP_ROWS = 2048

Int64s = npt.NDArray[np.int64]
_COLUMNS = ("offset", "nbytes", "crc32c")

# Errors that reading a damaged file may raise: Arrow's, `Window`'s, and those for names and values.
_UNREADABLE = (
    pa.ArrowException,
    OSError,
    UnicodeDecodeError,
    KeyError,
    TypeError,
    OverflowError,
    MemoryError,
)


@dataclass(frozen=True, slots=True)
class IndexRows:
    """Rows [first_row, first_row + len(keys)) of one index."""

    first_row: int
    """Number of the first row."""
    keys: list[str]
    places: Int64s
    """int64 [rows, fields, 3]: offset, nbytes and CRC-32C, fields by name."""
    offset: dict[str, Int64s]
    """Field -> int64 [rows], a column of `places`."""
    nbytes: dict[str, Int64s]
    """Field -> int64 [rows], a column of `places`."""
    crc32c: dict[str, Int64s]
    """Field -> int64 [rows], a column of `places`."""
    sealed: bool = True
    """False for registered bytes that are not sealed."""

    def address(self, field: str, group: str, path: str, local: int) -> FieldAddress:
        """Return a field's address for row `first_row + local` of the shard at `path`."""
        return FieldAddress(
            field=field,
            group=group,
            path=path,
            offset=int(self.offset[field][local]),
            nbytes=int(self.nbytes[field][local]),
            crc32c=int(self.crc32c[field][local]),
        )


def index_bytes(keys: list[str] | pa.Array, fields: dict[str, Int64s], pages: bytes = b"") -> bytes:
    """Return the index file. fields: field -> int64 [rows, 3]: offset, nbytes, crc32c. pages: page hashes."""
    columns: dict[str, pa.Array] = {
        "key": keys if isinstance(keys, pa.Array) else pa.array(keys, pa.string())
    }
    encoding = {"key": "DELTA_BYTE_ARRAY"}
    for field in sorted(fields):
        for position, what in enumerate(_COLUMNS):
            columns[f"{field}_{what}"] = pa.array(np.ascontiguousarray(fields[field][:, position]))
            encoding[f"{field}_{what}"] = "DELTA_BINARY_PACKED"
    return hashed_table_bytes(
        pa.table(columns),
        "index",
        row_group_rows=ROW_GROUP_ROWS,
        front=pages,
        facts={"page_bytes": str(PAGE_BYTES)},
        use_dictionary=False,
        column_encoding=encoding,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPlace:
    """Path and size of an index, with checksums of its bytes: a damaged footer can crash Parquet."""

    path: str
    """Path in the root."""
    nbytes: int
    """Size in bytes."""
    crc32c: int
    """CRC-32C of the index."""
    footer_crc32c: int
    """CRC-32C of the footer."""
    footer_sha256: str = ""
    """Footer SHA-256, hex; "" in earlier releases."""
    pages_nbytes: int = 0
    """Bytes of page hashes before the rows; 0 in earlier releases."""
    seal: str = ""
    """Path of the seal of registered bytes, which may be missing, or ""."""

    @staticmethod
    def of(shard: Mapping[str, Any]) -> "IndexPlace":
        return IndexPlace(
            path=shard["index_path"],
            nbytes=shard["index_nbytes"],
            crc32c=shard["index_crc32c"],
            footer_crc32c=shard["index_footer_crc32c"],
            footer_sha256=shard.get("index_footer_sha256") or "",
            pages_nbytes=shard.get("index_pages_nbytes") or 0,
            seal=seal_path(shard["path"], shard.get("index_footer_sha256")),
        )

    @staticmethod
    def measure(path: str, data: bytes, pages_nbytes: int = 0) -> "IndexPlace":
        """Return the place. pages_nbytes: size of the page hashes before the rows."""
        footer = data[len(data) - footer_nbytes(data) :]
        return IndexPlace(
            path=path,
            nbytes=len(data),
            crc32c=crc32c(data),
            footer_crc32c=crc32c(footer),
            footer_sha256=hashlib.sha256(footer).hexdigest(),
            pages_nbytes=pages_nbytes,
        )

    def row(self) -> dict[str, Any]:
        return {
            "index_path": self.path,
            "index_nbytes": self.nbytes,
            "index_crc32c": self.crc32c,
            "index_footer_crc32c": self.footer_crc32c,
            "index_footer_sha256": self.footer_sha256,
            "index_pages_nbytes": self.pages_nbytes,
        }

    @property
    def start(self) -> int:
        behind = MAGIC_BYTES + self.pages_nbytes if self.footer_sha256 else 0
        return max(0, min(behind, self.nbytes - TAIL_BYTES))


class IndexFile:
    """An open index. Keeps only the footer, or a small index whole. Thread-safe. whole: read all rows at once."""

    def __init__(self, store: Store, place: IndexPlace, *, whole: bool = False) -> None:
        self._store, self._path, self._nbytes, self._place = store, place.path, place.nbytes, place
        self._etag: str | None = None
        whole = whole or place.nbytes - place.start <= WHOLE_BELOW_BYTES
        reader, held, self._hashes = retry_corrupt(partial(self._open, whole))
        rows = [reader.metadata.row_group(g).num_rows for g in range(reader.metadata.num_row_groups)]
        # A row's group is its number divided by the group size, so every group except the last must be full.
        if any(n != ROW_GROUP_ROWS for n in rows[:-1]) or any(n > ROW_GROUP_ROWS for n in rows[-1:]):
            raise Corrupt(
                f"{self.name} has row groups of {sorted(set(rows))} rows; all but the last have {ROW_GROUP_ROWS}"
            )
        self._metadata = reader.metadata
        self._facts = reader.schema_arrow.metadata or {}
        self._held = held if whole else b""
        self.held_bytes = len(held) if whole else 4 * footer_nbytes(held)  # about the parsed footer's size
        self._first_row = np.concatenate([[0], np.cumsum(rows, dtype=np.int64)])
        self.n_rows = int(self._first_row[-1])
        self._fields = sorted(
            name.removesuffix("_offset") for name in reader.schema_arrow.names if name.endswith("_offset")
        )
        self._lock = lock()
        self._seal: Crcs | None = None
        self._looked_for_seal = False
        self.held_bytes += 8 * self.n_rows * len(self._fields) if place.seal else 0

    @property
    def name(self) -> str:
        return f"{self._store.url}/{self._path}"

    def row_group_of(self, row: int) -> int:
        return int(np.searchsorted(self._first_row, row, side="right")) - 1

    def read_group(self, group: int) -> IndexRows:
        """Return one row group. Raises: Corrupt if a page fails its checksum twice.

        If checksums are unknown, the first call requests the index's seal.
        """
        rows = retry_corrupt(partial(self._read_unchecked, group))
        unknown = rows.places[:, :, 2] == UNKNOWN_CRC if self._place.seal else np.zeros(0, bool)
        if not unknown.any():
            return rows
        seal = self._known_by_seal()
        if seal is None:
            return replace(rows, sealed=False)
        here = slice(rows.first_row, rows.first_row + len(rows.keys))
        for number, (field, crcs) in enumerate(rows.crc32c.items()):
            crcs[unknown[:, number]] = seal[field][here][unknown[:, number]]
        return rows

    def _known_by_seal(self) -> Crcs | None:
        with self._lock:
            if not self._looked_for_seal:
                self._seal = read_seal(self._store, self._place.seal, self._fields, self.n_rows)
                self._looked_for_seal = True
            return self._seal

    def column(self, name: str) -> Int64s:
        try:
            reader = pq.ParquetFile(
                Window(self._nbytes, self._place.start, self._held),
                page_checksum_verification=True,
                pre_buffer=False,
            )
            return integers(reader.read(columns=[name], use_threads=False)[name])
        except _UNREADABLE as error:
            if is_of_the_machine(error):
                raise
            raise Corrupt(f"{self.name}, column {name}: {error}; restore it from a mirror") from error

    def page_hashes(self, shard_nbytes: int) -> PageHashes | None:
        """Return the page hashes of the shard, whose size is given; None for earlier releases."""
        if self._hashes is None or not self._hashes.front_nbytes:
            return None
        return retry_corrupt(partial(self._read_page_hashes, self._hashes, shard_nbytes))

    def _read_page_hashes(self, hashes: PartHashes, shard_nbytes: int) -> PageHashes:
        data = self._read(MAGIC_BYTES, hashes.front_nbytes)
        self._check_sha256("its hashes of pages have", data, hashes.front, "its footer")
        return PageHashes.of(data, int(self._facts[b"penstock.page_bytes"]), shard_nbytes, self.name)

    def _read_unchecked(self, group: int) -> IndexRows:
        if self._held:
            first, held = self._place.start, self._held
        else:
            first, end = row_group_extent(self._metadata, group)
            held = self._read(first, end - first)
            self._check_row_group(self._hashes, group, held)
        try:
            reader = pq.ParquetFile(
                Window(self._nbytes, first, held),
                metadata=self._metadata,
                page_checksum_verification=True,
                pre_buffer=False,
            )
            rows = _rows(reader.read_row_group(group, use_threads=False), int(self._first_row[group]))
        except _UNREADABLE as error:
            if is_of_the_machine(error):
                raise
            raise Corrupt(f"{self.name}, row group {group}: {error}; restore it from a mirror") from error
        expected = int(self._first_row[group + 1]) - rows.first_row
        if len(rows.keys) != expected:
            raise Corrupt(
                f"{self.name}, row group {group} has {len(rows.keys)} rows, in its footer {expected}"
            )
        return rows

    def _open(self, whole: bool) -> tuple[pq.ParquetFile, bytes, PartHashes | None]:
        held = self._read_whole() if whole else self._read_footer()
        start = self._nbytes - len(held)
        try:
            reader = pq.ParquetFile(Window(self._nbytes, start, held), pre_buffer=False)
            check_schema_version(reader.schema_arrow, self.name)
            hashes = part_hashes(reader.metadata) if self._place.footer_sha256 else None
            for group in range(reader.metadata.num_row_groups) if whole else ():
                first, end = row_group_extent(reader.metadata, group)
                self._check_row_group(hashes, group, held[first - start : end - start])
        except _UNREADABLE as error:
            if is_of_the_machine(error):
                raise
            raise Corrupt(
                f"{self.name} is not a readable index: {error}; restore it from a mirror"
            ) from error
        return reader, held, hashes

    def _read_whole(self) -> bytes:
        held = self._read(self._place.start, self._nbytes - self._place.start)
        if self._place.footer_sha256:
            self._check_footer(held)
        else:
            self._check("", crc32c(held), self._place.crc32c)
        return held

    def _read_footer(self) -> bytes:
        held = self._read(self._nbytes - TAIL_BYTES, TAIL_BYTES)
        footer = footer_nbytes(held)
        # A footer takes about 110 bytes per column and row group: at 100,000 rows it exceeds the tail.
        if TAIL_BYTES < footer <= self._nbytes:
            held = self._read(self._nbytes - footer, footer - TAIL_BYTES) + held
        self._check_footer(held)
        return held

    def _check_footer(self, held: bytes) -> None:
        footer = held[-footer_nbytes(held) :]
        if self._place.footer_sha256:
            self._check_sha256("its footer has", footer, self._place.footer_sha256, "the shards table")
        else:
            self._check("the footer's ", crc32c(footer), self._place.footer_crc32c)

    def _check_row_group(self, hashes: PartHashes | None, group: int, data: bytes) -> None:
        if hashes is not None:
            self._check_sha256(f"row group {group} has", data, hashes.row_groups[group], "its footer")

    def _check_sha256(self, what: str, data: bytes, expected: str, said_by: str) -> None:
        sha256 = hashlib.sha256(data).hexdigest()
        if sha256 != expected:
            raise Corrupt(
                f"{self.name}: {what} SHA-256 {sha256}, in {said_by} {expected}: it was replaced or damaged; restore "
                "it from a mirror"
            )

    def _check(self, what: str, checksum: int, expected: int) -> None:
        if checksum != expected:
            raise Corrupt(
                f"{self.name}: {what or 'its '}CRC-32C is {checksum:08x}, in the shards table {expected:08x}; restore "
                "it from a mirror"
            )

    def _read(self, offset: int, nbytes: int) -> bytes:
        blob = self._store.get_range(self._path, offset, nbytes, etag=self._etag)
        self._etag = blob.etag
        return blob.data


def _rows(table: pa.Table, first_row: int) -> IndexRows:
    fields = sorted(name.removesuffix("_offset") for name in table.column_names if name.endswith("_offset"))

    def column(field: str, what: str) -> Int64s:
        values = table[f"{field}_{what}"]
        if values.type != pa.int64() or values.null_count:
            raise TypeError(f"column {field}_{what} is not int64 without nulls")
        return integers(values)

    places = np.empty((table.num_rows, len(fields), 3), np.int64)
    for number, field in enumerate(fields):
        for what, name in enumerate(_COLUMNS):
            places[:, number, what] = column(field, name)
    offset, nbytes, crcs = (
        {field: places[:, number, what] for number, field in enumerate(fields)}
        for what in range(len(_COLUMNS))
    )
    return IndexRows(first_row, table["key"].to_pylist(), places, offset, nbytes, crcs)


MAX_OPEN_FILES = 4096


class IndexCache:
    """Least-recently-used cache of row groups, bounded in bytes; shared by a reader's threads."""

    def __init__(self, store: Store, capacity_bytes: int = 256 * 2**20) -> None:
        self._store, self._groups = store, ByteLru(capacity_bytes)
        self._lock = lock()
        self._files: OrderedDict[str, IndexFile] = OrderedDict()
        self._file_bytes = 0

    def held(self, place: IndexPlace, row: int) -> IndexRows | None:
        group: IndexRows | None = self._groups.get((place.path, row // ROW_GROUP_ROWS))
        return group

    def rows(self, place: IndexPlace, row: int) -> IndexRows:
        """Return the row group around `row` of an index; threads share one read."""
        group = self.held(place, row)
        if group is None:
            key = (place.path, row // ROW_GROUP_ROWS)
            with self._groups.turns.of(key):
                group = self.held(place, row)
                if group is None:
                    group = self._file(place).read_group(key[1])
                    # Key strings dominate: about 80 bytes each, plus 24 bytes per field.
                    self._groups.put(key, group, len(group.keys) * (80 + 24 * len(group.offset)))
        return group

    def page_hashes(self, place: IndexPlace, shard_nbytes: int) -> PageHashes | None:
        return self._file(place).page_hashes(shard_nbytes)

    def _file(self, place: IndexPlace) -> IndexFile:
        with self._groups.turns.of(place.path):
            with self._lock:
                file = self._files.get(place.path)
            if file is None:
                file = IndexFile(self._store, place)
                with self._lock:
                    self._files[place.path] = file
                    self._file_bytes += file.held_bytes
                    while (
                        len(self._files) > MAX_OPEN_FILES
                        or self._file_bytes > self._groups.capacity_bytes // 4
                    ):
                        self._file_bytes -= self._files.popitem(last=False)[1].held_bytes
            return file
