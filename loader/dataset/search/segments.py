"""Segments: values derived from rows of parts, stored beside the versions under `search/` and `maps/`.

    <folder><txn>-<16 hex>.<kind>.parquet    part, row, and value columns; a null is a row without a value

A segment holds whole parts, rows ascending. Its footer has `penstock.sources`: JSON [part, source, rows] for each
part, where the source is the path of the index from which the values were derived. A part that was written again has
another source, so its old values are ignored. `penstock.sha256` is the digest of sources and columns; its first 16
digits are in the name, after the transaction of the first part. Segments are created once and never believed: one
that differs from its digest, name, parts or rows is `Corrupt`. Readers leave it out by name, and makers replace it.
"""

import hashlib
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import AlreadyExists
from ...storage import Store
from ...storage.store import ObjectInfo
from ..log.entries import canonical
from ..tables.arrow_values import without_nulls
from ..tables.parquet import SCHEMA_VERSION, Int64s, integers, string_array, take_rows

if TYPE_CHECKING:
    from ..reading.sample_places import VersionData

MAX_SEGMENT_ROWS = 131_072
"""Most rows of a new segment: 64 MiB of codes of 512 numbers. A part with more is a segment by itself.

Making one takes five times its bytes.
"""
MAX_SEGMENT_PARTS = 20_000
"""Most parts of a segment: 3 MB of footer."""
MERGE_AT = 16
"""Segments below `MAX_SEGMENT_ROWS` that are merged."""
_NAME = re.compile(r"(?P<txn>[A-Za-z0-9][A-Za-z0-9._-]*)-(?P<digest>[0-9a-f]{16})")
_SOURCE = re.compile(r"data/(?P<txn>[A-Za-z0-9][A-Za-z0-9._-]*)/[^/]+/[^/]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentKind:
    """Name and value columns of a kind of segments."""

    name: str
    """Part of the file names, such as `codes`; "" for none."""
    columns: pa.Schema
    """Value columns: numbers, fixed-size binary, or text."""
    most_value_bytes: int
    """Most bytes of a row's values, on average over a segment."""

    @property
    def ending(self) -> str:
        if not self.name:
            return ".parquet"
        return f".{self.name}.parquet"


class SegmentPart(NamedTuple):
    """A part of a segment."""

    part: str
    """Part id."""
    source: str
    """Path of the index from which the part's values were derived."""
    n_rows: int
    """Rows of the part, excluded ones too."""


class VersionPart(NamedTuple):
    """A part of a version, as segments name it."""

    own: SegmentPart
    position: int
    """Number of the part in the version's order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSegment:
    """A segment that was read and checked."""

    path: str
    """Path in the root."""
    parts: tuple[SegmentPart, ...]
    """Parts, in the order of their rows."""
    values: pa.Table
    """Value columns, one row per row of the parts."""

    @property
    def starts(self) -> Int64s:
        """int64 [parts + 1]: first row of each part in `values`, then the number of rows."""
        return part_starts(self.parts)


def part_starts(parts: Sequence[SegmentPart]) -> Int64s:
    """Return int64 [parts + 1]: first row of each part in its segment, then the number of rows."""
    starts = np.zeros(len(parts) + 1, np.int64)
    n_rows = [part.n_rows for part in parts]
    np.cumsum(n_rows, dtype=np.int64, out=starts[1:])
    return starts


def version_parts(version: "VersionData", field: str) -> list[VersionPart]:
    """Return the parts of a version that have a field, in its order. Raises: FieldNotFound."""
    group = version.group_of(field)
    parts = version.parts
    table = parts.shard_rows()
    if len(parts.groups) > 1:
        import pyarrow.compute as pc  # 40 ms, saved at startup

        (name,) = string_array([group])
        is_of_group = pc.equal(table["group"], name)
        table = table.filter(is_of_group)
    positions = parts.positions(table["part"])
    rows = zip(
        table["part"].to_pylist(),
        table["index_path"].to_pylist(),
        table["n_rows"].to_pylist(),
        strict=True,
    )
    listed = []
    for position, row in zip(
        positions.tolist(),
        rows,
        strict=True,
    ):
        own = SegmentPart(*row)
        listed.append(VersionPart(own, position))
    listed.sort(key=_position)
    return listed


def _position(part: VersionPart) -> int:
    return part.position


def segment_bytes(
    folder: str,
    kind: SegmentKind,
    parts: Sequence[SegmentPart],
    values: pa.Table,
) -> tuple[str, memoryview]:
    """Return (path, bytes) of a segment. folder: such as `search/<how>/`. values: the kind's columns, one row per row.

    Equal values have equal bytes, in every process. Raises: ValueError for parts without a transaction.
    """
    values = values.select(kind.columns.names).cast(kind.columns).combine_chunks()
    digest = content_digest(
        kind,
        parts,
        values,
    )
    path = f"{folder}{transaction(parts[0].source)}-{digest[:16]}{kind.ending}"
    table = with_rows(parts, values)
    facts = {
        "table": f"segment-{kind.name or 'values'}",
        "schema": str(SCHEMA_VERSION),
        "path": path,
        "sha256": digest,
        "sources": canonical([list(part) for part in parts]).decode(),
    }
    metadata = {f"penstock.{name}": value for name, value in facts.items()}
    # Codes do not compress: zstd would take longer than reading them.
    compression = dict.fromkeys(table.column_names, "zstd")
    for field in kind.columns:
        if pa.types.is_fixed_size_binary(field.type):
            compression[field.name] = "NONE"
    # Without a copy of each page as Python's bytes; the default pool would keep the memory.
    sink = pa.BufferOutputStream(pa.system_memory_pool())
    pq.write_table(
        table.replace_schema_metadata(metadata),
        sink,
        compression=compression,
        use_dictionary=["part"],
        write_statistics=False,
        write_page_checksum=True,
        store_schema=True,
    )
    return path, memoryview(sink.getvalue())


def put_segment(
    store: Store,
    folder: str,
    kind: SegmentKind,
    parts: Sequence[SegmentPart],
    values: pa.Table,
    damaged: Collection[str] = (),
) -> str:
    """Store a segment and return its path. damaged: paths to replace; an equal segment of another maker stays."""
    path, data = segment_bytes(
        folder,
        kind,
        parts,
        values,
    )
    if path in damaged:
        store.put(path, data)
        return path
    with suppress(AlreadyExists):  # its name is its content
        store.put_if_absent(path, data)
    return path


def transaction(source: str) -> str:
    """Return the transaction that wrote an index. Raises: ValueError for another path."""
    match = _SOURCE.fullmatch(source)
    if match is None:
        raise ValueError(f"{source!r} is not a path of a transaction's object")
    return match["txn"]


def with_rows(parts: Sequence[SegmentPart], values: pa.Table) -> pa.Table:
    """Return a segment's table: part and row before the value columns."""
    n_rows = [part.n_rows for part in parts]
    number = np.repeat(np.arange(len(parts)), n_rows)  # int64 [rows]: number of the row's part
    names = string_array([part.part for part in parts])
    rows = _rows_in_parts(parts)
    row_column = pa.Int64Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows)])
    columns = {
        "part": take_rows(names, number),
        "row": row_column,
    }
    for name in values.column_names:
        columns[name] = values[name]
    return pa.table(columns)


def _rows_in_parts(parts: Sequence[SegmentPart]) -> Int64s:
    """Return int64 [rows]: number of each row in its part."""
    starts = part_starts(parts)
    n_rows = np.diff(starts)
    return np.arange(starts[-1]) - np.repeat(starts[:-1], n_rows)


def content_digest(kind: SegmentKind, parts: Sequence[SegmentPart], values: pa.Table) -> str:
    """Return the sha256 (hex) of sources and value columns. Chunks, and the encoding in a file, do not change it."""
    hasher = hashlib.sha256()
    sources = [list(part) for part in parts]
    hasher.update(canonical([kind.name, sources]))
    # One chunk for each column, or none without rows. Free for the callers, whose columns have one already.
    whole_columns = values.combine_chunks()
    for field in kind.columns:
        for chunk in whole_columns[field.name].chunks:
            for piece in _raw_columns(chunk):
                hasher.update(piece)
    return hasher.hexdigest()


def _raw_columns(column: pa.Array) -> Iterator[Any]:
    """Yield buffers that determine an array's values: validity, lengths of texts, and the values' bytes."""
    import pyarrow.compute as pc  # 40 ms, saved at startup

    yield integers(column.is_valid().cast(pa.int8())).astype(np.int8).tobytes()
    kind = column.type
    if pa.types.is_fixed_size_binary(kind):
        filled = without_nulls(column)
        first = filled.offset * kind.byte_width
        yield filled.buffers()[1][first : first + len(filled) * kind.byte_width]
        return
    if pa.types.is_string(kind):
        filled = without_nulls(column)
        lengths = integers(pc.binary_length(filled))
        yield lengths.tobytes()
        yield _text_data(filled)
        return
    filled = without_nulls(column)
    first = filled.offset * kind.byte_width
    yield filled.buffers()[1][first : first + len(filled) * kind.byte_width]


def _text_data(texts: pa.Array) -> Any:
    data = texts.buffers()[2]
    if data is None or not len(texts):
        return b""
    offsets = np.frombuffer(texts.buffers()[1], np.int32)
    first = int(offsets[texts.offset])
    end = int(offsets[texts.offset + len(texts)])
    return data[first:end]


class SegmentName(NamedTuple):
    txn: str
    """Transaction of the first part."""
    digest: str
    """First 16 hex digits of the content's digest."""


def segment_name(path: str, kind: SegmentKind) -> SegmentName | None:
    """Return transaction and digest of a segment's path; None for another object."""
    _, _, file_name = path.rpartition("/")
    if not file_name.endswith(kind.ending):
        return None
    match = _NAME.fullmatch(file_name.removesuffix(kind.ending))
    if match is None:
        return None
    return SegmentName(match["txn"], match["digest"])


def list_segments(store: Store, folder: str, kind: SegmentKind) -> list[ObjectInfo]:
    """Return the segments of a folder, the largest first. Costs a listing."""
    infos = []
    for info in store.list(folder):
        is_direct = "/" not in info.key.removeprefix(folder)
        if is_direct and segment_name(info.key, kind) is not None:
            infos.append(info)
    infos.sort(key=_size_and_key)
    return infos


def _size_and_key(info: ObjectInfo) -> tuple[int, str]:
    return -info.nbytes, info.key
