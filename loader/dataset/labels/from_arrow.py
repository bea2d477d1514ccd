"""Labels from Arrow and Parquet, in the kinds of value of a samples table."""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import FieldNotFound, InvalidField, InvalidSample
from ..tables.parquet import UNREADABLE
from .batch import ColumnSelection, RowBatch


def parquet_tables(path: str, name: str, selection: ColumnSelection, batch_rows: int) -> Iterator[RowBatch]:
    """Yield the rows of a file as `arrow_tables`. Raises: InvalidSample for a damaged file."""
    return arrow_tables(_parquet_batches(path, name, batch_rows), name, selection, batch_rows)


def _parquet_batches(path: str, name: str, batch_rows: int) -> Iterator[pa.RecordBatch]:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False) as file:
            for batch in file.iter_batches(batch_rows, use_threads=False):
                batch.validate(full=True)  # text of changed bytes is text no more
                yield batch
    except UNREADABLE as error:
        raise InvalidSample(f"{name} is not a readable Parquet file: {error}; write it again") from error


def n_parquet_rows(path: str) -> int:
    """Return the number of rows; 0 for a file that is no Parquet, which its reader reports."""
    try:
        return int(pq.read_metadata(path).num_rows)
    except UNREADABLE:
        return 0


def arrow_tables(
    batches: Iterable[pa.RecordBatch], name: str, selection: ColumnSelection, batch_rows: int
) -> Iterator[RowBatch]:
    """Yield at most `batch_rows` rows each, converted and numbered from 1. name: for messages.

    Raises: FieldNotFound without a column of keys; InvalidSample for a row without a key, or two columns of one name;
    InvalidField.
    """
    start, key = 1, selection.key
    for batch in batches:
        there = batch.schema.names
        if key not in there:
            raise FieldNotFound(f"there is no column {key!r} in {name}, but {', '.join(there)}")
        names_read = [key, *selection.of(there)]
        if len(set(names_read)) != len(names_read) or there.count(key) > 1:
            raise InvalidSample(f"{name} names a column twice: {', '.join(there)}; rename one")
        for at in range(0, batch.num_rows, batch_rows):
            table = pa.Table.from_batches([batch.slice(at, batch_rows)])
            columns = {column: plain_column(table[column], column, name) for column in names_read}
            columns[key] = _keys(columns[key], key, name, start)
            numbers = np.arange(start, start + table.num_rows, dtype=np.int64)
            yield RowBatch(table=pa.table(columns), numbers=numbers, skipped=selection.skipped(there))
            start += table.num_rows


def plain_column(values: pa.ChunkedArray, column: str, name: str) -> pa.ChunkedArray:
    """Return the column as int64, double, string, bool, UTC microseconds, or a list of these.

    Raises: InvalidField for other kinds, and for values out of their range.
    """
    try:
        return values.cast(plain_type(values.type))
    except pa.ArrowException as error:
        raise InvalidField(
            f"{name}: column {column!r} is {values.type}: {error}; accepted: whole numbers of 64 bits, floats, "
            "strings, booleans, timestamps with a time zone, and lists of these"
        ) from error


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the samples table's type for an Arrow type. Raises: ArrowTypeError if there is none."""
    types = pa.types
    if types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(pa.field("element", plain_type(kind.value_type)))
    if types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp("us", "UTC")
    if types.is_integer(kind):
        return pa.int64()
    if types.is_floating(kind):
        return pa.float64()
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_boolean(kind) or types.is_null(kind):
        return kind
    raise pa.ArrowTypeError("a samples table has no such kind of value")


def _keys(values: pa.ChunkedArray, key: str, name: str, start: int) -> pa.ChunkedArray:
    if values.null_count:
        at = start + values.is_null().to_pylist().index(True)
        raise InvalidSample(f"row {at} of {name} has no key, under {key!r}")
    if not (pa.types.is_string(values.type) or pa.types.is_integer(values.type)):
        raise InvalidSample(
            f"{name}: keys, under {key!r}, are {values.type}; strings or whole numbers are needed"
        )
    return values.cast(pa.string())
