"""Read batches of label rows from files, with the selected columns only. Other columns may have any name and type."""

import csv
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...errors import FieldMismatch, FieldNotFound, InvalidField, InvalidSample
from ..tables.columns import type_named
from ..tables.parquet import UNREADABLE

Int64s = np.ndarray[Any, np.dtype[np.int64]]

_KEY_REMEDY = "name its column of keys, with key= or --key"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBatch:
    table: pa.Table
    """Key column as text, and other columns."""
    numbers: Int64s
    """int64 [rows]: each row's line or row number in the source."""
    nulls: Sequence[Sequence[str]] | None = None
    """Per row, the columns with an explicit null; None if the source cannot distinguish null from absence."""
    skipped: frozenset[str] = frozenset()
    """Columns of the source that are not selected."""


@dataclass(frozen=True, slots=True)
class ColumnSelection:
    """The selected columns of a source."""

    key: str
    columns: frozenset[str] | None = None
    """Columns besides the key; None for all."""

    def of(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name != self.key and (self.columns is None or name in self.columns)]

    def skipped(self, names: Iterable[str]) -> frozenset[str]:
        return frozenset() if self.columns is None else frozenset(names) - self.columns - {self.key}


def parquet_tables(path: str, name: str, selection: ColumnSelection, batch_rows: int) -> Iterator[RowBatch]:
    """Yield a file's rows, as `arrow_tables` does. Raises: InvalidSample for a damaged file."""
    return arrow_tables(_parquet_batches(path, name, batch_rows), name, selection, batch_rows)


def parquet_names(path: str, name: str) -> list[str]:
    """Return the names of a file's columns. Raises: InvalidSample for a damaged file."""
    try:
        return list(pq.read_schema(path).names)
    except UNREADABLE as error:
        raise InvalidSample(f"{name} is not a readable Parquet file: {error}") from error


def _parquet_batches(path: str, name: str, batch_rows: int) -> Iterator[pa.RecordBatch]:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False) as file:
            for batch in file.iter_batches(batch_rows, use_threads=False):
                batch.validate(full=True)  # changed bytes may no longer be UTF-8
                yield batch
    except UNREADABLE as error:
        raise InvalidSample(
            f"{name} is not a readable Parquet file: {error}; write it again",
            what="file",
            where=name,
            given=type(error).__name__,
        ) from error


def n_parquet_rows(path: str) -> int:
    """Return the number of rows; 0 if the file is not Parquet, which the reader reports."""
    try:
        return int(pq.read_metadata(path).num_rows)
    except UNREADABLE:
        return 0


def arrow_tables(
    batches: Iterable[pa.RecordBatch], name: str, selection: ColumnSelection, batch_rows: int
) -> Iterator[RowBatch]:
    """Yield batches of at most `batch_rows` rows, converted and numbered from 1. name: source name for messages.

    Raises: FieldNotFound if there is no key column; InvalidSample if a row has no key or two columns share a name;
    InvalidField.
    """
    start = 1  # number of the batch's first row
    key = selection.key
    for batch in batches:
        present = batch.schema.names
        if key not in present:
            raise FieldNotFound(
                f"there is no column {key!r} in {name}, but {', '.join(present)}; {_KEY_REMEDY}",
                what=key,
                where=name,
                accepted=list(present),
            )
        selected = [key, *selection.of(present)]
        # `selection.of` leaves the key out, so a second key column shows only here.
        if len(set(selected)) != len(selected) or present.count(key) > 1:
            raise InvalidSample(
                f"{name} names a column twice: {', '.join(present)}; rename one",
                what="columns",
                where=name,
                given=list(present),
            )
        for at in range(0, batch.num_rows, batch_rows):
            table = pa.Table.from_batches([batch.slice(at, batch_rows)])
            columns = {column: plain_column(table[column], column, name) for column in selected}
            columns[key] = _keys(columns[key], key, name, start)
            numbers = np.arange(start, start + table.num_rows, dtype=np.int64)
            yield RowBatch(table=pa.table(columns), numbers=numbers, skipped=selection.skipped(present))
            start += table.num_rows


def plain_column(values: pa.ChunkedArray, column: str, name: str) -> pa.ChunkedArray:
    """Return the column as int64, double, string, bool, UTC microseconds, or a list of these.

    Raises: InvalidField for other types and for values out of range.
    """
    try:
        return values.cast(plain_type(values.type))
    except pa.ArrowException as error:
        raise InvalidField(
            f"{name}: column {column!r} is {values.type}: {error}; accepted: whole numbers of 64 bits, floats, "
            "strings, booleans, timestamps with a time zone, and lists of these",
            what=column,
            where=name,
            given=str(values.type),
        ) from error


def plain_type(kind: pa.DataType) -> pa.DataType:
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
        raise InvalidSample(
            f"row {at} of {name} has no key, under {key!r}",
            what=key,
            where=f"row {at} of {name}",
            accepted="a key",
        )
    if not (pa.types.is_string(values.type) or pa.types.is_integer(values.type)):
        raise InvalidSample(
            f"{name}: keys, under {key!r}, are {values.type}; strings or whole numbers are needed",
            what=key,
            where=name,
            given=str(values.type),
            accepted="strings or whole numbers",
        )
    return values.cast(pa.string())


Texts = tuple[Mapping[str, pa.Array], Int64s]
"""Text columns, with null for empty cells, and the last line number of each row."""

_WHOLE = r"0|-?[1-9]\d*"
_TEXTS = {
    "null": r"[^\s\S]",
    "int64": _WHOLE,
    "double": rf"{_WHOLE}|-?(0|[1-9]\d*)?\.\d*([eE][+-]?\d+)?|-?\d+[eE][+-]?\d+|(?i:-?inf|nan)",
    "bool": "(?i:true|false)",
    "string": "(?s:.*)",
    "timestamp[us, tz=UTC]": "(?s:.*)",
}
"""Arrow type -> pattern of accepted texts. Arrow itself accepts more, such as 007 and +1."""


DELIMITERS = {".csv": ",", ".tsv": "\t"}
"""Ending of a text table -> character between its cells."""


def csv_tables(
    path: str,
    name: str,
    selection: ColumnSelection,
    types: Mapping[str, str],
    batch_rows: int,
    delimiter: str = ",",
) -> Iterator[RowBatch]:
    """Yield batches of at most `batch_rows` rows, with the line on which each row ends.

    Reads the file twice, O(batch) memory. types: column -> Arrow type in the dataset.

    Raises: FieldNotFound if there is no key column; InvalidSample if a line is not CSV or has no key; FieldMismatch if
    text does not have the column's type.
    """
    header = _header(path, name, selection.key, delimiter)
    selected = selection.of(header)
    new = [column for column in selected if column not in types]
    kinds = {selection.key: "string"}
    kinds |= {column: types[column] for column in selected if column in types}
    if new:
        # A first pass over the file: only all texts of a column say whether it is a number.
        kinds |= _guess_kinds(_texts(path, name, header, new, batch_rows, delimiter), new)
    for texts, numbers in _texts(path, name, header, kinds, batch_rows, delimiter):
        if texts[selection.key].null_count:
            row = texts[selection.key].is_null().index(True).as_py()
            raise InvalidSample(
                f"line {numbers[row]} of {name} has no key, under {selection.key!r}",
                what=selection.key,
                where=f"line {numbers[row]} of {name}",
            )
        columns = {
            column: _column(values, kinds[column], column, name, numbers) for column, values in texts.items()
        }
        yield RowBatch(table=pa.table(columns), numbers=numbers, skipped=selection.skipped(header))


def csv_header(path: str, name: str, delimiter: str) -> list[str]:
    """Return the cells of the first line. Raises: InvalidSample if it is not CSV."""
    with open(path, newline="", encoding="utf-8-sig", errors="replace") as file:
        try:
            return next(csv.reader(file, delimiter=delimiter), [])
        except csv.Error as error:
            raise InvalidSample(f"line 1 of {name} is not CSV in UTF-8: {error}") from error


def _header(path: str, name: str, key: str, delimiter: str) -> list[str]:
    header = csv_header(path, name, delimiter)
    if key not in header:
        raise FieldNotFound(
            f"there is no column {key!r} in {name}; its first line is {','.join(header) or 'empty'}; {_KEY_REMEDY}",
            what=key,
            where=name,
            accepted=list(header),
        )
    if len(set(header)) < len(header):
        raise InvalidSample(
            f"{name} names a column twice in its first line: {','.join(header)}",
            what="columns",
            where=name,
            given=list(header),
        )
    return header


def _lines(path: str, name: str, header: Sequence[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, strict=True, delimiter=delimiter)
        try:
            next(reader, None)
            for cells in reader:
                # No cells: an empty line, which CSV skips.
                if cells and len(cells) != len(header):
                    raise InvalidSample(
                        f"line {reader.line_num} of {name} has {len(cells)} cells, the first line has {len(header)}",
                        what="cells",
                        where=f"line {reader.line_num} of {name}",
                        given=len(cells),
                        accepted=len(header),
                    )
                if cells:
                    yield reader.line_num, cells
        except (csv.Error, UnicodeDecodeError) as error:
            raise InvalidSample(
                f"line {reader.line_num + 1} of {name} is not CSV in UTF-8: {error}",
                what="CSV",
                where=f"line {reader.line_num + 1} of {name}",
                given=type(error).__name__,
            ) from error


def _texts(
    path: str,
    name: str,
    header: Sequence[str],
    selected: Collection[str],
    batch_rows: int,
    delimiter: str,
) -> Iterator[Texts]:
    lines = _lines(path, name, header, delimiter)
    while chunk := list(islice(lines, batch_rows)):
        numbers, rows = zip(*chunk, strict=True)
        columns = {
            column: pa.array([text or None for text in cells], pa.string())
            for column, cells in zip(header, zip(*rows, strict=True), strict=True)
            if column in selected
        }
        yield columns, np.array(numbers, np.int64)


def _guess_kinds(batches: Iterable[Texts], columns: Iterable[str]) -> dict[str, str]:
    """Return each column's narrowest type that accepts all of its texts."""
    # Narrowest first. Each batch strikes the types that it does not fit; every text is a string.
    candidates = {column: ["null", "int64", "double", "bool", "string"] for column in columns}
    for texts, _ in batches:
        for column, values in texts.items():
            candidates[column] = [kind for kind in candidates[column] if _cast(values, kind) is not None]
    return {column: kinds[0] for column, kinds in candidates.items()}


def _column(texts: pa.Array, kind: str, column: str, name: str, numbers: Int64s) -> pa.Array:
    values = _cast(texts, kind)
    if values is not None:
        return values
    if kind not in _TEXTS:
        raise FieldMismatch(
            f"column {column!r} is {kind} in the dataset, which CSV has no text for; give Parquet or JSON lines",
            what=column,
            given=str(kind),
        )
    row = next(row for row in range(len(texts)) if _cast(texts.slice(row, 1), kind) is None)
    raise FieldMismatch(
        f"line {numbers[row]} of {name}: {texts[row].as_py()[:60]!r} is not {kind}, which column {column!r} is in the "
        "dataset",
        what=column,
        where=f"line {numbers[row]} of {name}",
        given=texts[row].as_py(),
        accepted=str(kind),
    )


def _cast(texts: pa.Array, kind: str) -> pa.Array | None:
    """Return the texts as values of a type; None if one of them is not of the type."""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), type_named(kind))
    if kind not in _TEXTS or not pc.all(pc.match_substring_regex(texts, f"^({_TEXTS[kind]})$")).as_py():
        return None
    try:
        if kind == "double":
            # A float would change whole numbers above 2^53: such a column is text.
            whole = texts.filter(pc.match_substring_regex(texts, f"^({_WHOLE})$")).cast(pa.int64())
            if any(float(value) != value for value in whole.to_pylist()):
                return None
        if not kind.startswith("timestamp"):
            return texts.cast(type_named(kind))
        # Arrow parses fewer forms. `text and`: a null stays null.
        instants = [text and datetime.fromisoformat(text) for text in texts.to_pylist()]
        # A time without a zone could be any of 26 hours.
        if any(at and at.tzinfo is None for at in instants):
            return None
        return pa.array(instants, type_named(kind))
    except ValueError:  # Arrow's errors are ValueErrors too
        return None
