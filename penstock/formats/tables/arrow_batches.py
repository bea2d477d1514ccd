"""Arrow IPC, files and streams, read where they lie: a value is a run of bytes in a buffer of its record batch.

Arrow reads the object and checks it. Its buffers are views of the bytes that it was given, so that a value's address
says where it lies. Each value is held against the bytes there: a field is that of an import, or it is refused.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from loader.dataset.columnar.arrow_columns import Row, RowValue, TableRows
from loader.dataset.columnar.choices import Options
from loader.dataset.columnar.column_agreement import ColumnAgreement
from loader.dataset.columnar.column_names import duplicate_key, without_field
from loader.dataset.columnar.features import check_labels, features_of
from loader.dataset.columnar.plain_values import is_bytes, is_list, is_media, is_text, plain_type
from loader.dataset.columnar.record_batches import MAGIC, record_batches
from loader.dataset.shards.shard import crc32c
from loader.errors import InvalidSample, InvalidStore
from loader.storage import ObjectInfo, Span, Store

from ..reading.object_file import ObjectFile, opened
from ..reading.sample import ForeignSample, Found


def look(store: Store, infos: list[ObjectInfo], options: Options) -> Found:
    """Return the objects `*.arrow`. Class names are the first one's. Raises: Corrupt; StoreError."""
    tables, labels = [info for info in infos if info.key.lower().endswith(".arrow")], None
    for info in tables[:1]:
        with opened(store, info) as file:
            labels = features_of(_batches(_Reads(file))[0]).labels
    agreed = ColumnAgreement()

    def samples(info: ObjectInfo) -> Iterator[ForeignSample]:
        with opened(store, info) as file:
            yield from _samples(info, _Reads(file), options, labels, agreed)

    return Found(tables, samples, labels=labels, columns=agreed)


class _Reads:
    """An object as Arrow reads it, with what was read since the last batch."""

    def __init__(self, file: ObjectFile) -> None:
        self._file = file
        self._kept: list[tuple[int, int, bytes]] = []  # address, place in the object, bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, nbytes: int = -1) -> bytes:
        """Return so many bytes, and keep them."""
        at, data = self._file.tell(), self._file.read(nbytes)
        self._kept.append((pa.py_buffer(data).address, at, data))
        return data

    def find(self, low: int, high: int) -> tuple[int, memoryview] | None:
        """Return place in the object and bytes of what lies between two addresses; None where nothing read does."""
        for start, at, data in self._kept:
            if start <= low <= high <= start + len(data):
                return at + low - start, memoryview(data)[low - start : high - start]
        return None

    def forget(self) -> None:
        """Keep nothing any longer: the buffers that are views of it have been looked up."""
        self._kept.clear()


class _Values(NamedTuple):
    """The values of a column, one behind the other."""

    offset: int
    """First byte in the object."""
    data: memoryview
    """Their bytes."""
    edges: list[int]
    """First byte of each value in `data`, and that behind the last."""


def _batches(reads: _Reads) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    begin = reads.read(len(MAGIC))
    reads.seek(0)
    return record_batches(pa.PythonFile(reads, "r"), begin, reads.path)


def _samples(
    info: ObjectInfo,
    reads: _Reads,
    options: Options,
    labels: list[str] | None,
    agreed: ColumnAgreement,
) -> Iterator[ForeignSample]:
    """Yield the samples, in order. Raises: InvalidSample with the row; InvalidStore; Corrupt; Changed; StoreError."""
    schema, batches = _batches(reads)
    features = features_of(schema)
    check_labels(info.key, features.labels, labels)
    rows, first, keys = TableRows(schema, features, options, info.key), 0, set[str]()
    agreed.check(info.key, rows.columns)
    for batch in batches:
        batch.validate(full=True)
        columns = {name: _values(reads, batch.column(name), info) for name in rows.field_columns}
        reads.forget()
        for at, row in enumerate(rows.rows(batch, first)):
            if rows.has_keys:
                if row.key in keys:
                    raise duplicate_key(row.key, info.key)
                keys.add(row.key)
            yield _sample(row, at, columns, options, info)
        first += batch.num_rows


def _sample(
    row: Row, at: int, columns: dict[str, _Values | None], options: Options, info: ObjectInfo
) -> ForeignSample:
    told, fields = row.sample, dict[str, Span]()
    for one in row.values:
        if one.column.kind == "field":
            fields[one.name] = _place(one, at, columns[one.column.column], row.where)
    if not fields.keys() - options.without:
        raise without_field(info.key, row.key, told.metadata)
    crcs = {name: crc32c(value) for name, value in told.fields.items()}
    return ForeignSample(row.key, fields, told.metadata, told.source, crcs)


def _place(made: RowValue, at: int, values: _Values | None, where: str) -> Span:
    """Return the place of a field's bytes. Raises: InvalidSample where they are not in the object as they are."""
    if not made.value:
        return Span(0, 0)
    if values is not None:
        low, high = values.edges[at : at + 2]
        if values.data[low:high] == made.value:
            return Span(values.offset + low, high - low)
    raise InvalidSample(
        f"{where}: the bytes of the field {made.name!r}, of column {made.column.column!r}, do not lie in the file as "
        f"they are: leave it out (--without {'cls' if made.name == 'cls' else made.column.column}), or copy the table: "
        "penstock import arrow"
    )


def _values(reads: _Reads, array: pa.Array, info: ObjectInfo) -> _Values | None:
    """Return the values of a column; None of a kind that has no bytes of its own. Raises: InvalidStore."""
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if is_media(array.type):
        array = array.field("bytes")
    found = _edges(array)
    if found is None or not found[1][-1] > found[1][0]:
        return None
    buffer, edges = found
    place = reads.find(buffer.address + int(edges[0]), buffer.address + int(edges[-1]))
    if place is None:
        raise InvalidStore(
            f"{info.key} is compressed, or of another byte order, so that no value can be read by itself: "
            "penstock import arrow copies its samples"
        )
    return _Values(*place, (edges - edges[0]).tolist())


def _edges(array: pa.Array) -> tuple[pa.Buffer, np.ndarray[Any, np.dtype[np.int64]]] | None:
    """Return the buffer of an array's values, and int64 [rows + 1]: the byte where each begins, or the last ends."""
    kind, width, inner = array.type, 1, array
    if plain_type(kind) != kind:  # views have no edges
        return None
    if is_list(kind):
        if not (pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type)):
            return None
        width, inner = kind.value_type.bit_width // 8, array.values
    edges = np.arange(array.offset, array.offset + len(array) + 1)
    if pa.types.is_fixed_size_binary(kind):
        edges *= kind.byte_width
    elif pa.types.is_fixed_size_list(kind):
        edges *= kind.list_size
    elif is_list(kind) or is_bytes(kind) or is_text(kind):
        wide = (
            pa.types.is_large_binary(kind) or pa.types.is_large_string(kind) or pa.types.is_large_list(kind)
        )
        offsets = array.buffers()[1]
        if not len(array) or offsets is None:
            return None
        size = 8 if wide else 4
        edges = np.frombuffer(offsets, f"<i{size}", len(edges), size * array.offset).astype(np.int64)
    else:
        return None
    buffer = inner.buffers()[-1]
    return None if buffer is None else (buffer, edges * width)
