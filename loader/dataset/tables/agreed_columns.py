"""Columns without a declared type, such as values of JSON: all samples decide a column's type.

Whole numbers and others are float64 together if it holds each of them. Any other mixture is text, as JSON spells it. A
dataset's column keeps its type, and a value that it does not hold is null.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from .columns import KEYS_SCHEMA, type_named

MOST_COLUMNS = 64
"""Most such columns of a dataset, its other metadata columns included."""
EXACT = 2**53
"""float64 holds each whole number up to here."""
_TYPES = {bool: "bool", int: "int64", float: "double", str: "string"}
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,18})")


def column_of_any(values: Sequence[Any]) -> pa.Array:
    """Return values as a column of a type that holds them all. values: None, bool, 64-bit int, float, str."""
    kinds = {_TYPES[type(value)] for value in values if value is not None}
    kind = joined_type(kinds, len(kinds) < 2 or all(map(_is_exact, (v for v in values if type(v) is int))))
    if len(kinds) > 1:
        values = [value_as(value, kind) for value in values]
    return pa.array(values, type_named(kind))


def table_of_any(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return a column for each name of any row, sorted, as `column_of_any`."""
    names = sorted({name for row in rows for name in row})
    return pa.table({name: column_of_any([row.get(name) for row in rows]) for name in names})


def joined_type(kinds: Iterable[str], exact: bool) -> str:
    """Return the type of values of several. exact: float64 holds each whole number."""
    seen = set(kinds) - {"null"}
    if len(seen) < 2:
        return next(iter(seen), "null")
    return "double" if seen == {"int64", "double"} and exact else "string"


def agreed_types(
    tables: Iterable[pa.Table], known: Mapping[str, str], most: int
) -> tuple[dict[str, str], list[str]]:
    """Return column -> type in all tables, and the columns beyond `most`, in the order of the tables.

    known: column -> type in the dataset, which stay.
    """
    kinds, inexact = dict[str, set[str]](), set[str]()
    for table in tables:
        for field in table.schema:
            if field.name in KEYS_SCHEMA.names:
                continue
            kinds.setdefault(field.name, set()).add(str(field.type))
            if field.type == pa.int64() and not _all_exact(table[field.name]):
                inexact.add(field.name)
    types, left_out = dict[str, str](), list[str]()
    for name, kinds_seen in kinds.items():
        if name in known:
            types[name] = known[name]
        elif most <= 0:
            left_out.append(name)
        else:
            types[name] = joined_type(kinds_seen, name not in inexact)
            most -= 1
    return types, left_out


def as_agreed(table: pa.Table, types: Mapping[str, str]) -> tuple[pa.Table, dict[str, tuple[int, str]]]:
    """Return a table with only these types, keys and provenance; and column -> (values now null, an example)."""
    lost = dict[str, tuple[int, str]]()
    for at, name in reversed([*enumerate(table.column_names)]):
        if name in KEYS_SCHEMA.names:
            continue
        if name not in types:
            table = table.remove_column(at)
        elif str(table.schema.field(name).type) != types[name]:
            column, wrong = _cast(table[name], types[name])
            table = table.set_column(at, name, column)
            if wrong:
                lost[name] = len(wrong), _text(wrong[0])
    return table, lost


def value_as(value: Any, kind: str) -> Any:
    """Return a value as one of a type, also spelled in text; None if the type does not hold it."""
    if value is None or kind == "null":
        return None
    if kind == "string":
        return _text(value)
    if isinstance(value, str):
        value = _spelled(value)
    if isinstance(value, bool) or kind == "bool":
        return value if isinstance(value, bool) and kind == "bool" else None
    if isinstance(value, int):
        return value if kind == "int64" else float(value) if kind == "double" and _is_exact(value) else None
    if isinstance(value, float):
        if kind == "int64":
            return int(value) if value.is_integer() and abs(value) <= EXACT else None
        return value if kind == "double" else None
    return None


def _cast(column: pa.ChunkedArray, kind: str) -> tuple[pa.Array, list[Any]]:
    """Return a column of this type, and the values that it lacks, null in it."""
    values = column.to_pylist()
    values_cast = [value_as(value, kind) for value in values]
    wrong = [
        value for value, now in zip(values, values_cast, strict=True) if now is None and value is not None
    ]
    return pa.array(values_cast, type_named(kind)), wrong


def _all_exact(column: pa.ChunkedArray) -> bool:
    ends = pc.min_max(column)
    return all(end is None or _is_exact(end) for end in (ends["min"].as_py(), ends["max"].as_py()))


def _is_exact(value: int) -> bool:
    return -EXACT <= value <= EXACT


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) <= EXACT:
        value = int(value)
    return json.dumps(value)


def _spelled(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    if _WHOLE.fullmatch(text) and -(2**63) <= int(text) < 2**63:
        return int(text)
    try:
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        return None
    return None if math.isnan(value) else value
