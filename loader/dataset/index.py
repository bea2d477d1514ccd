"""The sidecar index of a shard: where each field of each row lies, and its checksum.

Columns: `key`, then per field f (int64) `f_offset`, `f_nbytes`, `f_crc32c`; delta encoded, row groups of at
most 2,048 rows, so that one cold sample of a shard of small samples costs a footer and one row group, not the
whole file.
"""

import io
import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import Corrupt
from ..storage import Store
from .parquet import check_schema_version, table_bytes
from .shard import crc32c

ROW_GROUP_ROWS = 2048
WHOLE_BELOW_BYTES = 512 * 2**10
"""A smaller index is read whole in one request; a larger one by its footer and then by row group."""
TAIL_BYTES = 64 * 2**10
MAX_OPEN_FILES = 4096

Int64s = npt.NDArray[np.int64]

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
    """Rows [first_row, first_row + len(keys)) of one index; arrays are int64, one value per row."""

    first_row: int
    keys: list[str]
    offset: dict[str, Int64s]
    nbytes: dict[str, Int64s]
    crc32c: dict[str, Int64s]


def index_bytes(keys: list[str], fields: dict[str, Int64s]) -> bytes:
    """The index file. `fields[f]` is int64 [rows, 3]: offset, nbytes, crc32c of field f in each row."""
    columns: dict[str, pa.Array] = {"key": pa.array(keys, pa.string())}
    encoding = {"key": "DELTA_BYTE_ARRAY"}
    for field in sorted(fields):
        for position, what in enumerate(("offset", "nbytes", "crc32c")):
            columns[f"{field}_{what}"] = pa.array(np.ascontiguousarray(fields[field][:, position]))
            encoding[f"{field}_{what}"] = "DELTA_BINARY_PACKED"
    return table_bytes(
        pa.table(columns),
        "index",
        row_group_rows=ROW_GROUP_ROWS,
        use_dictionary=False,
        column_encoding=encoding,
    )


class IndexFile:
    """An open index: reads what is asked for, keeps nothing but the footer. Thread-safe."""

    def __init__(self, store: Store, path: str, nbytes: int, crc: int) -> None:
        self._store, self._path, self._nbytes = store, path, nbytes
        self._etag: str | None = None
        tail = nbytes if nbytes <= WHOLE_BELOW_BYTES else TAIL_BYTES
        held = self._read(nbytes - tail, tail)
        if tail == nbytes and crc32c(held) != crc:
            raise Corrupt(
                f"{self.name}: its CRC-32C is {crc32c(held):08x}, the shards table says {crc:08x}; restore it from a "
                "mirror"
            )
        footer = int.from_bytes(held[-8:-4], "little") + 8
        if (
            tail < footer <= nbytes
        ):  # about 110 bytes per column and row group: more than the tail at 100,000 rows
            held = self._read(nbytes - footer, footer - tail) + held
        try:
            reader = pq.ParquetFile(_Window(nbytes, nbytes - len(held), held))
            check_schema_version(reader.schema_arrow, self.name)
            rows = [reader.metadata.row_group(g).num_rows for g in range(reader.metadata.num_row_groups)]
        except _UNREADABLE as error:
            raise Corrupt(
                f"{self.name} is not a readable index: {error}; restore it from a mirror"
            ) from error
        # Rows are found by their number divided by the row group's size, so every group but the last is full.
        if any(n != ROW_GROUP_ROWS for n in rows[:-1]) or not all(0 < n <= ROW_GROUP_ROWS for n in rows[-1:]):
            raise Corrupt(
                f"{self.name} has row groups of {sorted(set(rows))} rows; all but the last have {ROW_GROUP_ROWS}"
            )
        self._metadata = reader.metadata
        self._held = held if tail == nbytes else b""
        self._first_row = np.concatenate([[0], np.cumsum(rows, dtype=np.int64)])
        self.n_rows = int(self._first_row[-1])

    @property
    def name(self) -> str:
        return f"{self._store.url}/{self._path}"

    @property
    def held_bytes(self) -> int:
        """Memory that the open file keeps: all of a small index, nearly nothing of a large one."""
        return len(self._held)

    def row_group_of(self, row: int) -> int:
        """Which row group holds a row."""
        return int(np.searchsorted(self._first_row, row, side="right")) - 1

    def read_row_group(self, group: int) -> IndexRows:
        """One row group. Raises: Corrupt when a page's checksum is wrong."""
        if self._held:
            first, held = 0, self._held
        else:
            columns = [self._metadata.row_group(group).column(c) for c in range(self._metadata.num_columns)]
            first = min(_chunk_start(column) for column in columns)
            last = max(_chunk_start(column) + column.total_compressed_size for column in columns)
            held = self._read(first, last - first)
        try:
            reader = pq.ParquetFile(
                _Window(self._nbytes, first, held), metadata=self._metadata, page_checksum_verification=True
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

    def _read(self, offset: int, nbytes: int) -> bytes:
        blob = self._store.get_range(self._path, offset, nbytes, etag=self._etag)
        self._etag = blob.etag
        return blob.data


def _chunk_start(column: pq.ColumnChunkMetaData) -> int:
    start = column.data_page_offset
    if column.dictionary_page_offset is not None:
        start = min(start, column.dictionary_page_offset)
    return int(start)


def _rows(table: pa.Table, first_row: int) -> IndexRows:
    fields = [name.removesuffix("_offset") for name in table.column_names if name.endswith("_offset")]

    def column(field: str, what: str) -> Int64s:
        found = table[f"{field}_{what}"]
        if found.type != pa.int64() or found.null_count:
            raise TypeError(f"column {field}_{what} is not int64 without nulls")
        values: Int64s = found.to_numpy()
        return values

    return IndexRows(
        first_row,
        table["key"].to_pylist(),
        {field: column(field, "offset") for field in fields},
        {field: column(field, "nbytes") for field in fields},
        {field: column(field, "crc32c") for field in fields},
    )


class _Window(io.RawIOBase):
    """A read-only file of which only [start, start + len(data)) is here; reading elsewhere is an error."""

    def __init__(self, nbytes: int, start: int, data: bytes) -> None:
        self._nbytes, self._start, self._data, self._at = nbytes, start, data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._nbytes}[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        end = self._nbytes if size is None or size < 0 else min(self._at + size, self._nbytes)
        low, high = self._at - self._start, end - self._start
        if low < 0 or high > len(self._data):
            raise OSError(
                f"bytes [{self._at}:{end}] of an index lie outside the part that its footer promised"
            )
        self._at = end
        return self._data[low:high]


class IndexCache:
    """The row groups used last, bounded in bytes; shared by all threads of a reader."""

    def __init__(self, store: Store, capacity_bytes: int = 256 * 2**20) -> None:
        self._store, self._capacity = store, capacity_bytes
        self._lock = threading.Lock()
        self._files: OrderedDict[str, IndexFile] = OrderedDict()
        self._groups: OrderedDict[tuple[str, int], tuple[IndexRows, int]] = OrderedDict()
        self._held_bytes = 0
        self._file_bytes = 0

    def rows(self, path: str, nbytes: int, crc: int, row: int) -> IndexRows:
        """The row group around `row` of the index at `path`. Raises: Corrupt; ObjectNotFound."""
        with self._lock:
            file = self._files.get(path)
        if file is None:
            file = IndexFile(self._store, path, nbytes, crc)
            with self._lock:
                if path not in self._files:  # another thread may have opened it too
                    self._files[path] = file
                    self._file_bytes += file.held_bytes
                while len(self._files) > MAX_OPEN_FILES or self._file_bytes > self._capacity // 4:
                    self._file_bytes -= self._files.popitem(last=False)[1].held_bytes
        key = (path, file.row_group_of(row))
        with self._lock:
            if key in self._groups:
                self._groups.move_to_end(key)
                return self._groups[key][0]
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
