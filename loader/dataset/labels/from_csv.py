"""Labels from CSV (RFC 4180, UTF-8, a first line of names), with text converted to values.

A column of the dataset keeps its type. Another column's type follows from all its values, in a pass of its own: whole
numbers, else floats, else booleans, else text. Text that a number would not reproduce (007, twenty digits) stays text.
An empty cell is null. Arrow parses the values, and `csv` the lines: `pyarrow.csv` would take the lines after an
unclosed quote for text, and does not report a row's line.
"""

import csv
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import FieldMismatch, FieldNotFound, InvalidSample
from ..tables.columns import type_named
from .batch import ColumnSelection, Int64s, RowBatch

Texts = tuple[Mapping[str, pa.Array], Int64s]
"""Columns of text, null for empty cells, and the last line of each row."""

_WHOLE = r"0|-?[1-9]\d*"
_TEXTS = {
    "null": r"[^\s\S]",
    "int64": _WHOLE,
    "double": rf"{_WHOLE}|-?(0|[1-9]\d*)?\.\d*([eE][+-]?\d+)?|-?\d+[eE][+-]?\d+|(?i:-?inf|nan)",
    "bool": "(?i:true|false)",
    "string": "(?s:.*)",
    "timestamp[us, tz=UTC]": "(?s:.*)",
}
"""Arrow type -> pattern of its texts. Arrow accepts more, such as 007 and +1."""


def csv_tables(
    path: str, name: str, selection: ColumnSelection, types: Mapping[str, str], batch_rows: int
) -> Iterator[RowBatch]:
    """Yield at most `batch_rows` rows each, with the lines that they end on.

    Reads the file twice, O(batch) memory. types: column -> Arrow type in the dataset.

    Raises: FieldNotFound without a column of keys; InvalidSample for a line that is not CSV or has no key;
    FieldMismatch for text of another type.
    """
    header = _header(path, name, selection.key)
    selected = selection.of(header)
    new = [column for column in selected if column not in types]
    kinds = {selection.key: "string", **{column: types[column] for column in selected if column in types}}
    if new:
        kinds |= _guessed(_texts(path, name, header, new, batch_rows), new)
    for texts, numbers in _texts(path, name, header, kinds, batch_rows):
        if texts[selection.key].null_count:
            row = texts[selection.key].is_null().index(True).as_py()
            raise InvalidSample(f"line {numbers[row]} of {name} has no key, under {selection.key!r}")
        columns = {
            column: _column(values, kinds[column], column, name, numbers) for column, values in texts.items()
        }
        yield RowBatch(table=pa.table(columns), numbers=numbers, skipped=selection.skipped(header))


def _header(path: str, name: str, key: str) -> list[str]:
    with open(path, newline="", encoding="utf-8-sig", errors="replace") as file:
        header = next(csv.reader(file), [])
    if key not in header:
        raise FieldNotFound(
            f"there is no column {key!r} in {name}; its first line is {','.join(header) or 'empty'}"
        )
    if len(set(header)) < len(header):
        raise InvalidSample(f"{name} names a column twice in its first line: {','.join(header)}")
    return header


def _lines(path: str, name: str, header: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, strict=True)
        try:
            next(reader, None)
            for cells in reader:
                if cells and len(cells) != len(header):
                    raise InvalidSample(
                        f"line {reader.line_num} of {name} has {len(cells)} cells, the first line has {len(header)}"
                    )
                if cells:
                    yield reader.line_num, cells
        except (csv.Error, UnicodeDecodeError) as error:
            raise InvalidSample(
                f"line {reader.line_num + 1} of {name} is not CSV in UTF-8: {error}"
            ) from error


def _texts(
    path: str, name: str, header: Sequence[str], selected: Collection[str], batch_rows: int
) -> Iterator[Texts]:
    """Yield the wanted columns of at most `batch_rows` rows each."""
    lines = _lines(path, name, header)
    while chunk := list(islice(lines, batch_rows)):
        numbers, rows = zip(*chunk, strict=True)
        columns = {
            column: pa.array([text or None for text in cells], pa.string())
            for column, cells in zip(header, zip(*rows, strict=True), strict=True)
            if column in selected
        }
        yield columns, np.array(numbers, np.int64)


def _guessed(batches: Iterable[Texts], columns: Iterable[str]) -> dict[str, str]:
    """Return column -> the first Arrow type that all its texts are values of."""
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
            f"column {column!r} is {kind} in the dataset, which CSV has no text for; give Parquet or JSON lines"
        )
    row = next(row for row in range(len(texts)) if _cast(texts.slice(row, 1), kind) is None)
    raise FieldMismatch(
        f"line {numbers[row]} of {name}: {texts[row].as_py()[:60]!r} is not {kind}, which column {column!r} is in the "
        "dataset"
    )


def _cast(texts: pa.Array, kind: str) -> pa.Array | None:
    """Return the values of the texts; None if one of them is not of the type."""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), type_named(kind))
    if kind not in _TEXTS or not pc.all(pc.match_substring_regex(texts, f"^({_TEXTS[kind]})$")).as_py():
        return None
    try:
        if kind == "double":
            whole = texts.filter(pc.match_substring_regex(texts, f"^({_WHOLE})$")).cast(pa.int64())
            if any(float(value) != value for value in whole.to_pylist()):
                return None
        if not kind.startswith("timestamp"):
            return texts.cast(type_named(kind))
        instants = [text and datetime.fromisoformat(text) for text in texts.to_pylist()]  # Arrow takes fewer
        if any(at and at.tzinfo is None for at in instants):
            return None
        return pa.array(instants, type_named(kind))
    except ValueError:  # Arrow's errors are of it too
        return None
