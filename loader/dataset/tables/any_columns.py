"""Columns of values whose kinds differ from sample to sample, such as members of JSON documents."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from .columns import KEYS_SCHEMA, type_named

MOST_COLUMNS = 64
"""Most columns from JSON members in a dataset, including its other metadata columns."""
EXACT = 2**53
"""float64 represents every whole number up to here exactly."""
_TYPES = {
    bool: "bool",
    int: "int64",
    float: "double",
    str: "string",
}
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,18})")  # 007 stays a text: as a number it would lose its zeros


def column_of_any(values: Sequence[Any]) -> pa.Array:
    """Return values as a column whose type holds them all. values: None, bool, 64-bit int, float, str."""
    kinds = {_TYPES[type(value)] for value in values if value is not None}
    if len(kinds) < 2:  # most columns: no value needs a look of its own
        kind = common_type(kinds, exact=True)
        column_type = type_named(kind)
        return pa.array(values, column_type)

    is_exact = True
    for value in values:
        if type(value) is int and not _is_exact(value):
            is_exact = False
            break
    kind = common_type(kinds, is_exact)
    column_type = type_named(kind)
    converted = [convert_value(value, kind) for value in values]
    return pa.array(converted, column_type)


def table_of_any(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return a column per name that any row has, as `column_of_any`; absent values are null."""
    names: set[str] = set()
    for row in rows:
        names.update(row)
    columns = {}
    # Sorted: the same rows give the same bytes, whatever the order in their dicts.
    for name in sorted(names):
        values = [row.get(name) for row in rows]
        columns[name] = column_of_any(values)
    return pa.table(columns)


def common_type(kinds: Iterable[str], exact: bool) -> str:
    """Return the common type of several. exact: True if float64 represents every whole number."""
    different = set(kinds) - {"null"}
    if len(different) < 2:  # one type, or only nulls
        return next(iter(different), "null")
    if different == {"int64", "double"} and exact:
        return "double"
    return "string"


def common_types(
    tables: Iterable[pa.Table],
    known: Mapping[str, str],
    max_new: int,
) -> tuple[dict[str, str], list[str]]:
    """Return (column -> common type of all tables, columns that exceed `max_new`), in table order.

    known: column -> type in the dataset, which stays. max_new: most columns that are not in `known`.
    """
    kinds: dict[str, set[str]] = {}
    inexact: set[str] = set()
    for table in tables:
        for field in table.schema:
            name = field.name
            if name in KEYS_SCHEMA.names:
                continue
            kind = str(field.type)
            column_kinds = kinds.setdefault(name, set())
            column_kinds.add(kind)
            if kind == "int64" and not _all_exact(table[name]):
                inexact.add(name)

    types: dict[str, str] = {}
    excess: list[str] = []
    for name, column_kinds in kinds.items():
        if name in known:
            types[name] = known[name]  # a column's type never changes, and it does not count
        elif max_new <= 0:
            excess.append(name)
        else:
            is_exact = name not in inexact
            types[name] = common_type(column_kinds, is_exact)
            max_new -= 1
    return types, excess


def cast_to_types(
    table: pa.Table,
    types: Mapping[str, str],
) -> tuple[pa.Table, dict[str, tuple[int, str]]]:
    """Return (the table with only these columns, keys and provenance; what the new types do not hold).

    The second is column -> (number of values that became null, example of one).
    """
    lost: dict[str, tuple[int, str]] = {}
    names = table.column_names
    positions = range(len(names))
    # From the last column on: removing one moves the later ones.
    for position in reversed(positions):
        name = names[position]
        if name in KEYS_SCHEMA.names:
            continue
        kind = types.get(name)
        if kind is None:
            table = table.remove_column(position)
            continue
        column = table[name]
        if str(column.type) == kind:
            continue
        converted, lost_values = _cast(column, kind)
        table = table.set_column(position, name, converted)
        if lost_values:
            n_lost = len(lost_values)
            example = _json_text(lost_values[0])
            lost[name] = (n_lost, example)
    return table, lost


def convert_value(value: Any, kind: str) -> Any:
    """Return a value converted to a type, also from text; None if the type cannot hold it."""
    if value is None or kind == "null":
        return None
    if kind == "string":
        return _json_text(value)
    if isinstance(value, str):
        value = _parse_literal(value)
    # In Python a bool is an int, but true is not a number.
    if isinstance(value, bool) != (kind == "bool"):
        return None
    if kind == "bool":
        return value
    if kind == "int64":
        return _as_int(value)
    if kind == "double":
        return _as_float(value)
    return None


def _as_int(value: Any) -> int | None:
    if isinstance(value, int):
        return value
    if isinstance(value, float) and _is_exact_whole(value):
        return int(value)
    return None


def _as_float(value: Any) -> float | None:
    if isinstance(value, float):
        return value
    if isinstance(value, int) and _is_exact(value):
        return float(value)
    return None


def _cast(
    column: pa.ChunkedArray,
    kind: str,
) -> tuple[pa.Array, list[Any]]:
    """Return (the column as another type, values that the type does not hold and that are null now)."""
    converted = []
    lost = []
    for value in column.to_pylist():
        new_value = convert_value(value, kind)
        converted.append(new_value)
        if new_value is None and value is not None:
            lost.append(value)
    array = pa.array(converted, type_named(kind))
    return array, lost


def _all_exact(column: pa.ChunkedArray) -> bool:
    import pyarrow.compute as pc  # 40 ms, saved at startup

    ends = pc.min_max(column)
    least = ends["min"].as_py()
    greatest = ends["max"].as_py()
    if least is None:  # no value, or only nulls
        return True
    return _is_exact(least) and _is_exact(greatest)


def _is_exact(value: int) -> bool:
    return -EXACT <= value <= EXACT


def _is_exact_whole(value: float) -> bool:
    return value.is_integer() and abs(value) <= EXACT


def _json_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float) and _is_exact_whole(value):
        value = int(value)  # 3.0 and 3 give the same text
    return json.dumps(value)


def _parse_literal(text: str) -> bool | int | float | None:
    """Return the boolean or number that a text spells; None for other texts and NaN."""
    if text in ("true", "false"):
        return text == "true"
    if _WHOLE.fullmatch(text) and -(2**63) <= int(text) < 2**63:
        return int(text)
    # Python's `float` also reads digits of other scripts, and "1_000".
    if not text.isascii() or "_" in text:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    if math.isnan(value):
        return None
    return value
