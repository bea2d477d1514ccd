"""Read and write Parquet tables in a store. Every table contains its kind and schema version.

A training's start uses these functions, not pyarrow's `to_numpy`, `pa.scalar`, `pa.array` and comparisons: those import
pandas (0.15 to 0.4 s). A file that is read in parts has the SHA-256 of its row groups and front in the footer:

    PAR1, bytes outside the table (the front), row groups, footer

The footer's metadata has `penstock.row_groups_sha256` (hex, separated by spaces), `penstock.front_sha256` and
`penstock.front_nbytes`; its own hash is stored elsewhere.
"""

import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import Corrupt, FormatTooNew, PenstockError
from ...modalities.fields import is_machine_fault
from ...storage import Store
from ...storage.requests import retry_corrupt
from ...storage.store import Objects
from ...storage.threads import DaemonPool
from .parquet_ranges import footer_nbytes

Int64s = np.ndarray[Any, np.dtype[np.int64]]
T = TypeVar("T", pa.Array, pa.Table)


def integers(column: pa.Array | pa.ChunkedArray) -> Int64s:
    """Return int64 [n], read-only if it shares the column's memory. Raises: TypeError for other types, or nulls."""
    if not pa.types.is_integer(column.type) or column.null_count:
        raise TypeError(f"a column of {column.type} with {column.null_count} nulls; integers are needed")
    chunks = [column]
    if isinstance(column, pa.ChunkedArray):
        chunks = column.chunks
    arrays = [np.from_dlpack(chunk) for chunk in chunks if len(chunk)]
    if len(arrays) == 1:  # no copy
        values = arrays[0]
    else:
        empty = np.empty(0, np.int64)  # `concatenate` needs an array
        values = np.concatenate([empty, *arrays])
    return values.astype(np.int64, copy=False)


def codes(column: pa.ChunkedArray) -> tuple[pa.Array, Int64s]:
    """Return (distinct values as they first appear; int64 [n], index of each row's value). Raises: TypeError."""
    encoded = column.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):  # a large column has several chunks even then
        encoded = encoded.combine_chunks()
    return encoded.dictionary, integers(encoded.indices)


def changes(column: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return bool [n]: whether each value differs from the one before; the first is True."""
    import pyarrow.compute as pc  # 40 ms, saved at startup

    differs = pc.not_equal(column[1:], column[:-1])
    as_bytes = pc.cast(differs, pa.int8())  # NumPy reads no array of bits
    out = np.ones(len(column), bool)
    out[1:] = integers(as_bytes)
    return out


def take_rows(values: T, positions: Int64s) -> T:
    indices = pa.Int64Array.from_buffers(
        pa.int64(),
        len(positions),
        [None, pa.py_buffer(positions)],
    )
    return values.take(indices)


def string_array(values: Sequence[str]) -> pa.StringArray:
    """Return an array of texts, as `pa.array` does. Raises: ValueError above 2 GiB of text."""
    data = [value.encode() for value in values]
    offsets = np.cumsum([0, *map(len, data)])  # int64 [n + 1], in bytes
    if offsets[-1] > MAX_TEXT_BYTES:
        raise ValueError(f"{offsets[-1]:,} bytes of texts; an array has at most {MAX_TEXT_BYTES:,}")
    offset_buffer = pa.py_buffer(offsets.astype(np.int32))
    return pa.StringArray.from_buffers(len(data), offset_buffer, pa.py_buffer(b"".join(data)))


SCHEMA_VERSION = 1
MAX_TEXT_BYTES = 2**31 - 1  # of one array, whose offsets are int32
ROW_GROUP_ROWS = 65_536
SAMPLES = "samples-"
"""Prefix of the table kinds that have one row per sample."""
HASHED_FROM_ROWS = 8_192
"""Number of rows from which a samples table has row-group hashes."""
READ_AHEAD = 16
"""Tables fetched together; all are in memory at once."""
UNREADABLE = (pa.ArrowException, OSError, ValueError)
"""Errors raised for a file that is damaged or not Parquet."""


@contextmanager
def corrupt_if_unreadable(
    what: str,
    errors: tuple[type[Exception], ...] = UNREADABLE,
) -> Iterator[None]:
    """Raise these errors as Corrupt. what: words before the error.

    Errors of the machine (out of memory, a disk that fails) pass unchanged.
    """
    try:
        yield
    except PenstockError:  # some are OSErrors or ValueErrors
        raise
    except errors as error:
        if is_machine_fault(error):
            raise
        raise Corrupt(
            f"{what}: {error}; restore it from a mirror", what="table", given=type(error).__name__
        ) from error


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
        body = {
            "path": self.path,
            "nbytes": self.nbytes,
            "sha256": self.sha256,
            "n_rows": self.n_rows,
        }
        if self.footer_sha256:
            body["footer_sha256"] = self.footer_sha256
        return body

    @staticmethod
    def from_json(body: dict[str, Any]) -> "TableFile":
        return TableFile(
            path=body["path"],
            nbytes=body["nbytes"],
            sha256=body["sha256"],
            n_rows=body["n_rows"],
            footer_sha256=body.get("footer_sha256", ""),
        )


def table_bytes(
    table: pa.Table,
    kind: str,
    *,
    row_group_rows: int = ROW_GROUP_ROWS,
    facts: Mapping[str, str] | None = None,
    compression: str = "zstd",
    **options: Any,
) -> bytes:
    """Return the table as Parquet (page checksums), with `kind` and the schema version in its metadata."""
    sink = io.BytesIO()
    metadata = _schema_metadata(kind, facts)
    pq.write_table(
        table.replace_schema_metadata(metadata),
        sink,
        row_group_size=row_group_rows,
        compression=compression,
        write_page_checksum=True,
        store_schema=True,  # Parquet's own types lack some of Arrow's, such as durations
        **options,
    )
    return sink.getvalue()


def _schema_metadata(kind: str, facts: Mapping[str, str] | None) -> dict[str, str]:
    named = {
        "table": kind,
        "schema": str(SCHEMA_VERSION),
        **(facts or {}),
    }
    return {f"penstock.{name}": value for name, value in named.items()}


def put_table(
    store: Store,
    path: str,
    table: pa.Table,
    kind: str,
    row_group_rows: int = ROW_GROUP_ROWS,
) -> TableFile:
    data, footer_sha256 = _encode_table(table, kind, row_group_rows)
    file = put_bytes(store, path, data, table.num_rows)
    return replace(file, footer_sha256=footer_sha256)


def put_named_table(
    store: Store,
    prefix: str,
    table: pa.Table,
    kind: str,
    row_group_rows: int = ROW_GROUP_ROWS,
) -> TableFile:
    data, footer_sha256 = _encode_table(table, kind, row_group_rows)
    file = put_named(store, prefix, kind, data, table.num_rows)
    return replace(file, footer_sha256=footer_sha256)


def _encode_table(
    table: pa.Table,
    kind: str,
    row_group_rows: int,
) -> tuple[bytes, str]:
    """Return (the table's bytes, its footer's SHA-256, or "" for a table that is always read whole)."""
    if not kind.startswith(SAMPLES) or table.num_rows < HASHED_FROM_ROWS:
        data = table_bytes(table, kind, row_group_rows=row_group_rows)
        return data, ""
    data = hashed_table_bytes(table, kind, row_group_rows=row_group_rows)
    return data, footer_sha256(data)


def footer_sha256(data: bytes) -> str:
    footer_start = len(data) - footer_nbytes(data)
    return hashlib.sha256(data[footer_start:]).hexdigest()


def put_named(
    store: Store,
    prefix: str,
    kind: str,
    data: bytes,
    n_rows: int,
) -> TableFile:
    # Named by its content: a repeated write of the same table meets the same name.
    sha256 = hashlib.sha256(data).hexdigest()
    path = f"{prefix}/{kind}-{sha256[:16]}.parquet"
    return put_bytes(store, path, data, n_rows)


def put_bytes(
    store: Store,
    path: str,
    data: bytes,
    n_rows: int,
) -> TableFile:
    store.put_if_absent(path, data)
    return TableFile(
        path=path,
        nbytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        n_rows=n_rows,
    )


def get_table_bytes(store: Objects, file: TableFile) -> bytes:
    """Return the file's bytes. Raises: Corrupt if size or SHA-256 is wrong twice."""
    return retry_corrupt(partial(_table_bytes, store, file))


def _table_bytes(store: Objects, file: TableFile) -> bytes:
    data = store.get(file.path).data
    sha256 = hashlib.sha256(data).hexdigest()
    if len(data) != file.nbytes or sha256 != file.sha256:
        where = f"{store.url}/{file.path}"
        message = (
            f"{where}: {len(data)} bytes with sha256 {sha256}; in the manifest {file.nbytes} bytes "
            f"with sha256 {file.sha256}. The file was replaced or damaged: restore it from a mirror"
        )
        raise Corrupt(message, what="sha256", where=where, given=sha256, accepted=file.sha256)
    return data


def get_table(store: Objects, file: TableFile, columns: list[str] | None = None) -> pa.Table:
    data = get_table_bytes(store, file)
    return parse_table(data, f"{store.url}/{file.path}", columns)


def get_tables(
    store: Store,
    files: Sequence[TableFile],
    columns: list[str] | None = None,
    read: Callable[[Store, TableFile], pa.Table] | None = None,
) -> Iterator[pa.Table]:
    """Yield the tables of some files. read: reads one; None is `get_table` with the columns."""
    read_one = partial(read or partial(get_table, columns=columns), store)
    if len(files) < 2:
        yield from map(read_one, files)  # starting a thread costs more than it saves
        return
    n_threads = min(len(files), READ_AHEAD)
    with DaemonPool(n_threads, "penstock-table") as pool:
        # `pool.map` over all files would fetch them all, however slowly the caller takes them.
        for start in range(0, len(files), READ_AHEAD):
            batch = files[start : start + READ_AHEAD]
            yield from pool.map(read_one, batch)


def parse_table(
    data: bytes,
    name: str,
    columns: list[str] | Callable[[pq.FileMetaData], list[str]] | None = None,
) -> pa.Table:
    """Return a table. columns: names, or a function that names them by the file's footer; None for all."""
    try:
        # Python's own BytesIO takes the interpreter's lock for each read.
        reader = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True, pre_buffer=False)
        footer = reader.metadata
        check_schema_version(pa.schema([], footer.metadata), name)  # 20 us faster than the whole schema
        names = columns(footer) if callable(columns) else columns
        return reader.read(columns=names, use_threads=False)
    except FormatTooNew:
        raise
    except UNREADABLE as error:
        if is_machine_fault(error):
            raise
        text = f"{name} is not a readable Parquet file: {error}"
        raise Corrupt(text, what="table", where=name, given=str(error)) from error


def parse_stored(
    data: bytes,
    path: str,
    name: str,
) -> pa.Table:
    """Return the table as `parse_table` does; Corrupt if its fact `path` names another path.

    Older tables lack this fact.
    """
    table = parse_table(data, name)
    written_as = (table.schema.metadata or {}).get(b"penstock.path")
    if written_as is not None and written_as != path.encode():
        first = written_as.decode(errors="replace")
        problem = "so it belongs elsewhere: it was exchanged, renamed or damaged. Delete it to rebuild it"
        message = f"{name} was written as {first}, {problem}"
        raise Corrupt(message, what="path", where=name, given=first, accepted=path)
    return table


def table_facts(table: pa.Table) -> dict[str, str]:
    prefix = "penstock."
    facts = {}
    for key, value in (table.schema.metadata or {}).items():
        name = key.decode(errors="replace")  # what was damaged then differs from what its reader expects
        if name.startswith(prefix):
            facts[name.removeprefix(prefix)] = value.decode(errors="replace")
    return facts


def check_schema_version(schema: pa.Schema, name: str) -> None:
    """Raise FormatTooNew if a newer penstock wrote the table."""
    metadata = schema.metadata or {}
    version = int(metadata.get(b"penstock.schema", b"0"))
    if version > SCHEMA_VERSION:
        message = f"{name} has table schema {version}; this penstock reads up to {SCHEMA_VERSION}. "
        message += "Upgrade penstock-data (docs/install.md)"
        raise FormatTooNew(message, what="table schema", where=name, given=version, accepted=SCHEMA_VERSION)


MAGIC_BYTES = 4
_GROUPS = "penstock.row_groups_sha256"
_FRONT = "penstock.front_sha256"
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


def hashed_table_bytes(
    table: pa.Table,
    kind: str,
    *,
    row_group_rows: int,
    **how: Any,
) -> bytes:
    """Return the table's bytes with front and hashes. how: as for `hashed_bytes`."""
    first_rows = range(0, table.num_rows, row_group_rows)
    groups = (table.slice(first_row, row_group_rows) for first_row in first_rows)
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
    schema = schema.with_metadata(_schema_metadata(kind, facts))
    hashes: list[str] = []
    out = io.BytesIO()
    sink = pa.PythonFile(out, mode="w")  # it counts all bytes written, including the front
    with pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        write_page_checksum=True,
        store_schema=True,
        **options,
    ) as writer:
        sink.write(front)  # after the writer's own PAR1, before the first row group
        for group in groups:
            start = out.tell()
            if group.schema != schema:
                group = group.cast(schema)
            writer.write_table(group, row_group_size=group.num_rows)
            group_bytes = out.getbuffer()[start:]
            hashes.append(hashlib.sha256(group_bytes).hexdigest())
            group_bytes.release()  # with a view of it, BytesIO does not grow
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
    row_groups = facts[_GROUPS.encode()].decode().split()
    front = facts[_FRONT.encode()].decode()
    front_nbytes = int(facts[_FRONT_NBYTES.encode()])
    # Each row group has a hash, so that readers may index them by its number.
    if len(row_groups) != metadata.num_row_groups:
        raise ValueError(f"{len(row_groups)} hashes of {metadata.num_row_groups} row groups")
    return PartHashes(
        row_groups=tuple(row_groups),
        front=front,
        front_nbytes=front_nbytes,
    )
