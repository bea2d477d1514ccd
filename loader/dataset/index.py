"""The sidecar index of a shard: where each field of each row lies, and its checksum.

Columns: `key`, then per field f (int64) `f_offset`, `f_nbytes`, `f_crc32c`; delta encoded, row groups of at
most 2,048 rows, so that one cold sample of a shard of small samples costs a footer and one row group, not the
whole file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import Corrupt
from ..storage import Store
from ..storage.doubt import sound
from .address import FieldAddress
from .arrow import integers
from .parquet import check_schema_version, table_bytes
from .shard import crc32c
from .window import Window

ROW_GROUP_ROWS = 2048
WHOLE_BELOW_BYTES = 512 * 2**10
"""A smaller index is read whole in one request; a larger one by its footer and then by row group."""
TAIL_BYTES = 64 * 2**10

Int64s = npt.NDArray[np.int64]
_COLUMNS = ("offset", "nbytes", "crc32c")

# What a damaged file makes of the reader: Arrow's own errors, our window's, and those of names and values.
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
    """Rows [first_row, first_row + len(keys)) of one index. places: int64 [rows, fields, 3], offset, nbytes and CRC-32C
    of each field, fields by name; offset, nbytes, crc32c: field -> int64 [rows], those columns of it."""

    first_row: int
    keys: list[str]
    places: Int64s
    offset: dict[str, Int64s]
    nbytes: dict[str, Int64s]
    crc32c: dict[str, Int64s]

    def address(self, field: str, group: str, path: str, local: int) -> FieldAddress:
        """Where a field of row `first_row + local` lies in the shard at `path`."""
        return FieldAddress(
            field=field,
            group=group,
            path=path,
            offset=int(self.offset[field][local]),
            nbytes=int(self.nbytes[field][local]),
            crc32c=int(self.crc32c[field][local]),
        )


def index_bytes(keys: list[str], fields: dict[str, Int64s]) -> bytes:
    """The index file. `fields[f]` is int64 [rows, 3]: offset, nbytes, crc32c of field f in each row."""
    columns: dict[str, pa.Array] = {"key": pa.array(keys, pa.string())}
    encoding = {"key": "DELTA_BYTE_ARRAY"}
    for field in sorted(fields):
        for position, what in enumerate(_COLUMNS):
            columns[f"{field}_{what}"] = pa.array(np.ascontiguousarray(fields[field][:, position]))
            encoding[f"{field}_{what}"] = "DELTA_BINARY_PACKED"
    return table_bytes(
        pa.table(columns),
        "index",
        row_group_rows=ROW_GROUP_ROWS,
        use_dictionary=False,
        column_encoding=encoding,
    )


def footer_nbytes(tail: bytes) -> int:
    """Length of a Parquet file's footer with what stands after it (its length, the magic), from the last bytes."""
    return int.from_bytes(tail[-8:-4], "little") + 8


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPlace:
    """Where an index lies, and the checksums that its bytes are held against before Parquet reads them: a damaged
    footer can crash a reader. footer_crc32c: of the last `footer_nbytes`."""

    path: str
    nbytes: int
    crc32c: int
    footer_crc32c: int

    @staticmethod
    def of(shard: Mapping[str, Any]) -> "IndexPlace":
        """From a row of the shards table."""
        return IndexPlace(
            path=shard["index_path"],
            nbytes=shard["index_nbytes"],
            crc32c=shard["index_crc32c"],
            footer_crc32c=shard["index_footer_crc32c"],
        )

    @staticmethod
    def measure(path: str, data: bytes) -> "IndexPlace":
        """Of the bytes that are to lie at `path`."""
        footer = data[len(data) - footer_nbytes(data) :]
        return IndexPlace(path=path, nbytes=len(data), crc32c=crc32c(data), footer_crc32c=crc32c(footer))


class IndexFile:
    """An open index: reads what is asked for, keeps nothing but the footer. Thread-safe."""

    def __init__(self, store: Store, place: IndexPlace) -> None:
        self._store, self._path, self._nbytes = store, place.path, place.nbytes
        self._etag: str | None = None
        whole = place.nbytes <= WHOLE_BELOW_BYTES
        held = sound(partial(self._read_whole if whole else self._read_footer, place))
        try:
            reader = pq.ParquetFile(Window(place.nbytes, place.nbytes - len(held), held))
            check_schema_version(reader.schema_arrow, self.name)
            rows = [reader.metadata.row_group(g).num_rows for g in range(reader.metadata.num_row_groups)]
        except _UNREADABLE as error:
            raise Corrupt(
                f"{self.name} is not a readable index: {error}; restore it from a mirror"
            ) from error
        # Rows are found by their number divided by the row group's size, so every group but the last is full.
        if any(n != ROW_GROUP_ROWS for n in rows[:-1]) or any(n > ROW_GROUP_ROWS for n in rows[-1:]):
            raise Corrupt(
                f"{self.name} has row groups of {sorted(set(rows))} rows; all but the last have {ROW_GROUP_ROWS}"
            )
        self._metadata = reader.metadata
        self._held = held if whole else b""
        self.held_bytes = len(held) if whole else 4 * footer_nbytes(held)  # about what its parsed form takes
        self._first_row = np.concatenate([[0], np.cumsum(rows, dtype=np.int64)])
        self.n_rows = int(self._first_row[-1])

    @property
    def name(self) -> str:
        return f"{self._store.url}/{self._path}"

    def row_group_of(self, row: int) -> int:
        """Which row group holds a row."""
        return int(np.searchsorted(self._first_row, row, side="right")) - 1

    def read_row_group(self, group: int) -> IndexRows:
        """One row group. Raises: Corrupt when a page's checksum is wrong, after reading it twice."""
        return sound(partial(self._read_row_group, group))

    def _read_row_group(self, group: int) -> IndexRows:
        if self._held:
            first, held = 0, self._held
        else:
            columns = [self._metadata.row_group(group).column(c) for c in range(self._metadata.num_columns)]
            first = min(chunk_start(column) for column in columns)
            last = max(chunk_start(column) + column.total_compressed_size for column in columns)
            held = self._read(first, last - first)
        try:
            reader = pq.ParquetFile(
                Window(self._nbytes, first, held), metadata=self._metadata, page_checksum_verification=True
            )
            rows = _rows(reader.read_row_group(group), int(self._first_row[group]))
        except _UNREADABLE as error:
            raise Corrupt(f"{self.name}, row group {group}: {error}; restore it from a mirror") from error
        expected = int(self._first_row[group + 1]) - rows.first_row
        if len(rows.keys) != expected:
            raise Corrupt(
                f"{self.name}, row group {group} has {len(rows.keys)} rows, its footer says {expected}"
            )
        return rows

    def _read_whole(self, place: IndexPlace) -> bytes:
        held = self._read(0, place.nbytes)
        self._check("", crc32c(held), place.crc32c)
        return held

    def _read_footer(self, place: IndexPlace) -> bytes:
        """The last bytes, the whole footer among them."""
        held = self._read(place.nbytes - TAIL_BYTES, TAIL_BYTES)
        footer = footer_nbytes(held)
        # About 110 bytes per column and row group: at 100,000 rows the footer is larger than the tail.
        if TAIL_BYTES < footer <= place.nbytes:
            held = self._read(place.nbytes - footer, footer - TAIL_BYTES) + held
        self._check("the footer's ", crc32c(held[-footer:]), place.footer_crc32c)
        return held

    def _check(self, what: str, found: int, expected: int) -> None:
        if found != expected:
            raise Corrupt(
                f"{self.name}: {what or 'its '}CRC-32C is {found:08x}, the shards table says {expected:08x}; restore "
                "it from a mirror"
            )

    def _read(self, offset: int, nbytes: int) -> bytes:
        blob = self._store.get_range(self._path, offset, nbytes, etag=self._etag)
        self._etag = blob.etag
        return blob.data


def chunk_start(column: pq.ColumnChunkMetaData) -> int:
    start = column.data_page_offset
    if column.dictionary_page_offset is not None:
        start = min(start, column.dictionary_page_offset)
    return int(start)


def _rows(table: pa.Table, first_row: int) -> IndexRows:
    fields = sorted(name.removesuffix("_offset") for name in table.column_names if name.endswith("_offset"))

    def column(field: str, what: str) -> Int64s:
        found = table[f"{field}_{what}"]
        if found.type != pa.int64() or found.null_count:
            raise TypeError(f"column {field}_{what} is not int64 without nulls")
        return integers(found)

    places = np.empty((table.num_rows, len(fields), 3), np.int64)
    for number, field in enumerate(fields):
        for what, name in enumerate(_COLUMNS):
            places[:, number, what] = column(field, name)
    columns = [
        {field: places[:, number, what] for number, field in enumerate(fields)}
        for what in range(len(_COLUMNS))
    ]
    return IndexRows(first_row, table["key"].to_pylist(), places, *columns)
