"""Read and write Parquet tables in a store. Every table contains its kind and schema version.

Use these functions instead of pyarrow's `to_numpy`, `pa.scalar`, `pa.array` and comparisons, which import pandas if it
is installed (0.15 to 0.4 s). A file that is read in parts has the SHA-256 of its row groups and front in the footer:

    PAR1, bytes outside the table (the front), row groups, footer

The footer's metadata has `penstock.row_groups_sha256` (hex, separated by spaces), `penstock.front_sha256` and
`penstock.front_nbytes`; its own hash is stored elsewhere.
"""

import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import Corrupt, FormatTooNew
from ...modalities.fields import is_of_the_machine
from ...storage import Store
from ...storage.requests import retry_corrupt
from ...storage.store import Objects

Int64s = np.ndarray[Any, np.dtype[np.int64]]
T = TypeVar("T", pa.Array, pa.Table)


def integers(column: pa.Array | pa.ChunkedArray) -> Int64s:
    """Return int64 [n], read-only if it shares the column's memory. Raises: TypeError for other types, or nulls."""
    if not pa.types.is_integer(column.type) or column.null_count:
        raise TypeError(f"a column of {column.type} with {column.null_count} nulls; integers are needed")
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    arrays = [np.from_dlpack(chunk) for chunk in chunks if len(chunk)]
    return (arrays[0] if len(arrays) == 1 else np.concatenate([np.empty(0, np.int64), *arrays])).astype(
        np.int64, copy=False
    )


def codes(column: pa.ChunkedArray) -> tuple[pa.Array, Int64s]:
    """Return (distinct values as they first appear; int64 [n], index of each row's value). Raises: TypeError."""
    encoded = column.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    return encoded.dictionary, integers(encoded.indices)


def changes(column: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return bool [n]: whether each value differs from the one before; the first is True."""
    import pyarrow.compute as pc  # 40 ms, saved at startup

    out = np.ones(len(column), bool)
    out[1:] = integers(pc.cast(pc.not_equal(column[1:], column[:-1]), pa.int8()))
    return out


def take_rows(values: T, positions: Int64s) -> T:
    return values.take(
        pa.Int64Array.from_buffers(pa.int64(), len(positions), [None, pa.py_buffer(positions)])
    )


def text(value: str) -> pa.StringScalar:
    data = value.encode()
    ends = np.array([0, len(data)], np.int32)
    return pa.StringArray.from_buffers(1, pa.py_buffer(ends), pa.py_buffer(data))[0]


SCHEMA_VERSION = 1
ROW_GROUP_ROWS = 65_536
SAMPLES = "samples-"
"""Prefix of the table kinds that have one row per sample."""
HASHED_FROM_ROWS = 8_192
"""Number of rows from which a samples table has row-group hashes."""
READ_AHEAD = 16
"""Tables fetched together; all are in memory at once."""
UNREADABLE = (pa.ArrowException, OSError, ValueError)
"""Errors raised for a file that is damaged or not Parquet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    path: str
    """Path in the root."""
    nbytes: int
    """Size in bytes."""
    sha256: str
    """File SHA-256, hex."""
    n_rows: int
    """Number of rows."""
    footer_sha256: str = ""
    """Footer SHA-256, hex; "" for a table that is always read whole."""

    def to_json(self) -> dict[str, Any]:
        body = {"path": self.path, "nbytes": self.nbytes, "sha256": self.sha256, "n_rows": self.n_rows}
        return {**body, "footer_sha256": self.footer_sha256} if self.footer_sha256 else body

    @staticmethod
    def from_json(body: dict[str, Any]) -> "TableFile":
        known = {name: body[name] for name in ("path", "nbytes", "sha256", "n_rows")}
        return TableFile(**known, footer_sha256=body.get("footer_sha256", ""))


def table_bytes(
    table: pa.Table,
    kind: str,
    *,
    row_group_rows: int = ROW_GROUP_ROWS,
    facts: Mapping[str, str] | None = None,
    **options: Any,
) -> bytes:
    """Return the table as Parquet (zstd, page checksums), with `kind` and the schema version in its metadata."""
    sink = io.BytesIO()
    pq.write_table(
        table.replace_schema_metadata(_named(kind, facts)),
        sink,
        row_group_size=row_group_rows,
        compression="zstd",
        write_page_checksum=True,
        store_schema=True,
        **options,
    )
    return sink.getvalue()


def _named(kind: str, facts: Mapping[str, str] | None) -> dict[str, str]:
    named = {"table": kind, "schema": str(SCHEMA_VERSION), **(facts or {})}
    return {f"penstock.{name}": value for name, value in named.items()}


def put_table(
    store: Store, path: str, table: pa.Table, kind: str, row_group_rows: int = ROW_GROUP_ROWS
) -> TableFile:
    data, footer_sha256 = _stored(table, kind, row_group_rows)
    return replace(put_bytes(store, path, data, table.num_rows), footer_sha256=footer_sha256)


def put_named_table(
    store: Store, prefix: str, table: pa.Table, kind: str, row_group_rows: int = ROW_GROUP_ROWS
) -> TableFile:
    data, footer_sha256 = _stored(table, kind, row_group_rows)
    return replace(put_named(store, prefix, kind, data, table.num_rows), footer_sha256=footer_sha256)


def _stored(table: pa.Table, kind: str, row_group_rows: int) -> tuple[bytes, str]:
    if not kind.startswith(SAMPLES) or table.num_rows < HASHED_FROM_ROWS:
        return table_bytes(table, kind, row_group_rows=row_group_rows), ""
    data = hashed_table_bytes(table, kind, row_group_rows=row_group_rows)
    return data, footer_sha256_of(data)


def footer_sha256_of(data: bytes) -> str:
    return hashlib.sha256(data[len(data) - footer_nbytes(data) :]).hexdigest()


def put_named(store: Store, prefix: str, kind: str, data: bytes, n_rows: int) -> TableFile:
    return put_bytes(store, f"{prefix}/{kind}-{hashlib.sha256(data).hexdigest()[:16]}.parquet", data, n_rows)


def put_bytes(store: Store, path: str, data: bytes, n_rows: int) -> TableFile:
    store.put_if_absent(path, data)
    return TableFile(path=path, nbytes=len(data), sha256=hashlib.sha256(data).hexdigest(), n_rows=n_rows)


def get_table_bytes(store: Objects, file: TableFile) -> bytes:
    """Return the file's bytes. Raises: Corrupt if size or SHA-256 is wrong twice."""
    return retry_corrupt(partial(_table_bytes, store, file))


def _table_bytes(store: Objects, file: TableFile) -> bytes:
    data = store.get(file.path).data
    sha256 = hashlib.sha256(data).hexdigest()
    if len(data) != file.nbytes or sha256 != file.sha256:
        raise Corrupt(
            f"{store.url}/{file.path}: {len(data)} bytes with sha256 {sha256}; in the manifest {file.nbytes} bytes "
            f"with sha256 {file.sha256}. The file was replaced or damaged: restore it from a mirror"
        )
    return data


def get_table(store: Objects, file: TableFile, columns: list[str] | None = None) -> pa.Table:
    return parse_table(get_table_bytes(store, file), f"{store.url}/{file.path}", columns)


def get_tables(
    store: Store, files: Sequence[TableFile], columns: list[str] | None = None
) -> Iterator[pa.Table]:
    if len(files) < 2:
        yield from (get_table(store, file, columns) for file in files)
        return
    with ThreadPoolExecutor(min(len(files), READ_AHEAD), thread_name_prefix="penstock-table") as pool:
        for start in range(0, len(files), READ_AHEAD):
            batch = files[start : start + READ_AHEAD]
            yield from pool.map(lambda file: get_table(store, file, columns), batch)


def parse_table(data: bytes, name: str, columns: list[str] | None = None) -> pa.Table:
    try:
        reader = pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True, pre_buffer=False)
        check_schema_version(reader.schema_arrow, name)
        return reader.read(columns=columns, use_threads=False)
    except FormatTooNew:
        raise
    except UNREADABLE as error:
        if is_of_the_machine(error):
            raise
        raise Corrupt(f"{name} is not a readable Parquet file: {error}") from error


MOST_SMALL_ROWS, MOST_SMALL_TEXT, MOST_SMALL_BYTES = 200_000, 4096, 2**28
"""Most rows, bytes of a text, and uncompressed bytes of a small table."""


def parse_small_table(data: bytes, name: str, columns: list[str] | None = None) -> pa.Table:
    """Return a table of texts and numbers from an untrusted writer; rows and texts are bounded.

    A file of 710 bytes can hold 200 GB of one repeated text. So texts are read as dictionaries, and checked before they
    are copied for each row. Raises: Corrupt; FormatTooNew.
    """
    try:
        metadata = pq.read_metadata(io.BytesIO(data))
        groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
        nbytes = sum(group.total_byte_size for group in groups)
        if metadata.num_rows > MOST_SMALL_ROWS or nbytes > MOST_SMALL_BYTES:
            raise Corrupt(
                f"{name} has {metadata.num_rows:,} rows and {nbytes:,} bytes; accepted: at most "
                f"{MOST_SMALL_ROWS:,} rows and {MOST_SMALL_BYTES:,} bytes"
            )
        texts = [field.name for field in metadata.schema.to_arrow_schema() if not _is_number(field, name)]
        reader = pq.ParquetFile(
            io.BytesIO(data),
            metadata=metadata,
            page_checksum_verification=True,
            pre_buffer=False,
            read_dictionary=texts,
        )
        check_schema_version(reader.schema_arrow, name)
        table = reader.read(columns=columns, use_threads=False)
        most_bytes = MOST_SMALL_BYTES
        for place, field in enumerate(table.schema):
            if not _is_number(field, name):
                text_column, most_bytes = _short_texts(table.column(place), name, most_bytes)
                table = table.set_column(place, field.name, text_column)
        table.validate(full=True)
    except (Corrupt, FormatTooNew):
        raise
    except (*UNREADABLE, KeyError) as error:
        if is_of_the_machine(error):
            raise
        raise Corrupt(f"{name} is not a readable Parquet file: {error}") from error
    return table


def _is_number(field: pa.Field, name: str) -> bool:
    if pa.types.is_nested(field.type):
        raise Corrupt(f"{name} has a column of {field.type}; accepted: texts and numbers")
    return bool(pa.types.is_primitive(field.type))


def _short_texts(column: pa.ChunkedArray, name: str, most_bytes: int) -> tuple[pa.ChunkedArray, int]:
    """Return the column as texts, and the number of bytes left for further columns."""
    import pyarrow.compute as pc  # 40 ms, saved at startup

    if not (pa.types.is_dictionary(column.type) and pa.types.is_string(column.type.value_type)):
        raise Corrupt(f"{name} has a column of {column.type}; accepted: texts and numbers")
    for chunk in column.chunks:
        lengths = pc.binary_length(chunk.dictionary)
        if (pc.max(lengths).as_py() or 0) > MOST_SMALL_TEXT:
            raise Corrupt(f"{name} has a text of more than {MOST_SMALL_TEXT:,} bytes")
        most_bytes -= pc.sum(lengths.take(chunk.indices)).as_py() or 0
    if most_bytes < 0:
        raise Corrupt(f"{name} has texts of more than {MOST_SMALL_BYTES:,} bytes in all")
    return column.cast(pa.string()), most_bytes


def parse_stored(data: bytes, path: str, name: str) -> pa.Table:
    """Return the table as `parse_table` does; Corrupt if its fact `path` names another path.

    Older tables lack this fact.
    """
    table = parse_table(data, name)
    written_as = (table.schema.metadata or {}).get(b"penstock.path")
    if written_as is not None and written_as != path.encode():
        raise Corrupt(
            f"{name} was written as {written_as.decode(errors='replace')}, so it belongs elsewhere: it was exchanged, "
            "renamed or damaged. Delete it to rebuild it"
        )
    return table


def table_facts(table: pa.Table) -> dict[str, str]:
    facts = {name.decode(): value.decode() for name, value in (table.schema.metadata or {}).items()}
    prefix = "penstock."
    return {name[len(prefix) :]: value for name, value in facts.items() if name.startswith(prefix)}


def check_schema_version(schema: pa.Schema, name: str) -> None:
    """Raise FormatTooNew if a newer penstock wrote the table."""
    version = int((schema.metadata or {}).get(b"penstock.schema", b"0"))
    if version > SCHEMA_VERSION:
        raise FormatTooNew(
            f"{name} has table schema {version}; this penstock reads up to {SCHEMA_VERSION}. "
            "Upgrade penstock-data (docs/install.md)"
        )


MAGIC_BYTES = 4
_GROUPS, _FRONT = "penstock.row_groups_sha256", "penstock.front_sha256"
_FRONT_NBYTES = "penstock.front_nbytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartHashes:
    """Hashes of a file's parts, from its footer."""

    row_groups: tuple[str, ...]
    """Sha256 hex of each row group."""
    front: str
    """Front SHA-256, hex."""
    front_nbytes: int
    """Bytes of the front."""


def hashed_table_bytes(table: pa.Table, kind: str, *, row_group_rows: int, **how: Any) -> bytes:
    """Return the table's bytes with front and hashes. how: as for `hashed_bytes`."""
    groups = (table.slice(first, row_group_rows) for first in range(0, table.num_rows, row_group_rows))
    return hashed_bytes(groups, table.schema, kind, **how)


def hashed_bytes(
    groups: Iterable[pa.Table],
    schema: pa.Schema,
    kind: str,
    *,
    front: bytes | memoryview = b"",
    facts: Mapping[str, str] | None = None,
    **options: Any,
) -> bytes:
    """Return the bytes of a hashed table with these row groups, requested one at a time."""
    schema, hashes, out = schema.with_metadata(_named(kind, facts)), list[str](), io.BytesIO()
    sink = pa.PythonFile(out, mode="w")  # it counts all bytes written, including the front
    with pq.ParquetWriter(
        sink, schema, compression="zstd", write_page_checksum=True, store_schema=True, **options
    ) as writer:
        sink.write(front)
        for group in groups:
            start = out.tell()
            fits = group if group.schema == schema else group.cast(schema)
            writer.write_table(fits, row_group_size=group.num_rows)
            hashes.append(hashlib.sha256(out.getbuffer()[start:]).hexdigest())
        writer.add_key_value_metadata(
            {
                _GROUPS: " ".join(hashes),
                _FRONT: hashlib.sha256(front).hexdigest(),
                _FRONT_NBYTES: str(len(front)),
            }
        )
    return out.getvalue()


def part_hashes(metadata: pq.FileMetaData) -> PartHashes:
    """Return the hashes in a footer. Raises: KeyError if there are none; ValueError."""
    facts = metadata.metadata or {}
    hashes = PartHashes(
        row_groups=tuple(facts[_GROUPS.encode()].decode().split()),
        front=facts[_FRONT.encode()].decode(),
        front_nbytes=int(facts[_FRONT_NBYTES.encode()]),
    )
    if len(hashes.row_groups) != metadata.num_row_groups:
        raise ValueError(f"{len(hashes.row_groups)} hashes of {metadata.num_row_groups} row groups")
    return hashes


def footer_nbytes(tail: bytes) -> int:
    """Return the size of a footer, including its length and magic, from the file's last bytes."""
    return int.from_bytes(tail[-8:-4], "little") + 8


def row_group_extent(metadata: pq.FileMetaData, group: int) -> tuple[int, int]:
    columns = [metadata.row_group(group).column(c) for c in range(metadata.num_columns)]
    first = min(chunk_start(column) for column in columns)
    return first, max(chunk_start(column) + column.total_compressed_size for column in columns)


def chunk_start(column: pq.ColumnChunkMetaData) -> int:
    pages = (column.data_page_offset, column.dictionary_page_offset)
    return min(int(page) for page in pages if page is not None)


WHOLE_BELOW_BYTES = 512 * 2**10
"""Bytes below which a table or an index is read whole."""
TAIL_BYTES = 64 * 2**10


class Window(io.RawIOBase):
    """A read-only file that holds only [start, start + len(data)); reading elsewhere raises."""

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
            raise OSError(f"bytes [{self._at}:{end}] of a file lie outside the part that its footer promised")
        self._at = end
        return self._data[low:high]
