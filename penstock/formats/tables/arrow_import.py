"""Import Arrow IPC files and streams: each row is a sample, read one record batch at a time."""

from collections.abc import Iterator
from functools import partial

import pyarrow as pa

from loader.dataset.columnar.arrow_columns import TableRows
from loader.dataset.columnar.choices import check_labels, features_of
from loader.dataset.columnar.column_agreement import ColumnAgreement
from loader.dataset.columnar.record_batches import MAGIC, record_batches
from loader.storage import ObjectInfo, Store

from ..importing.importer import ColumnarOptions, ImportRun, Readable, ReadSample, of_first_readable
from ..reading.object_file import ObjectFile, opened

OPTIONS = frozenset({"key", "fields"})


def find_objects(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> Readable:
    """Return the `*.arrow` objects, with the class names of the first readable one."""
    return batches(store, [info for info in infos if info.key.lower().endswith(".arrow")], options)


def batches(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> Readable:
    """Return the objects as a `Readable`, one run each."""
    labels, agreed = of_first_readable(infos, partial(_labels, store)), ColumnAgreement()
    return Readable(
        infos,
        lambda info: [ImportRun(info, nbytes=info.nbytes)],
        partial(_samples, store, options, labels, agreed),
        labels,
        columns=agreed,
    )


def _labels(store: Store, info: ObjectInfo) -> list[str] | None:
    with opened(store, info) as file:
        return features_of(_batches(file)[0]).labels


def _samples(
    store: Store, options: ColumnarOptions, labels: list[str] | None, agreed: ColumnAgreement, run: ImportRun
) -> Iterator[ReadSample]:
    with opened(store, run.info) as file:
        schema, batches = _batches(file)
        features = features_of(schema)
        check_labels(run.info.key, features.labels, labels)
        rows, row = TableRows(schema, features, options, run.info.key), 0
        agreed.check(run.info.key, rows.columns)
        for batch in batches:
            batch.validate(full=True)
            yield from rows.samples(batch, row)
            row += batch.num_rows


def _batches(file: ObjectFile) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    begin = file.read(len(MAGIC))
    file.seek(0)
    return record_batches(pa.PythonFile(file, "r"), begin, file.path)
