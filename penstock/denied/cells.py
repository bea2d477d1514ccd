"""Remove the names of denied samples from table cells and JSON, by the same rules in takedown runs and proofs.

- A row's own names (`OWN`) are compared whole and never change.
- A column or field that names another sample (`REFERENCE`) is compared whole. A table's cell becomes null, an item of a
  list is removed, and a single text in JSON becomes `TAKEN_DOWN`.
- A reason (`TELLING`) is searched, and the names in it are replaced.
- All else, such as labels and paths, is not searched: it may contain a word that is also a key.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from loader.dataset.log.denies import COMPARED_COLUMNS
from loader.dataset.tables.parquet import table_facts
from loader.errors import Corrupt
from loader.json_text import DamagedJson, parse_json_object

from ..text import markdown_plain, markdown_text
from .hashed_names import TAKEN_DOWN, Marks


def json_object(data: bytes, path: str, url: str) -> dict[str, Any]:
    """Parse the JSON object at a path of the store at `url`."""
    try:
        return parse_json_object(data)
    except DamagedJson as error:
        raise Corrupt(
            f"{url}/{path} is not a JSON object ({error}); restore it from a mirror, or delete it",
            what="JSON object",
            where=f"{url}/{path}",
            given=str(error),
        ) from error


def texts(value: Any) -> Iterator[str]:
    """Yield every text in a JSON value, including field names."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield name
            yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)


def cell_texts(table: pa.Table) -> Iterator[str]:
    """Yield every distinct text in a table, including lists and categories."""
    for name in table.column_names:
        column = table[name]
        if pa.types.is_string(column.type):
            yield from pc.unique(column).drop_null().to_pylist()
        elif pa.types.is_nested(column.type):
            yield from _nested_texts(column.to_pylist())


def _nested_texts(value: Any) -> Iterator[str]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _nested_texts(item)
    else:
        yield from texts(value)


REFERENCE = re.compile(r"(^|_)(of|key|keys|id|ids|uri|sha256|name|names)$")
TELLING = re.compile(r"(^|_)(reason|error|explanation|now|before|overridden|table_markdown)$")
# An escaped "|" is part of a cell's text.
_BETWEEN_CELLS = re.compile(r"((?<!\\)\||\n)")
OWN: Mapping[str, str] = {
    **{name: kind for kind, names in COMPARED_COLUMNS.items() for name in names},
    "unit_id": "",
    "uri": "raw",
    "sha256": "raw",
}
"""Column that names its own row -> kind of denied name, or ""."""
_WHERE = {"path", "files", "upstream", "partition", "stage", "dataset", "txn"}
_PRODUCTS = {"part", "parts", "shards", "taken"}
_HOW = {"kind", "group", "name", "fields", "version", "featurizer", "code_version", "fingerprint", "nonce"}
_WAYS = frozenset({"run_id", "dagster_run_id", "asset_key", "in_id", "out_id"})
STRUCTURAL = frozenset(_WHERE | _PRODUCTS | _HOW | _WAYS)
"""Record fields that programs use to locate data; never names of samples."""
NAMED = frozenset({"exclude", "replaces", "supersede"})
"""Record fields that map a sample's name to a reason or its replacements."""
CHECKS = "checks"
"""Field that maps the name of a check to its explanation, in an approval."""
LABELS = "labels"
"""Field with the class names, in number order."""
WORDS = ("reason", "by", "page")
"""Fields with text written by a person, in exclusions and producers."""
_RAW = frozenset({"raw_objects", "refusals", "media", "objects"})
"""Lifecycle tables whose `key` names a raw object."""
_STEPS = {"sample": "sample", "raw_object": "raw", "stage": None}
"""Kind of an input or output in a lineage table -> kind of denied name, or None."""


def scrub(table: pa.Table, marks: Marks) -> pa.Table:
    """Remove names from columns that name other samples or give reasons; return the same table if it has none."""
    for position, field in enumerate(table.schema):
        if (new := _scrub_column(table[field.name], field, marks)) is not None:
            table = table.set_column(position, field, pa.chunked_array([pa.array(new, field.type)]))
    return table


def may_name_samples(name: str) -> bool:
    """Return whether a column with this name may name other samples."""
    return name not in OWN and name not in _WAYS and bool(REFERENCE.search(name) or TELLING.search(name))


def _scrub_column(column: pa.ChunkedArray, field: pa.Field, marks: Marks) -> list[Any] | None:
    """Return the column's cells without the names; None if it has none of them."""
    if not may_name_samples(field.name):
        return None
    if pa.types.is_string(field.type):
        new_texts = _scrub_texts(column, field.name, marks)
        if not new_texts:
            return None
        return [new_texts.get(cell, cell) for cell in column.to_pylist()]
    if pa.types.is_list(field.type) and pa.types.is_string(field.type.value_type):
        cells = column.to_pylist()
        new_cells = [_scrub_list(cell, marks) for cell in cells]
        if new_cells == cells:
            return None
        return new_cells
    return None


def _scrub_texts(column: pa.ChunkedArray, name: str, marks: Marks) -> dict[str, str | None]:
    """Return text -> new text, or None for a null cell, for the column's texts that change."""
    is_searched = bool(TELLING.search(name))
    new_texts: dict[str, str | None] = {}
    for text in pc.unique(column).drop_null().to_pylist():
        if is_searched:
            searched = _scrub_reason(text, name, marks)
            if searched != text:
                new_texts[text] = None if marks.has(text) else searched
        elif marks.has(text):
            new_texts[text] = None
    return new_texts


def _scrub_list(cell: list[str | None] | None, marks: Marks) -> list[str | None] | None:
    if cell is None:
        return None
    return [text for text in cell if text is None or not marks.has(text)]


def without_rows(table: pa.Table, marks: Marks) -> pa.Table:
    """Remove the rows and names of denied samples; return the same table if it has none."""
    denied = mark_denied_rows(table, marks)
    if any(denied):
        remains = [not is_denied for is_denied in denied]
        table = table.filter(pa.array(remains, pa.bool_()))
    return scrub(table, marks)


def mark_denied_rows(table: pa.Table, marks: Marks) -> list[bool]:
    """Return, per row, whether its own name is a denied sample or raw object."""
    kinds: dict[str, str] = {name: OWN[name] for name in table.column_names if name in OWN}
    if "key" in kinds and ("uri" in kinds or table_facts(table).get("table") in _RAW):
        kinds["key"] = "raw"
    denied = [False] * table.num_rows
    for name, kind in kinds.items():
        if not pa.types.is_string(table.schema.field(name).type):
            continue
        values = pc.unique(table[name]).drop_null().to_pylist()
        denied_names = {value for value in values if marks.takes(kind, value)}
        if denied_names:
            for row, cell in enumerate(table[name].to_pylist()):
                denied[row] = denied[row] or cell in denied_names
    # A lineage table has a row per step: in_kind, in_id -> out_kind, out_id.
    for end in ("in", "out"):
        if f"{end}_id" not in table.column_names:
            continue
        ids = table[f"{end}_id"].to_pylist()
        kinds_of_ids: list[str | None] = [None] * len(ids)
        if f"{end}_kind" in table.column_names:
            kinds_of_ids = table[f"{end}_kind"].to_pylist()
        for row, (kind_of_id, id) in enumerate(zip(kinds_of_ids, ids, strict=True)):
            denied[row] = denied[row] or _is_denied_end(marks, kind_of_id, id)
    return denied


def _is_denied_end(marks: Marks, step: str | None, name: str | None) -> bool:
    """Return whether an input or output of a lineage step is denied. step: its kind in the table."""
    kind = _STEPS.get(step or "", "")
    return kind is not None and name is not None and marks.takes(kind, name)


def scrub_json(value: Any, marks: Marks, field: str = "") -> Any:
    """Return JSON without the names: items and entries go, single texts and reasons stay without the name.

    field: the value's field.
    """
    if field in STRUCTURAL:
        return value
    if isinstance(value, str):
        if TELLING.search(field):
            return _scrub_reason(value, field, marks)
        if REFERENCE.search(field) and marks.has(value):
            return TAKEN_DOWN
        return value
    if isinstance(value, Mapping):
        if field in NAMED:
            return {
                name: scrub_json(one, marks, "reason") for name, one in value.items() if not marks.has(name)
            }
        if field == CHECKS:
            return {name: scrub_json(one, marks, "explanation") for name, one in value.items()}
        return {name: scrub_json(one, marks, name) for name, one in value.items()}
    if isinstance(value, list):
        if field == LABELS:
            return scrub_class_names(value, marks)
        return [scrub_json(one, marks, field) for one in value if not _names_one(one, field, marks)]
    return value


def _scrub_reason(text: str, field: str, marks: Marks) -> str:
    """Remove the names from a reason. Markdown cells are compared unescaped."""
    if not field.endswith("table_markdown"):
        return marks.without(text)
    pieces = _BETWEEN_CELLS.split(text)
    # split() by a group returns cells at even places, and what separates them at odd ones.
    pieces[::2] = [_scrub_cell(cell, marks) for cell in pieces[::2]]
    return "".join(pieces)


def _scrub_cell(cell: str, marks: Marks) -> str:
    text = markdown_plain(cell.strip())
    new_text = marks.without(text)
    if new_text == text:
        return cell  # as it was written, with its blanks and escapes
    return f" {markdown_text(new_text)} "


def _names_one(item: Any, field: str, marks: Marks) -> bool:
    return isinstance(item, str) and bool(REFERENCE.search(field)) and marks.has(item)


def scrub_class_names(names: list[Any], marks: Marks) -> list[Any]:
    """Replace the denied class names; a subject may be a class."""
    new_names = []
    for number, name in enumerate(names):
        is_denied = isinstance(name, str) and marks.has(name)
        if is_denied:
            name = f"{TAKEN_DOWN} {number}"  # class names are distinct
        new_names.append(name)
    return new_names
