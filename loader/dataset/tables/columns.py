"""The samples table: its columns, conversion of values, and concatenation of parts.

Every run of parts has the column groups `keys` (identity and provenance) and `metadata` (columns to filter on).
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from ...errors import FieldMismatch, InvalidField
from ..names import check_column

SOURCE_COLUMNS = (
    "source_key",
    "unit_id",
    "raw_uri",
    "raw_key",
    "raw_etag",
    "raw_sha256",
    "raw_start",
    "raw_end",
    "subject",
    "split",
    "run_id",
    "asset_key",
    "partition",
    "code_version",
)
"""String columns for provenance (`source=`); `loader.explain` follows them to the raw object."""

KEY_COLUMNS = ("part", "row", "key", *SOURCE_COLUMNS)
RESERVED_COLUMNS = frozenset((*KEY_COLUMNS, "ordinal"))

KEYS_SCHEMA = pa.schema(
    [
        ("part", pa.string()),
        ("row", pa.int64()),
        ("key", pa.string()),
        *((name, pa.string()) for name in SOURCE_COLUMNS),
    ]
)


def is_annotation(file: Mapping[str, Any]) -> bool:
    return "author" in file


def check_metadata(key: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata as None, bool, int (64-bit), float, str, aware datetime, or a list of one type.

    Raises: InvalidField, which names sample, column and accepted types.
    """
    row = {}
    for name, value in metadata.items():
        check_column(name, RESERVED_COLUMNS)
        row[name] = _plain(key, name, value)
    return row


def check_source(key: str, source: Mapping[str, Any]) -> dict[str, str]:
    """Return provenance as strings. Raises: InvalidField for a name outside `SOURCE_COLUMNS`."""
    unknown = sorted(set(source) - set(SOURCE_COLUMNS))
    if unknown:
        raise InvalidField(
            f"source of sample {key!r} has {unknown}; accepted: {', '.join(SOURCE_COLUMNS)}. "
            "Other facts go into metadata="
        )
    return {
        name: _text(key, f"source {name!r}", str(value))
        for name, value in source.items()
        if value is not None
    }


def _plain(key: str, name: str, value: Any) -> Any:
    # Subclasses (numpy's, enums, pandas' Timestamp) become the plain type: a column holds one type.
    if isinstance(value, np.generic) and not isinstance(value, np.datetime64 | np.timedelta64):
        value = value.item()
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return _text(key, f"metadata {name!r}", str.__str__(value))
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return int(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        at = value.astimezone(UTC)
        return datetime(at.year, at.month, at.day, at.hour, at.minute, at.second, at.microsecond, UTC)
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(key, name, item) for item in value]
    raise InvalidField(
        f"metadata {name!r} of sample {key!r} is {value!r} ({type(value).__name__}); accepted: None, bool, int of 64 "
        "bits, float, str, a datetime with a time zone, or a list of these"
    )


def _text(key: str, what: str, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidField(
            f"{what} of sample {key!r} is {value!r}, which is not UTF-8 text ({error.reason}); percent-escape it "
            "(loader.escape_key), or decode file names with errors='replace'"
        ) from error
    return value


def metadata_table(rows: Sequence[Mapping[str, Any]], part: str, keys: Sequence[str]) -> pa.Table:
    """Return a table of part, row and one column per metadata name, sorted; absent values are null.

    Raises: FieldMismatch if a column mixes types; it names the first deviating sample.
    """
    names = sorted({name for row in rows for name in row})
    columns: dict[str, pa.Array] = {
        "part": pa.array([part] * len(rows), pa.string()),
        "row": pa.array(np.arange(len(rows), dtype=np.int64)),
    }
    for name in names:
        columns[name] = column_of(name, [row.get(name) for row in rows], keys)
    return pa.table(columns)


def column_of(name: str, values: list[Any], keys: Sequence[str]) -> pa.Array:
    """Return Python values of one type as an Arrow column; int mixed with float becomes float64. keys: for messages.

    Raises: FieldMismatch for mixed types, or for an int that float64 cannot hold.
    """
    kinds: dict[str, int] = {}
    for position, value in enumerate(values):
        if value is not None:
            kinds.setdefault(type(value).__name__, position)
    if set(kinds) == {"int", "float"}:
        floats = [None if value is None else float(value) for value in values]
        for key, value, held in zip(keys, values, floats, strict=True):
            if isinstance(value, int) and held != value:
                raise FieldMismatch(
                    f"metadata column {name!r} is {value} in sample {key!r} and a float in sample "
                    f"{keys[kinds['float']]!r}; a column of both is float64, which does not hold {value}: give only "
                    "whole numbers, or text"
                )
        return pa.array(floats, pa.float64())
    if len(kinds) > 1:
        examples = ", ".join(f"{kind} in sample {keys[at]!r}" for kind, at in kinds.items())
        raise FieldMismatch(
            f"metadata column {name!r} holds different kinds: {examples}; use one kind per column"
        )
    try:
        array = pa.array(values, pa.timestamp("us", "UTC") if "datetime" in kinds else None)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise FieldMismatch(f"metadata column {name!r}: {error}; use one kind of value per column") from error
    return array


def source_arrays(sources: Sequence[Mapping[str, str]]) -> dict[str, pa.Array]:
    """Return each provenance column that any sample has, with nulls. Many samples share a mapping."""
    distinct = {id(source): source for source in sources}
    numbers = dict(zip(distinct, range(len(distinct)), strict=True))
    which = pa.array([*map(numbers.__getitem__, map(id, sources))], pa.int64())
    return {
        name: pa.array([one.get(name) for one in distinct.values()], pa.string()).take(which)
        for name in set[str]().union(*distinct.values())
    }


def keys_table(keys: Sequence[str], sources: Sequence[Mapping[str, str]], part: str) -> pa.Table:
    """Return a part's `keys` column group; unused provenance columns are null."""
    columns = {"part": [part] * len(keys), "row": range(len(keys)), "key": list(keys)} | source_arrays(
        sources
    )
    arrays = [
        pa.array(columns[field.name], field.type)
        if field.name in columns
        else pa.nulls(len(keys), field.type)
        for field in KEYS_SCHEMA
    ]
    return pa.table(arrays, schema=KEYS_SCHEMA)


def concat(tables: Iterable[pa.Table], what: str) -> pa.Table:
    """Return the parts' tables as one: missing columns become null; int mixed with float becomes float.

    Raises: FieldMismatch for incompatible types.
    """
    try:
        return pa.concat_tables(list(tables), promote_options="permissive")
    except pa.ArrowException as error:
        raise FieldMismatch(f"{what}: parts disagree about a column's type: {error}") from error


def fit_types(table: pa.Table, earlier: Mapping[str, str]) -> pa.Table:
    """Return the table with the dataset's column types (`earlier`): null fits all; int mixed with float becomes float.

    Raises: FieldMismatch for any other change.
    """
    for name, kind in earlier.items():
        if name not in table.column_names:
            continue
        have = str(table.schema.field(name).type)
        if fits(kind, have):
            continue
        problem = f"a {have} is not a {kind}"
        if _becomes(have, kind):
            try:
                position = table.schema.get_field_index(name)
                table = table.set_column(position, name, table[name].cast(type_named(kind), safe=True))
                continue
            except pa.ArrowException as error:
                problem = str(error)
        raise FieldMismatch(
            f"column {name!r} is {have} here and {kind} in the dataset so far ({problem}); convert it, or use another "
            "column name: a column's type does not change"
        )
    return table


def fits(weak: str, kind: str) -> bool:
    """Return whether type `weak` fits `kind`: the same type, or one with only null and []."""
    inner, of = _LIST.fullmatch(weak), _LIST.fullmatch(kind)
    return weak in (kind, "null") or bool(inner and of and fits(inner[1], of[1]))


def _becomes(have: str, type_name: str) -> bool:
    inner, of = _LIST.fullmatch(have), _LIST.fullmatch(type_name)
    if inner and of:
        return _becomes(inner[1], of[1])
    return fits(have, type_name) or (have, type_name) == ("int64", "double")


def type_named(name: str) -> pa.DataType:
    """Return the Arrow type with this `str()`; list items are named as in Parquet. Raises: ValueError."""
    if inner := _LIST.fullmatch(name):
        return pa.list_(pa.field("element", type_named(inner[1])))
    simple = {"timestamp[us, tz=UTC]": pa.timestamp("us", "UTC"), "null": pa.null(), "bool": pa.bool_()}
    return simple[name] if name in simple else pa.type_for_alias(name)


_LIST = re.compile(r"list<(?:element|item): (.*)>")


MOST_COLUMNS = 64
"""Most columns from JSON members in a dataset, including its other metadata columns."""
EXACT = 2**53
"""float64 represents every whole number up to here exactly."""
_TYPES = {bool: "bool", int: "int64", float: "double", str: "string"}
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,18})")


def column_of_any(values: Sequence[Any]) -> pa.Array:
    """Return values as a column whose type holds them all. values: None, bool, 64-bit int, float, str."""
    kinds = {_TYPES[type(value)] for value in values if value is not None}
    kind = joined_type(kinds, len(kinds) < 2 or all(map(_is_exact, (v for v in values if type(v) is int))))
    if len(kinds) > 1:
        values = [value_as(value, kind) for value in values]
    return pa.array(values, type_named(kind))


def table_of_any(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    names = sorted({name for row in rows for name in row})
    return pa.table({name: column_of_any([row.get(name) for row in rows]) for name in names})


def joined_type(kinds: Iterable[str], exact: bool) -> str:
    """Return the common type of several. exact: True if float64 represents every whole number."""
    seen = set(kinds) - {"null"}
    if len(seen) < 2:
        return next(iter(seen), "null")
    return "double" if seen == {"int64", "double"} and exact else "string"


def agreed_types(
    tables: Iterable[pa.Table], known: Mapping[str, str], most: int
) -> tuple[dict[str, str], list[str]]:
    """Return (column -> common type of all tables, columns beyond `most`), in table order.

    known: column -> type in the dataset, kept unchanged.
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
    """Return (table with only these columns, keys and provenance; column -> (values now null, example))."""
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
                lost[name] = len(wrong), _json_text(wrong[0])
    return table, lost


def value_as(value: Any, kind: str) -> Any:
    """Return a value converted to a type, also from text; None if the type cannot hold it."""
    if value is None or kind == "null":
        return None
    if kind == "string":
        return _json_text(value)
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
    values = column.to_pylist()
    values_cast = [value_as(value, kind) for value in values]
    wrong = [
        value for value, now in zip(values, values_cast, strict=True) if now is None and value is not None
    ]
    return pa.array(values_cast, type_named(kind)), wrong


def _all_exact(column: pa.ChunkedArray) -> bool:
    import pyarrow.compute as pc  # 40 ms, saved at startup

    ends = pc.min_max(column)
    return all(end is None or _is_exact(end) for end in (ends["min"].as_py(), ends["max"].as_py()))


def _is_exact(value: int) -> bool:
    return -EXACT <= value <= EXACT


def _json_text(value: Any) -> str:
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
