"""Tables of labels from CSV (RFC 4180, UTF-8, a first line of names), whose text becomes values.

A column that the dataset has is read as that column's type. Of another all values decide, in a pass of its own: whole
numbers, else floats, else true and false, else text. What a number would not give back as it stands (007, twenty
digits) is text. An empty cell is a null.
"""

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from ...errors import FieldMismatch, FieldNotFound, InvalidSample
from ..tables.columns import type_named
from .batch import RowBatch, Taken

Line = tuple[int, list[str]]


def csv_tables(
    path: str, name: str, taken: Taken, types: Mapping[str, str], batch_rows: int
) -> Iterator[RowBatch]:
    """At most `batch_rows` rows each, with the lines that they end on. types: column -> Arrow type in the dataset.

    Raises: FieldNotFound without a column of keys; InvalidSample for a line that is not CSV or has no key;
    FieldMismatch for text that is not of its column's type. Reads the file twice, O(batch) memory.
    """
    header = _header(path, name, taken.key)
    kinds = _kinds(path, name, header, types, taken)
    left = taken.left(header)
    pending: list[Line] = []
    for line in _lines(path, name, header):
        pending.append(line)
        if len(pending) == batch_rows:
            yield _batch(pending, header, kinds, name, taken.key, left)
            pending = []
    if pending:
        yield _batch(pending, header, kinds, name, taken.key, left)


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


def _lines(path: str, name: str, header: Sequence[str]) -> Iterator[Line]:
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


def _kinds(
    path: str, name: str, header: Sequence[str], types: Mapping[str, str], taken: Taken
) -> dict[str, str]:
    """column -> Arrow type, of every column that is taken but the key."""
    wanted = taken.of(header)
    left = {column: list(_GUESSED) for column in wanted if column not in types}
    empty = set(left)
    for _, cells in _lines(path, name, header) if left else ():
        for column, text in zip(header, cells, strict=True):
            if text and column in left:
                empty.discard(column)
                left[column] = [kind for kind in left[column] if _reads(kind, text)]
    guessed = {c: "null" if c in empty else next(iter(kinds), "string") for c, kinds in left.items()}
    return guessed | {column: types[column] for column in wanted if column in types}


def _batch(
    lines: Sequence[Line],
    header: Sequence[str],
    kinds: Mapping[str, str],
    name: str,
    key: str,
    left: frozenset[str],
) -> RowBatch:
    columns = {}
    for at, column in enumerate(header):
        if column != key and column not in kinds:
            continue
        texts = [cells[at] for _, cells in lines]
        kind = "string" if column == key else kinds[column]
        values = [
            None if text == "" else _value(kind, text, name, lines[i][0], column)
            for i, text in enumerate(texts)
        ]
        if column == key and None in values:
            raise InvalidSample(f"line {lines[values.index(None)][0]} of {name} has no key, under {key!r}")
        columns[column] = pa.array(values, type_named(kind))
    return RowBatch(
        table=pa.table(columns), numbers=np.array([number for number, _ in lines], np.int64), left=left
    )


def _value(kind: str, text: str, name: str, number: int, column: str) -> Any:
    if kind not in _READ:
        raise FieldMismatch(
            f"column {column!r} is {kind} in the dataset, which CSV has no text for; give Parquet or JSON lines"
        )
    try:
        return _READ[kind](text)
    except ValueError as error:
        raise FieldMismatch(
            f"line {number} of {name}: {text[:60]!r} is not {kind}, which column {column!r} is in the dataset"
        ) from error


def _reads(kind: str, text: str) -> bool:
    try:
        _READ[kind](text)
    except ValueError:
        return False
    return True


def _whole(text: str) -> int:
    value = int(text)
    if str(value) != text or not -(2**63) <= value < 2**63:
        raise ValueError(text)
    return value


_FLOAT = re.compile(
    r"-?(0|[1-9]\d*)?\.\d*([eE][+-]?\d+)?|-?\d+[eE][+-]?\d+|-?inf|nan", re.ASCII | re.IGNORECASE
)


def _float(text: str) -> float:
    if _FLOAT.fullmatch(text):
        return float(text)
    value = _whole(text)
    if float(value) != value:
        raise ValueError(text)
    return float(value)


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _instant(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(text)
    return found


_READ: Mapping[str, Callable[[str], Any]] = {
    "int64": _whole,
    "double": _float,
    "bool": _truth,
    "string": str,
    "timestamp[us, tz=UTC]": _instant,
}
_GUESSED = ("int64", "double", "bool")
