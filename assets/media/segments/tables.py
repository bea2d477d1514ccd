"""Rows of a table of segments, as CSV, JSON Lines or Parquet, read in bounded memory whatever the file is."""

import io
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

from loader.json_text import parse_json_object

from .parquet_pages import DELTA_BYTE_ARRAY, pages

NEEDED = ("key", "start_s", "end_s")
TEXTS = ("label", "caption")
MAX_ROWS = 10_000_000
MAX_DECODED_BYTES = 512 * 2**20
"""Most bytes of a Parquet file's pages when read, and of the rows of a batch's objects."""
MAX_TEXT_BYTES = 64 * 2**10
"""Most bytes of one value."""

_BATCH_ROWS = 65_536
_BLOCK_BYTES = 16 * 2**20  # of CSV; a row is shorter
Row = Mapping[str, Any] | ValueError
"""Column -> value; an error for a row that cannot be read."""


def rows_of(name: str, data: bytes, keys: Collection[str]) -> Iterator[tuple[int, str, Row]]:
    """Yield (number from 1, key, row) of the rows whose key is in `keys`.

    Numbers are as written; in csv every value is text, so a message can quote it.

    Raises: ValueError and Arrow's errors for an unreadable table, or one that exceeds a limit.
    """
    if name.endswith(".jsonl"):
        yield from _json_rows(data, frozenset(keys))
        return
    batches = _parquet_batches(data) if name.endswith(".parquet") else _csv_batches(data)
    keys_wanted = pa.array(sorted(keys), pa.string())
    n_rows = n_bytes = 0
    for batch in batches:
        for at in _matching(batch.column("key"), keys_wanted):
            key, row, nbytes = _row(batch, at)
            n_bytes += nbytes
            if n_bytes > MAX_DECODED_BYTES:
                raise ValueError(f"rows of one batch hold more than {MAX_DECODED_BYTES} bytes of text")
            yield n_rows + at + 1, key, row
        n_rows += len(batch)
        if n_rows > MAX_ROWS:
            raise ValueError(f"more than {MAX_ROWS} rows")


def _json_rows(data: bytes, keys: frozenset[str]) -> Iterator[tuple[int, str, Row]]:
    number, names = 0, set[str]()  # Arrow's JSON reader crashes the process on deeply nested brackets
    for line in io.BytesIO(data.removeprefix(b"\xef\xbb\xbf")):
        if not line.strip():
            continue
        number += 1
        if number > MAX_ROWS:
            raise ValueError(f"more than {MAX_ROWS} rows")
        try:
            row = parse_json_object(line)
        except ValueError as error:
            raise ValueError(f"row {number}: {error}") from error
        if "key" not in names:
            names = set(row)
        key = row.get("key")
        key = str(key) if type(key) is int else key
        if isinstance(key, str) and key in keys:
            long = [name for name in TEXTS if len(str(row.get(name))) > MAX_TEXT_BYTES]
            yield number, key, _too_long(long[0]) if long else row
    if number and "key" not in names:
        _check_columns(names)


def _csv_batches(data: bytes) -> Iterator[pa.RecordBatch]:
    header = data[:_BLOCK_BYTES].split(b"\n", 1)[0].decode().strip("\r\ufeff").split(",")
    texts = {column.strip('" '): pa.string() for column in header}
    with pa.csv.open_csv(
        io.BytesIO(data),
        read_options=pa.csv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=False),
        convert_options=pa.csv.ConvertOptions(column_types=texts, strings_can_be_null=False),
        parse_options=pa.csv.ParseOptions(newlines_in_values=True),
    ) as reader:
        _check_columns(reader.schema.names)
        yield from reader


def _parquet_batches(data: bytes) -> Iterator[pa.RecordBatch]:
    """Yield batches with texts as dictionaries: equal texts are in memory once."""
    schema = pa.parquet.read_schema(io.BytesIO(data))
    _check_columns(schema.names)
    names = [name for name in (*NEEDED, *TEXTS) if name in schema.names]
    for name in names:
        _check_type(name, schema.field(name).type)
    texts = [name for name in names if _is_text(schema.field(name).type)]
    file = pa.parquet.ParquetFile(io.BytesIO(data), read_dictionary=texts, pre_buffer=False)
    if file.metadata.num_rows > MAX_ROWS:
        raise ValueError(f"{file.metadata.num_rows} rows; accepted are {MAX_ROWS}")
    n_bytes = 0
    for page in pages(data, file.metadata, frozenset(names)):
        n_bytes += page.nbytes
        if n_bytes > MAX_DECODED_BYTES:
            raise ValueError(f"its pages are more than {MAX_DECODED_BYTES} bytes when they are read")
        if page.encoding == DELTA_BYTE_ARRAY:
            raise ValueError("a column is encoded as DELTA_BYTE_ARRAY; write it with a dictionary, or plain")
    yield from file.iter_batches(batch_size=_BATCH_ROWS, columns=names, use_threads=False)


def _check_columns(names: Collection[str]) -> None:
    if missing := [column for column in NEEDED if column not in names]:
        raise ValueError(
            f"it has no column {', '.join(missing)}; needed are key, start_s, end_s (and, where wanted, label, "
            f"caption), it has {', '.join(sorted(names)[:20])}"
        )


def _check_type(name: str, kind: pa.DataType) -> None:
    """Check that a column holds text or numbers, whose size is bounded."""
    of = kind.value_type if pa.types.is_dictionary(kind) else kind
    known = (_is_text, pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null)
    if not any(is_one(of) for is_one in known):
        raise ValueError(f"column {name} is {kind}; accepted are text and numbers")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _matching(column: pa.Array, keys_wanted: pa.Array) -> list[int]:
    """Return the rows with these keys; keys of digits only may be numbers in a table."""
    if pa.types.is_dictionary(column.type):
        matches = pa.compute.is_in(column.dictionary.cast(pa.string()), value_set=keys_wanted).take(
            column.indices
        )
    else:
        matches = pa.compute.is_in(column.cast(pa.string()), value_set=keys_wanted)
    positions: list[int] = pa.compute.indices_nonzero(matches).to_pylist()
    return positions


def _row(batch: pa.RecordBatch, at: int) -> tuple[str, Row, int]:
    """Return (key, row, bytes of its texts)."""
    row: dict[str, Any] = {}
    nbytes = 0
    key = str(_cell(batch.column("key"), at).as_py())
    for name in (*NEEDED, *TEXTS):
        if name not in batch.schema.names:
            continue
        cell = _cell(batch.column(name), at)
        size = cell.as_buffer().size if cell.is_valid and _is_text(cell.type) else 0
        if size > MAX_TEXT_BYTES:
            return key, _too_long(name), nbytes
        nbytes += size
        try:
            row[name] = cell.as_py()
        except UnicodeDecodeError as error:
            return key, ValueError(f"{name} is no UTF-8 ({error})"), nbytes
    return key, row, nbytes


def _cell(column: pa.Array, at: int) -> Any:
    if not pa.types.is_dictionary(column.type):
        return column[at]
    place = column.indices[at].as_py()
    return pa.scalar(None, column.type.value_type) if place is None else column.dictionary[place]


def _too_long(name: str) -> ValueError:
    return ValueError(f"{name} has more than {MAX_TEXT_BYTES} bytes, which are accepted")
