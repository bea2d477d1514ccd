"""Remove the names of denied samples from the cells of tables and from JSON.

A run and a proof have one rule:

- what a row is called itself (`OWN`) is compared whole, and decides whose row it is; it is never changed;
- a column or field that names another one (`REFERENCE`) is compared whole: the cell becomes null, an item goes;
- a reason (`TELLING`) is searched for names, and loses them;
- all else, such as labels and paths, is not looked at: it may hold a word that is also a key.
"""

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from loader.dataset.log.denies import TESTED
from loader.dataset.tables.parquet import table_facts

from ..text import markdown_plain, markdown_text
from .hashed_names import TAKEN_DOWN, Marks

REFERENCE = re.compile(r"(^|_)(of|key|keys|id|ids|uri|sha256|name|names)$")
TELLING = re.compile(r"(^|_)(reason|error|explanation|now|before|table_markdown)$")
_BETWEEN_CELLS = re.compile(r"((?<!\\)\||\n)")
OWN: Mapping[str, str] = {
    **{name: kind for kind, names in TESTED.items() for name in names},
    "unit_id": "",
    "uri": "raw",
    "sha256": "raw",
}
"""Column that names a row itself -> kind of what can be denied by that name, "" for nothing."""
_WHERE = {"path", "files", "upstream", "partition", "stage", "dataset", "txn"}
_MADE = {"part", "parts", "shards", "taken"}
_HOW = {"kind", "group", "name", "fields", "version", "featurizer", "code_version", "fingerprint", "nonce"}
_WAYS = frozenset({"run_id", "dagster_run_id", "asset_key", "in_id", "out_id"})
STRUCTURAL = frozenset(_WHERE | _MADE | _HOW | _WAYS)
"""Fields of records by which programs find their way: no names of samples, though some are spelled so.

The only columns of this kind are `_WAYS`.
"""
NAMED = frozenset({"exclude", "replaces", "supersede"})
"""Fields of records that are objects, name of a sample -> why, or the samples whose place it takes."""
LABELS = "labels"
"""Class names, each at its number."""
TOLD = ("reason", "by", "page")
"""Fields of an exclusion by a person, and of the producer of its version, that hold their words."""
_RAW = frozenset({"raw_objects", "refusals", "media", "objects"})
"""Lifecycle tables whose `key` is a raw object's."""
_STEPS = {"sample": "sample", "raw_object": "raw", "stage": None}
"""Kind of a step's end in a lineage table -> what can be denied by its id; None: it names no sample."""


def scrub(table: pa.Table, marks: Marks) -> pa.Table:
    """Return the table without names in columns that name others or say why; the table itself where it has none."""
    for position, field in enumerate(table.schema):
        if (new := _scrubbed_column(table[field.name], field, marks)) is not None:
            table = table.set_column(position, field, pa.chunked_array([pa.array(new, field.type)]))
    return table


def searched(name: str) -> bool:
    """Return whether a column of this name may hold names of others."""
    return name not in OWN and name not in _WAYS and bool(REFERENCE.search(name) or TELLING.search(name))


def _scrubbed_column(column: pa.ChunkedArray, field: pa.Field, marks: Marks) -> list[Any] | None:
    """Return its cells; None where none changes."""
    if not searched(field.name):
        return None
    if pa.types.is_string(field.type):
        told = bool(TELLING.search(field.name))
        values = pc.unique(column).drop_null().to_pylist()
        new = {
            value: None if marks.has(value) else _told_without(value, field.name, marks)
            for value in values
            if (_told_without(value, field.name, marks) != value if told else marks.has(value))
        }
        return [new.get(cell, cell) for cell in column.to_pylist()] if new else None
    if pa.types.is_list(field.type) and pa.types.is_string(field.type.value_type):
        cells = column.to_pylist()
        left = [
            cell if cell is None else [one for one in cell if one is None or not marks.has(one)]
            for cell in cells
        ]
        return left if left != cells else None
    return None


def without_rows(table: pa.Table, marks: Marks) -> pa.Table:
    """Return a table without the rows of denied samples and raw objects, and without their names.

    Returns the table itself where it has nothing of them.
    """
    gone = taken_rows(table, marks)
    left = table.filter(pa.array([not one for one in gone], pa.bool_())) if any(gone) else table
    return scrub(left, marks)


def taken_rows(table: pa.Table, marks: Marks) -> list[bool]:
    """Return for each row whether its own name is a denied sample or raw object."""
    kinds: dict[str, str] = {name: OWN[name] for name in table.column_names if name in OWN}
    if "key" in kinds and ("uri" in kinds or table_facts(table).get("table") in _RAW):
        kinds["key"] = "raw"
    gone = [False] * table.num_rows
    for name, kind in kinds.items():
        if pa.types.is_string(table.schema.field(name).type):
            values = pc.unique(table[name]).drop_null().to_pylist()
            if taken := {value for value in values if marks.takes(kind, value)}:
                gone = [was or cell in taken for was, cell in zip(gone, table[name].to_pylist(), strict=True)]
    for end in ("in", "out"):
        if f"{end}_id" in table.column_names:
            told = f"{end}_kind" in table.column_names
            kinds_of = table[f"{end}_kind"].to_pylist() if told else [None] * table.num_rows
            steps = zip(kinds_of, table[f"{end}_id"].to_pylist(), strict=True)
            gone = [was or _ends(marks, *step) for was, step in zip(gone, steps, strict=True)]
    return gone


def _ends(marks: Marks, step: str | None, name: str | None) -> bool:
    kind = _STEPS.get(step or "", "")
    return kind is not None and name is not None and marks.takes(kind, name)


def scrubbed(value: Any, marks: Marks, field: str = "") -> Any:
    """Return JSON without the names.

    An item, or an entry by name, that is a name goes; from a reason, the name goes. field: what the value is
    of.
    """
    if field in STRUCTURAL:
        return value
    if isinstance(value, str):
        told = TELLING.search(field) or (REFERENCE.search(field) and marks.has(value))
        return _told_without(value, field, marks) if told else value
    if isinstance(value, Mapping):
        if field in NAMED:
            return {
                name: scrubbed(one, marks, "reason") for name, one in value.items() if not marks.has(name)
            }
        return {name: scrubbed(one, marks, name) for name, one in value.items()}
    if isinstance(value, list):
        if field == LABELS:
            return class_names_without(value, marks)
        return [scrubbed(one, marks, field) for one in value if not _names_one(one, field, marks)]
    return value


def _told_without(text: str, field: str, marks: Marks) -> str:
    """Return a reason without the names.

    Cells of a table in Markdown are compared as they were before they were escaped.
    """
    if not field.endswith("table_markdown"):
        return marks.without(text)
    pieces = _BETWEEN_CELLS.split(text)
    pieces[::2] = [_cell_without(cell, marks) for cell in pieces[::2]]
    return "".join(pieces)


def _cell_without(cell: str, marks: Marks) -> str:
    told = markdown_plain(cell.strip())
    left = marks.without(told)
    return cell if left == told else f" {markdown_text(left)} "


def _names_one(item: Any, field: str, marks: Marks) -> bool:
    return isinstance(item, str) and bool(REFERENCE.search(field)) and marks.has(item)


def class_names_without(names: list[Any], marks: Marks) -> list[Any]:
    """Return the class names, each at its number, with those taken down replaced: a subject may be a class."""
    return [
        f"{TAKEN_DOWN} {n}" if isinstance(name, str) and marks.has(name) else name
        for n, name in enumerate(names)
    ]
