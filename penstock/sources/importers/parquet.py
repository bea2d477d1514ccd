"""Parquet, also as Hugging Face datasets write it: each row a sample, read by row groups."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from loader.errors import Corrupt, InvalidSample
from loader.storage import ObjectInfo, Store

from ..importing.importer import Options, Readable, ReadSample, Run
from .arrow_columns import TableRows
from .features import Features, features_of
from .object_file import opened

OPTIONS = frozenset({"key", "fields"})
RUN_BYTES = 64 * 2**20
"""Bytes of a run, unless a row group has more."""
BATCH_BYTES = 8 * 2**20
"""Bytes of rows that are decoded at once, about."""
BOMB_BYTES, BOMB_TIMES = 2**30, 1000
"""A row group has no more bytes than this, or than this many times those that are stored."""


def look(store: Store, infos: list[ObjectInfo], options: Options) -> Readable:
    """Return the objects `*.parquet`. Class names are the first one's. Raises: Corrupt; StoreError."""
    return tables(store, [info for info in infos if info.key.lower().endswith(".parquet")], options)


def tables(store: Store, infos: list[ObjectInfo], options: Options) -> Readable:
    """Return the reader of these objects. Raises: Corrupt; StoreError."""
    labels = None
    for info in infos[:1]:
        with _file(store, info) as (_, _, features):
            labels = features.labels
    return Readable(infos, partial(_runs, store, options, labels), partial(_samples, store, options), labels)


def _runs(store: Store, options: Options, labels: list[str] | None, info: ObjectInfo) -> list[Run]:
    """Return runs of row groups. Raises: Corrupt; InvalidSample for columns that cannot be taken, or other classes."""
    with _file(store, info) as (metadata, schema, features):
        if features.labels != labels:
            raise InvalidSample(
                f"{info.key} has the classes {features.labels}, and the first object {labels}: import them apart"
            )
        TableRows(schema, features, options, info.key)
        out, first, nbytes = list[Run](), 0, 0
        for at in range(metadata.num_row_groups):
            group = metadata.row_group(at)
            stored = sum(group.column(k).total_compressed_size for k in range(group.num_columns))
            if not 0 <= group.total_byte_size <= max(BOMB_BYTES, BOMB_TIMES * min(stored, info.nbytes)):
                raise Corrupt(
                    f"{info.key}, row group {at} says that its {stored:,} bytes become {group.total_byte_size:,}: that "
                    "is taken for a mistake or an attack"
                )
            nbytes += group.total_byte_size
            if nbytes >= RUN_BYTES or at == metadata.num_row_groups - 1:
                out.append(Run(info, first, at + 1, nbytes))
                first, nbytes = at + 1, 0
    return out


def _samples(store: Store, options: Options, run: Run) -> Iterator[ReadSample]:
    """Yield the samples of row groups. Raises: InvalidSample with the row; Corrupt; Changed; StoreError."""
    with opened(store, run.info) as file:
        told = pq.read_metadata(pa.PythonFile(file, "r"))
        schema = told.schema.to_arrow_schema()
        shared = [one.name for one in schema if pa.types.is_binary(one.type) or pa.types.is_string(one.type)]
        reader = pq.ParquetFile(
            pa.PythonFile(file, "r"), metadata=told, read_dictionary=shared, page_checksum_verification=True
        )
        rows = TableRows(schema, features_of(schema), options, run.info.key)
        row = sum(told.row_group(at).num_rows for at in range(run.first))
        for at in range(run.first, run.stop):
            group = told.row_group(at)
            each = max(1, min(1024, BATCH_BYTES * group.num_rows // max(1, group.total_byte_size)))
            for batch in reader.iter_batches(each, row_groups=[at], columns=rows.wanted, use_threads=False):
                yield from rows.samples(batch, row)
                row += batch.num_rows


@contextmanager
def _file(store: Store, info: ObjectInfo) -> Iterator[tuple[Any, pa.Schema, Features]]:
    """Open the footer of an object: metadata, schema, features. Raises: Corrupt; Changed; StoreError."""
    with opened(store, info) as file:
        metadata = pq.read_metadata(pa.PythonFile(file, "r"))
        schema = metadata.schema.to_arrow_schema()
        yield metadata, schema, features_of(schema)
