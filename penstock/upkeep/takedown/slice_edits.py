"""Edits of a dataset's slices: rows of a list that are denied samples, and names in a rule or a reason.

A list without a remaining sample is deleted, and so is a slice that cannot be read: it cannot be searched.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from loader.dataset.log.entries import canonical
from loader.dataset.tables.parquet import integers, table_bytes
from loader.dataset.tables.slice_record import FOLDER, MAX_SLICE_SAMPLES
from loader.dataset.tables.small_tables import parse_small_table
from loader.errors import Corrupt
from loader.order.sources.views import list_sha256
from loader.storage import Store

from ...denied.cells import json_object, mark_denied_rows
from ...denied.hashed_names import Marks
from .derived import Edits

_TEXTS = ("where", "why", "by", "page")
_MOST_BYTES = 2**32
_ROOT = "the root"  # in messages


def slice_edits(
    store: Store,
    dataset: str,
    marks: Marks,
) -> Edits:
    """Return the edits of a dataset's slices. Reads each record and table, of one save at a time."""
    puts: dict[str, bytes] = {}
    deletes: list[str] = []
    # A save of a slice has one number: a record, and for a list a table beside it.
    saves: dict[str, list[str]] = defaultdict(list)  # path without its ending -> paths
    for info in store.list(f"{FOLDER}{dataset}/"):
        stem, _, _ = info.key.rpartition(".")
        saves[stem].append(info.key)
    for stem, paths in saves.items():
        objects: dict[str, bytes] = {}  # ending -> data
        for path in paths:
            ending = path.removeprefix(stem)
            objects[ending] = store.get(path).data
        try:
            edited = _scrub_save(stem, objects, marks)
        except Corrupt:
            edited = None
        if edited is None:
            deletes += paths
        else:
            puts |= edited
    return Edits(puts=puts, deletes=tuple(deletes))


def _scrub_save(
    stem: str,
    objects: Mapping[str, bytes],
    marks: Marks,
) -> dict[str, bytes] | None:
    """Return the objects of one save that change; None to delete all. objects: ending -> data. Raises: Corrupt."""
    record_path = f"{stem}.json"
    table_path = f"{stem}.parquet"
    before: dict[str, Any] = {}
    body: dict[str, Any] = {}
    puts: dict[str, bytes] = {}
    if ".json" in objects:
        before = json_object(objects[".json"], record_path, _ROOT)
        edited_body = scrub_slice_record(before, marks)
        if edited_body is None:
            return None
        body = edited_body

    if ".parquet" in objects:
        table = _table(objects[".parquet"], table_path)
        new_table = scrub_slice_table(table, marks)
        if new_table is not table:
            # A table without its record: the save was killed before the record.
            if not body or not new_table.num_rows:
                return None
            ordinals = integers(new_table["ordinal"])
            body["n_samples"] = new_table.num_rows
            body["sha256"] = list_sha256(ordinals)
            # The record first: after a kill, the next run finds the rows in the table, and makes the same record.
            puts[record_path] = canonical(body)
            puts[table_path] = table_bytes(
                new_table,
                "slice",
                facts={"path": table_path},
            )
    if body != before:
        puts[record_path] = canonical(body)
    return puts


def scrub_slice_record(body: Mapping[str, Any], marks: Marks) -> dict[str, Any] | None:
    """Return a record without denied names: an equal one if it has none, None if the slice itself is so named."""
    name = body.get("name")
    if isinstance(name, str) and marks.has(name):
        return None
    edited = dict(body)
    for field in _TEXTS:
        text = body.get(field)
        if isinstance(text, str):
            edited[field] = marks.without(text)
    return edited


def scrub_slice_table(table: pa.Table, marks: Marks) -> pa.Table:
    """Return a list's table without denied samples; the same table if it has none."""
    denied = mark_denied_rows(table, marks)
    if not any(denied):
        return table
    remaining = [not is_denied for is_denied in denied]
    return table.filter(pa.array(remaining, pa.bool_()))


def slice_names(data: bytes, path: str, marks: Marks) -> bool:
    """Return whether an object of a slice names a denied sample. Raises: Corrupt."""
    if path.endswith(".parquet"):
        table = _table(data, path)
        return scrub_slice_table(table, marks) is not table
    body = json_object(data, path, _ROOT)
    return scrub_slice_record(body, marks) != body


def _table(data: bytes, path: str) -> pa.Table:
    table = parse_small_table(
        data,
        path,
        most_rows=MAX_SLICE_SAMPLES,
        most_bytes=_MOST_BYTES,
    )
    kinds = {name: str(table.schema.field(name).type) for name in table.column_names}
    is_slice = kinds.get("ordinal") == "int64" and kinds.get("key") == "string"
    if not is_slice or table["ordinal"].null_count:
        raise Corrupt(
            f"{path} is not a table of a slice: it has {kinds}; restore it from a mirror, or delete it"
        )
    return table
