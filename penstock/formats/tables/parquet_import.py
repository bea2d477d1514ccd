"""Import Parquet: each row is a sample, read one row group at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from loader.dataset.columnar.arrow_columns import TableRows
from loader.dataset.columnar.choices import SchemaFacts, check_labels, features_of
from loader.dataset.columnar.column_agreement import ColumnAgreement
from loader.dataset.columnar.parquet_chunks import check_row_group, row_group_reader, rows_at_once
from loader.storage import ObjectInfo, Store

from ..importing.importer import ColumnarOptions, ImportRun, Readable, ReadSample, of_first_readable
from ..reading.object_file import opened

OPTIONS = frozenset({"key", "fields"})
RUN_BYTES = 64 * 2**20
"""Approximate size of a run, in bytes, unless one row group is larger."""


def find_objects(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> Readable:
    """Return the `*.parquet` objects, with the class names of the first readable one."""
    return tables(store, [info for info in infos if info.key.lower().endswith(".parquet")], options)


def tables(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> Readable:
    """Return the objects as a `Readable`."""
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
