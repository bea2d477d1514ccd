"""Parquet: each row is a sample, read one row group at a time.

Registering reads all rows once, because footers give no names, sizes and checksums of fields: nulls are absent fields,
and extensions follow from first bytes.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from loader.dataset.columnar.arrow_columns import Row, TableRows
from loader.dataset.columnar.choices import ColumnarOptions, SchemaFacts, check_labels, features_of
from loader.dataset.columnar.column_agreement import ColumnAgreement
from loader.dataset.columnar.column_names import duplicate_key, without_field
from loader.dataset.columnar.parquet_chunks import Chunks, check_row_group, row_group_reader, rows_at_once
from loader.dataset.columnar.plain_values import inner_dtype, plain_type
from loader.dataset.shards.shard import crc32c
from loader.dataset.tables.parquet import footer_nbytes
from loader.errors import InvalidSample
from loader.storage import ByteRange, ObjectInfo, Store

from ..importer import ImportRun, Readable, ReadSample, of_first_readable
from ..reading.object_file import ObjectFile, opened
from ..reading.sample import ForeignSample, FoundObjects

MOST_CHUNK_BYTES = 256 * 2**20
"""Largest decoded chunk, in bytes; reading one sample decodes all of it."""

SplitOf = Callable[[str], str]
"""Object key -> split, or ""."""


def find_objects(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> FoundObjects:
    """Return the `*.parquet` objects, with the first one's class names."""
    return objects_with_splits(store, infos, options, lambda key: "")


def objects_with_splits(
    store: Store, infos: list[ObjectInfo], options: ColumnarOptions, split_of: SplitOf
) -> FoundObjects:
    tables, labels = [info for info in infos if info.key.lower().endswith(".parquet")], None
    declared = False
    for info in tables[:1]:
        with opened(store, info) as file:
            schema = pq.read_metadata(pa.PythonFile(file, "r")).schema.to_arrow_schema()
            labels = features_of(schema).labels
            declared = any(
                options.fields.get(one.name) == "npy" and inner_dtype(plain_type(one.type)) for one in schema
            )
    options = options._replace(declared_widths=declared)
    chunks: dict[str, Chunks] = {}
    agreed = ColumnAgreement()

    def samples(info: ObjectInfo) -> Iterator[ForeignSample]:
        with opened(store, info) as file:
            walk = _TableWalk(info, file, options, labels, split_of(info.key))
            agreed.check(info.key, walk.table.columns)
            yield from walk.samples()
            chunks[info.key] = walk.chunks()

    return FoundObjects(tables, samples, chunks, labels, columns=agreed, declared_widths=declared)


class _FieldPlace(NamedTuple):
    column: int
    offset: int
    nbytes: int
    crc: int


class _TableWalk:
    def __init__(
        self,
        info: ObjectInfo,
        file: ObjectFile,
        options: ColumnarOptions,
        labels: list[str] | None,
        split: str,
    ) -> None:
        self._info, self._file, self._options = info, file, options
        self._footer = pq.read_metadata(pa.PythonFile(file, "r"))
        schema = self._footer.schema.to_arrow_schema()
        features = features_of(schema)
        check_labels(info.key, features.labels, labels)
        self.table = TableRows(schema, features, options, info.key)
        self._columns = self.table.field_columns
        self._starts = [0]
        self._keys: set[str] = set()
        self._source: Mapping[str, str] = {"split": split} if split else {}
        self._reader = row_group_reader(pa.PythonFile(file, "r"), self._footer, schema, info.key)

    def samples(self) -> Iterator[ForeignSample]:
        row = 0
        for at in range(self._footer.num_row_groups):
            group = check_row_group(self._footer, at, self._info)
            nbytes, rows_there = [0] * len(self._columns), list[tuple[Row, dict[str, _FieldPlace]]]()
            for batch in self._reader.iter_batches(
                rows_at_once(group), row_groups=[at], columns=self.table.columns_read, use_threads=False
            ):
                for table_row in self.table.rows(batch, row):
                    rows_there.append((self._bare(table_row), self._values(table_row, nbytes)))
                row += batch.num_rows
            first = self._end_group(at, nbytes)
            yield from (self._sample(one, values, first) for one, values in rows_there)

    def chunks(self) -> Chunks:
        size = self._info.nbytes
        self._file.seek(size - 8)
        nbytes = footer_nbytes(self._file.read(8))
        self._file.seek(size - nbytes)
        return Chunks(nbytes, crc32c(self._file.read(nbytes)), tuple(self._columns), tuple(self._starts))

    def _values(self, row: Row, nbytes: list[int]) -> dict[str, _FieldPlace]:
        fields, sample = dict[str, _FieldPlace](), row.sample
        for value in row.values:
            if value.column.kind == "field":
                at = self._columns.index(value.column.column)
                fields[value.name] = _FieldPlace(at, nbytes[at], len(value.value), crc32c(value.value))
                nbytes[at] += len(value.value)
        if not any(name not in self._options.without for name in fields):
            raise without_field(self._info.key, row.key, sample.metadata)
        if self.table.has_keys:
            if row.key in self._keys:
                raise duplicate_key(row.key, self._info.key)
            self._keys.add(row.key)
        return fields

    def _bare(self, row: Row) -> Row:
        return row._replace(values=[one for one in row.values if one.column.kind != "field"])

    def _end_group(self, at: int, nbytes: list[int]) -> list[int]:
        first = []
        for column, size in zip(self._columns, nbytes, strict=True):
            if size > MOST_CHUNK_BYTES:
                raise InvalidSample(
                    f"{self._info.key}, row group {at}: column {column!r} decodes to {size:,} bytes, and a chunk is "
                    f"decoded whole; at most {MOST_CHUNK_BYTES:,} are read in place. Write the table again with fewer "
                    "rows in a row group, or import it: penstock import"
                )
            first.append(self._starts[-1])
            self._starts.append(self._starts[-1] + size)
        return first

    def _sample(self, row: Row, values: Mapping[str, _FieldPlace], first: list[int]) -> ForeignSample:
        sample = row.sample
        fields = {name: ByteRange(first[one.column] + one.offset, one.nbytes) for name, one in values.items()}
        crcs: dict[str, Any] = {name: one.crc for name, one in values.items()}
        return ForeignSample(row.key, fields, sample.metadata, {**self._source, **sample.source}, crcs)


OPTIONS = frozenset({"key", "fields"})
RUN_BYTES = 64 * 2**20
"""Approximate bytes of a run, unless one row group is larger."""


def find_readable(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> Readable:
    """Return the `*.parquet` objects, with the first readable one's class names."""
    return tables(store, [info for info in infos if info.key.lower().endswith(".parquet")], options)


def tables(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> Readable:
    labels = of_first_readable(infos, partial(_labels, store))
    agreed = ColumnAgreement()
    return Readable(
        infos,
        partial(_runs, store, options, labels, agreed),
        partial(_samples, store, options),
        labels,
        columns=agreed,
    )


def _labels(store: Store, info: ObjectInfo) -> list[str] | None:
    with _file(store, info) as (_, _, features):
        return features.labels


def _runs(
    store: Store,
    options: ColumnarOptions,
    labels: list[str] | None,
    agreed: ColumnAgreement,
    info: ObjectInfo,
) -> list[ImportRun]:
    with _file(store, info) as (metadata, schema, features):
        check_labels(info.key, features.labels, labels)
        agreed.check(info.key, TableRows(schema, features, options, info.key).columns)
        out, first, nbytes = list[ImportRun](), 0, 0
        for at in range(metadata.num_row_groups):
            group = check_row_group(metadata, at, info)
            nbytes += group.total_byte_size
            if nbytes >= RUN_BYTES or at == metadata.num_row_groups - 1:
                out.append(ImportRun(info, first, at + 1, nbytes))
                first, nbytes = at + 1, 0
    return out


def _samples(store: Store, options: ColumnarOptions, run: ImportRun) -> Iterator[ReadSample]:
    with opened(store, run.info) as file:
        footer = pq.read_metadata(pa.PythonFile(file, "r"))
        schema = footer.schema.to_arrow_schema()
        reader = row_group_reader(pa.PythonFile(file, "r"), footer, schema, run.info.key)
        rows = TableRows(schema, features_of(schema), options, run.info.key)
        row = sum(footer.row_group(at).num_rows for at in range(run.first))
        for at in range(run.first, run.stop):
            group = footer.row_group(at)
            each = rows_at_once(group)
            for batch in reader.iter_batches(
                each, row_groups=[at], columns=rows.columns_read, use_threads=False
            ):
                yield from rows.samples(batch, row)
                row += batch.num_rows


@contextmanager
def _file(store: Store, info: ObjectInfo) -> Iterator[tuple[Any, pa.Schema, SchemaFacts]]:
    with opened(store, info) as file:
        metadata = pq.read_metadata(pa.PythonFile(file, "r"))
        schema = metadata.schema.to_arrow_schema()
        yield metadata, schema, features_of(schema)
