"""The samples table: its columns, conversion of values, and concatenation of parts.

Every run of parts has the column groups `keys` (identity and provenance) and `metadata` (columns to filter on).
"""

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
    """Return whether an entry of a manifest's list `samples` is an annotation."""
    return "author" in file


def check_metadata(key: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata with plain values: None, bool, int (64-bit), float, str, aware datetime, or a list of these.

    Raises: InvalidField, which names sample, column and accepted types.
    """
    row = {}
    for name, value in metadata.items():
        check_column(name, RESERVED_COLUMNS)
        row[name] = _plain(
            key,
            name,
            value,
        )
    return row


def check_source(key: str, source: Mapping[str, Any]) -> dict[str, str]:
    """Return provenance as strings. Raises: InvalidField for a name outside `SOURCE_COLUMNS`."""
    unknown = sorted(set(source) - set(SOURCE_COLUMNS))
    if unknown:
        accepted = ", ".join(SOURCE_COLUMNS)
        raise InvalidField(
            f"source of sample {key!r} has {unknown}; accepted: {accepted}. Other facts go into metadata=",
            what="source",
            where=f"sample {key!r}",
            given=unknown,
            accepted=accepted,
        )
    texts = {}
    for name, value in source.items():
        if value is not None:
            texts[name] = _text(key, f"source {name!r}", str(value))
    return texts


def _plain(
    key: str,
    name: str,
    value: Any,
) -> Any:
    """Return a value of metadata as `check_metadata` accepts it. key, name: for the message. Raises: InvalidField."""
    # Subclasses (numpy's, enums, pandas' Timestamp) become the plain type: a column holds one type. numpy's dates are
    # refused below, because item() turns nanoseconds into a bare int.
    if isinstance(value, np.generic) and not isinstance(value, np.datetime64 | np.timedelta64):
        value = value.item()
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if value is None or isinstance(value, bool):  # before int: a bool is one
        return value
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return _text(key, f"metadata {name!r}", str.__str__(value))
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return int(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return _plain_datetime(value.astimezone(UTC))
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(key, name, item) for item in value]
    raise InvalidField(
        f"metadata {name!r} of sample {key!r} is {value!r} ({type(value).__name__}); accepted: None, bool, int of 64 "
        "bits, float, str, a datetime with a time zone, or a list of these",
        what=name,
        where=f"sample {key!r}",
        given=value,
    )


def _plain_datetime(value: datetime) -> datetime:
    """Return an instance of `datetime` itself, not of a subclass such as pandas' Timestamp."""
    return datetime(
        value.year,
        value.month,
        value.day,
        value.hour,
        value.minute,
        value.second,
        value.microsecond,
        UTC,
    )


def _text(
    key: str,
    what: str,
    value: str,
) -> str:
    """Return the value if it is UTF-8. what: the value's name, for the message. Raises: InvalidField."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidField(
            f"{what} of sample {key!r} is {value!r}, which is not UTF-8 text ({error.reason}); percent-escape it "
            "(loader.escape_key), or decode file names with errors='replace'",
            what=what,
            where=f"sample {key!r}",
            given=value,
            accepted="UTF-8 text",
        ) from error
    return value


def metadata_table(
    rows: Sequence[Mapping[str, Any]],
    part: str,
    keys: Sequence[str],
) -> pa.Table:
    """Return a table of part, row and one column per metadata name, sorted; absent values are null.

    Raises: FieldMismatch if a column mixes types; it names the first deviating sample.
    """
    part_ids = [part] * len(rows)
    row_numbers = np.arange(len(rows), dtype=np.int64)
    columns: dict[str, pa.Array] = {
        "part": pa.array(part_ids, pa.string()),
        "row": pa.array(row_numbers),
    }
    names: set[str] = set()
    for row in rows:
        names.update(row)
    # Sorted: the same samples give the same bytes, whatever the order in their dicts.
    for name in sorted(names):
        values = [row.get(name) for row in rows]
        columns[name] = arrow_column(
            name,
            values,
            keys,
        )
    return pa.table(columns)


def arrow_column(
    name: str,
    values: list[Any],
    keys: Sequence[str],
) -> pa.Array:
    """Return Python values of one type as an Arrow column; int mixed with float becomes float64. keys: for messages.

    Raises: FieldMismatch for mixed types, or for an int that float64 cannot hold.
    """
    first_of_kind: dict[str, int] = {}  # name of a Python type -> position of its first value
    for position, value in enumerate(values):
        if value is not None:
            first_of_kind.setdefault(type(value).__name__, position)
    if set(first_of_kind) == {"int", "float"}:
        first_float = first_of_kind["float"]
        return _float_column(
            name,
            values,
            keys,
            float_key=keys[first_float],
        )
    if len(first_of_kind) > 1:
        kinds = [(kind, keys[row]) for kind, row in first_of_kind.items()]
        examples = ", ".join(f"{kind} in sample {key!r}" for kind, key in kinds)
        raise FieldMismatch(
            f"metadata column {name!r} holds different kinds: {examples}; use one kind per column",
            what=name,
            given=kinds,
            accepted="one kind per column",
        )

    column_type = None  # Arrow infers it
    if "datetime" in first_of_kind:
        column_type = pa.timestamp("us", "UTC")
    try:
        return pa.array(values, column_type)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise FieldMismatch(
            f"metadata column {name!r}: {error}; use one kind of value per column",
            what=name,
            given=type(error).__name__,
        ) from error


def _float_column(
    name: str,
    values: list[Any],
    keys: Sequence[str],
    float_key: str,
) -> pa.Array:
    """Return int and float values as float64. float_key: key of a sample with a float, for messages."""
    floats: list[float | None] = []
    for key, value in zip(keys, values, strict=True):
        if value is None:
            floats.append(None)
            continue
        as_float = float(value)  # rounds an int beyond 2^53
        if isinstance(value, int) and as_float != value:
            raise FieldMismatch(
                f"metadata column {name!r} is {value} in sample {key!r} and a float in sample "
                f"{float_key!r}; a column of both is float64, which does not hold {value}: give only "
                "whole numbers, or text",
                what=name,
                where=f"sample {key!r}",
                given=value,
            )
        floats.append(as_float)
    return pa.array(floats, pa.float64())


def source_arrays(sources: Sequence[Mapping[str, str]]) -> dict[str, pa.Array]:
    """Return each provenance column that any sample has, null for samples without it."""
    # Many samples share one mapping. By identity: comparing a million mappings would take longer than building their
    # columns.
    distinct = {id(source): source for source in sources}
    number_of = {identity: number for number, identity in enumerate(distinct)}
    numbers = [number_of[id(source)] for source in sources]  # of each sample's mapping in `distinct`
    number_column = pa.array(numbers, pa.int64())

    names: set[str] = set()
    for source in distinct.values():
        names.update(source)
    arrays = {}
    for name in names:
        texts = [source.get(name) for source in distinct.values()]
        distinct_texts = pa.array(texts, pa.string())
        arrays[name] = distinct_texts.take(number_column)
    return arrays


def keys_table(
    keys: Sequence[str],
    sources: Sequence[Mapping[str, str]],
    part: str,
) -> pa.Table:
    """Return a part's `keys` column group; unused provenance columns are null."""
    columns: dict[str, Any] = {
        "part": [part] * len(keys),
        "row": range(len(keys)),
        "key": list(keys),
        **source_arrays(sources),
    }
    arrays = []
    for field in KEYS_SCHEMA:
        if field.name in columns:
            array = pa.array(columns[field.name], field.type)
        else:
            array = pa.nulls(len(keys), field.type)
        arrays.append(array)
    return pa.table(arrays, schema=KEYS_SCHEMA)


def concat(tables: Iterable[pa.Table], what: str) -> pa.Table:
    """Return the parts' tables as one: missing columns become null; int mixed with float becomes float.

    Raises: FieldMismatch for incompatible types.
    """
    all_tables = list(tables)
    try:
        return pa.concat_tables(all_tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise FieldMismatch(
            f"{what}: parts disagree about a column's type: {error}",
            what="types",
            where=what,
            given=type(error).__name__,
        ) from error


def with_dataset_types(table: pa.Table, dataset_types: Mapping[str, str]) -> pa.Table:
    """Return the table with the types that its columns have in the dataset; other columns stay.

    Nulls become any type, and whole numbers become floats. dataset_types: column -> type. Raises: FieldMismatch for any
    other difference.
    """
    for name, dataset_type in dataset_types.items():
        if name not in table.column_names:
            continue
        own_type = str(table.schema.field(name).type)
        # The types agree, or the dataset has only nulls so far: then the column brings the type.
        if fits(dataset_type, own_type):
            continue
        column = _cast_column(name, table[name], dataset_type)
        position = table.schema.get_field_index(name)
        table = table.set_column(position, name, column)
    return table


def _cast_column(
    name: str,
    column: pa.ChunkedArray,
    dataset_type: str,
) -> pa.ChunkedArray:
    own_type = str(column.type)
    problem = f"a {own_type} is not a {dataset_type}"
    if _may_become(own_type, dataset_type):
        new_type = type_named(dataset_type)
        try:
            return column.cast(new_type, safe=True)
        except pa.ArrowException as error:
            problem = str(error)
    raise FieldMismatch(
        f"column {name!r} is {own_type} here and {dataset_type} in the dataset so far ({problem}); convert it, or use "
        "another column name: a column's type does not change",
        what="type",
        where=f"column {name!r}",
        given=str(own_type),
        accepted=str(dataset_type),
    )


_LIST = re.compile(r"list<(?:element|item): (.*)>")


def fits(weak_type: str, type_name: str) -> bool:
    """Return whether every value of the first type is one of the second: the same type, or only null and []."""
    if weak_type in (type_name, "null"):
        return True
    weak_item = _LIST.fullmatch(weak_type)
    item = _LIST.fullmatch(type_name)
    if weak_item is None or item is None:
        return False
    return fits(weak_item[1], item[1])


def _may_become(own_type: str, dataset_type: str) -> bool:
    """Return whether a column may be cast to the dataset's type. The cast may still refuse single values."""
    own_item = _LIST.fullmatch(own_type)
    item = _LIST.fullmatch(dataset_type)
    if own_item is not None and item is not None:
        return _may_become(own_item[1], item[1])
    # The only widening: a safe cast then refuses whole numbers beyond 2^53.
    if own_type == "int64" and dataset_type == "double":
        return True
    return fits(own_type, dataset_type)


def type_named(name: str) -> pa.DataType:
    """Return the Arrow type with this `str()`; list items are named as in Parquet. Raises: ValueError."""
    item = _LIST.fullmatch(name)
    if item is not None:
        return pa.list_(pa.field("element", type_named(item[1])))
    # `type_for_alias` raises for a type with a time zone.
    if name == "timestamp[us, tz=UTC]":
        return pa.timestamp("us", "UTC")
    if name == "null":
        return pa.null()
    if name == "bool":
        return pa.bool_()
    return pa.type_for_alias(name)
