"""Arrow IPC files and streams: each row is a sample, read one record batch at a time.

Arrow's buffers are views of the bytes that it read, so a registered value's memory address gives its offset. Each value
is compared with the bytes there.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from loader.dataset.columnar.arrow_columns import Row, RowValue, TableRows
from loader.dataset.columnar.choices import ColumnarOptions, check_labels, schema_features
from loader.dataset.columnar.column_agreement import ColumnAgreement
from loader.dataset.columnar.column_names import duplicate_key, without_field
from loader.dataset.columnar.plain_values import is_bytes, is_list, is_media, is_text, plain_type
from loader.dataset.columnar.record_batches import MAGIC, record_batches
from loader.dataset.shards.shard import crc32c
from loader.errors import InvalidSample, InvalidStore
from loader.storage import ByteRange, ObjectInfo, Store

from ..importer import ImportRun, Readable, ReadSample, of_first_readable
from ..reading.object_file import ObjectFile, open_object
from ..reading.sample import ForeignSample, FoundObjects


def find_objects(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> FoundObjects:
    """Return the `*.arrow` objects, with the first one's class names."""
    tables = [info for info in infos if info.key.lower().endswith(".arrow")]
    labels = None
    # The first object's only: the others are compared with them as they are read.
    for info in tables[:1]:
        with open_object(store, info) as file:
            labels = schema_features(_batches(_Reads(file))[0]).labels
    agreed = ColumnAgreement()

    def samples(info: ObjectInfo) -> Iterator[ForeignSample]:
        with open_object(store, info) as file:
            yield from _samples(info, _Reads(file), options, labels, agreed)

    return FoundObjects(tables, samples, labels=labels, columns=agreed)


class _Reads:
    """A file that finds which of its bytes an Arrow buffer views."""

    def __init__(self, file: ObjectFile) -> None:
        self._file = file
        self._kept: list[tuple[int, int, bytes]] = []  # address, offset in the object, bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, nbytes: int = -1) -> bytes:
        at = self._file.tell()
        data = self._file.read(nbytes)
        # With the bytes: an address identifies them only while they live.
        self._kept.append((pa.py_buffer(data).address, at, data))
        return data

    def find(self, low: int, high: int) -> tuple[int, memoryview] | None:
        """Return (offset, bytes) between two addresses; None if not read."""
        for start, at, data in self._kept:
            if start <= low <= high <= start + len(data):
                return at + low - start, memoryview(data)[low - start : high - start]
        return None

    def forget(self) -> None:
        self._kept.clear()


class _Values(NamedTuple):
    """The bytes of one column of a batch."""

    offset: int
    """First byte in the object."""
    data: memoryview
    edges: list[int]
    """Values' starts in `data`, and the last's end."""


def _batches(reads: "ObjectFile | _Reads") -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    begin = reads.read(len(MAGIC))
    reads.seek(0)
    return record_batches(pa.PythonFile(reads, "r"), begin, reads.path)


def _samples(
    info: ObjectInfo,
    reads: _Reads,
    options: ColumnarOptions,
    labels: list[str] | None,
    agreed: ColumnAgreement,
) -> Iterator[ForeignSample]:
    schema, batches = _batches(reads)
    features = schema_features(schema)
    check_labels(info.key, features.labels, labels)
    rows = TableRows(schema, features, options, info.key)
    first = 0
    keys = set[str]()
    agreed.check(info.key, rows.columns)
    for batch in batches:
        # A damaged offset would make Arrow read outside of its buffer.
        batch.validate(full=True)
        columns = {name: _values(reads, batch.column(name), info) for name in rows.field_columns}
        # The batch keeps the bytes that its buffers view.
        reads.forget()
        for number, row in enumerate(rows.rows(batch, first)):
            if rows.has_keys:
                if row.key in keys:
                    raise duplicate_key(row.key, info.key)
                keys.add(row.key)
            yield _sample(row, number, columns, options, info)
        first += batch.num_rows


def _sample(
    row: Row, number: int, columns: dict[str, _Values | None], options: ColumnarOptions, info: ObjectInfo
) -> ForeignSample:
    """Return a row as a registered sample. number: of the row in its batch."""
    sample = row.sample
    fields = dict[str, ByteRange]()
    for value in row.values:
        if value.column.kind == "field":
            fields[value.name] = _place(value, number, columns[value.column.column], row.where)
    if not fields.keys() - options.without:
        raise without_field(info.key, row.key, sample.metadata)
    crcs = {name: crc32c(value) for name, value in sample.fields.items()}
    return ForeignSample(row.key, fields, sample.metadata, sample.source, crcs)


def _place(value: RowValue, number: int, values: _Values | None, where: str) -> ByteRange:
    """Return where a field's bytes lie in the object. number: of the row in its batch."""
    if not value.value:
        return ByteRange(0, 0)
    if values is not None:
        low, high = values.edges[number : number + 2]
        # The value may have been converted on its way.
        if values.data[low:high] == value.value:
            return ByteRange(values.offset + low, high - low)
    # The field of class numbers is `cls`, whatever its column is called.
    option = value.column.column
    if value.name == "cls":
        option = "cls"
    raise InvalidSample(
        f"{where}: the bytes of the field {value.name!r}, of column {value.column.column!r}, are not in the file "
        f"unchanged: leave it out (--without {option}), or copy the table: penstock import arrow",
        what=value.name,
        where=where,
        given=value.column.column,
        accepted="bytes that are in the file unchanged",
    )


def _values(reads: _Reads, array: pa.Array, info: ObjectInfo) -> _Values | None:
    """Return a column's bytes in the object; None if it has none, or no value of it lies there unchanged."""
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if is_media(array.type):
        array = array.field("bytes")
    buffer_edges = _edges(array)
    if buffer_edges is None or not buffer_edges[1][-1] > buffer_edges[1][0]:
        return None
    buffer, edges = buffer_edges
    place = reads.find(buffer.address + int(edges[0]), buffer.address + int(edges[-1]))
    if place is None:
        raise InvalidStore(
            f"{info.key} is compressed, or of another byte order, so that no value can be read by itself: "
            "penstock import arrow copies its samples",
            what="values",
            where=info.key,
            accepted="values without compression, in this byte order",
        )
    return _Values(*place, (edges - edges[0]).tolist())


def _edges(array: pa.Array) -> tuple[pa.Buffer, np.ndarray[Any, np.dtype[np.int64]]] | None:
    """Return the buffer of values, and their starts and the last's end: int64 [rows + 1]."""
    kind = array.type
    width = 1
    inner = array
    if plain_type(kind) != kind:  # views have no offsets
        return None
    if is_list(kind):
        if not (pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type)):
            return None
        width = kind.value_type.bit_width // 8
        inner = array.values
    # int64 [rows + 1].
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
    if buffer is None:
        return None
    return (buffer, edges * width)


OPTIONS = frozenset({"key", "fields"})


def find_readable(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> Readable:
    """Return the `*.arrow` objects, with the first readable one's class names."""
    return batches(store, [info for info in infos if info.key.lower().endswith(".arrow")], options)


def batches(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> Readable:
    """Return the objects, one run each."""
    labels = of_first_readable(infos, partial(_labels, store))
    agreed = ColumnAgreement()
    return Readable(
        infos,
        lambda info: [ImportRun(info, nbytes=info.nbytes)],
        partial(_read_samples, store, options, labels, agreed),
        labels,
        columns=agreed,
    )


def _labels(store: Store, info: ObjectInfo) -> list[str] | None:
    with open_object(store, info) as file:
        return schema_features(_batches(file)[0]).labels


def _read_samples(
    store: Store, options: ColumnarOptions, labels: list[str] | None, agreed: ColumnAgreement, run: ImportRun
) -> Iterator[ReadSample]:
    with open_object(store, run.info) as file:
        schema, batches = _batches(file)
        features = schema_features(schema)
        check_labels(run.info.key, features.labels, labels)
        rows = TableRows(schema, features, options, run.info.key)
        row = 0
        agreed.check(run.info.key, rows.columns)
        for batch in batches:
            batch.validate(full=True)
            yield from rows.samples(batch, row)
            row += batch.num_rows
