"""Remove denied samples from a pipeline's tables, stage records and batch manifests, which no version names."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from loader.dataset.log.entries import canonical
from loader.dataset.tables.parquet import parse_table, put_named_table, table_facts
from loader.storage import Store

from ...denied.cells import json_object, mark_denied_rows, scrub_json, without_rows
from ...denied.hashed_names import Marks
from ...stages import settlement_path
from .band_edits import is_of_bands
from .derived import Edits

Json = dict[str, Any]
AHEAD = "clips_ahead"
"""Folder of clips that wait for their batch to be cut."""


def lifecycle_edits(store: Store, dataset: str, marks: Marks, shards: Mapping[str, Json]) -> Edits:
    """Return the edits of a pipeline's objects, and write the new tables. Reads each table and record.

    shards: path of a shards or samples table -> its replacement.
    """
    marks = with_units(store, dataset, marks)
    replaced: dict[str, Json] = {}
    for path in _paths(store, f"tables/{dataset}/", ".parquet"):
        new = scrub_table(store, path, marks)
        if new is not None:
            folder = path.rpartition("/")[0]
            kind = table_facts(new)["table"]
            table = put_named_table(store, folder, new, kind)
            replaced[path] = table.to_json()
    puts: dict[str, bytes] = {}
    for prefix in (f"stages/{dataset}/", f"tables/{dataset}/manifests/"):
        for path in _paths(store, prefix, ".json"):
            data = store.get(path).data
            body = json_object(data, path, store.url)
            unnamed_body = without_names(path, body, marks)
            new_body = _redirect(unnamed_body, {**shards, **replaced})
            if new_body != body:
                puts[path] = canonical(new_body)
    deletes = list(replaced)
    if puts or deletes:
        # Clips that wait may be of denied objects: the next cut makes the others again.
        deletes += [info.key for info in store.list(f"tables/{dataset}/{AHEAD}/")]
    return Edits(puts=puts, deletes=tuple(deletes))


def with_units(store: Store, dataset: str, marks: Marks) -> Marks:
    """Return the denied names, plus the units of denied raw objects. Reads the units tables."""
    names: set[str] = set()
    for path in _paths(store, f"tables/{dataset}/units/", ".parquet"):
        data = store.get(path).data
        table = parse_table(data, path)
        is_denied = pa.array(mark_denied_rows(table, marks), pa.bool_())  # [rows]
        for row in table.filter(is_denied).to_pylist():
            names.add(row["key"])
            names.add(row["unit_id"])
    names -= {"", None}
    return marks.adding(names)


def scrub_table(store: Store, path: str, marks: Marks) -> pa.Table | None:
    """Return a lifecycle table without denied names; None if it has none."""
    table = parse_table(store.get(path).data, path)
    new = without_rows(table, marks)
    if new is table:
        return None
    return new


def without_names(path: str, body: Json, marks: Marks) -> Json:
    """Return a stage record or batch manifest without denied names; an equal one if it has none."""
    if path.startswith("tables/"):
        return _batch(body, marks)
    new: Json = scrub_json(body, marks)
    return new


def is_hint(path: str) -> bool:
    """Return whether a path under `tables/` is a hint or of bands, which name no sample."""
    if is_of_bands(path):
        return True
    dataset = path.split("/")[1]
    return path == settlement_path(dataset) or path.startswith(f"tables/{dataset}/{AHEAD}/")


def _paths(store: Store, prefix: str, suffix: str) -> Iterator[str]:
    for info in store.list(prefix):
        if info.key.endswith(suffix) and not is_hint(info.key):
            yield info.key


def _redirect(value: Any, replaced: Mapping[str, Json]) -> Any:
    if isinstance(value, Mapping):
        new: Json = {}
        if isinstance(value.get("path"), str):
            new = replaced.get(value["path"], {})
        redirected = {}
        for name, member in value.items():
            if name in new:
                redirected[name] = new[name]
            else:
                redirected[name] = _redirect(member, replaced)
        return redirected
    if isinstance(value, list):
        return [_redirect(one, replaced) for one in value]
    return value


def _is_denied(entry: Json, marks: Marks) -> bool:
    for name in ("key", "uri"):
        value = entry.get(name)
        if isinstance(value, str) and marks.takes("raw", value):
            return True
    return False


def _batch(body: Json, marks: Marks) -> Json:
    objects = []
    for entry in body.get("objects", ()):
        if _is_denied(entry, marks):
            # A salted hash: entries stay different, and it confirms no guess of a key.
            salted = f"{marks.salt} {entry['key']}"
            name = hashlib.sha256(salted.encode()).hexdigest()[:32]
            entry = {**entry, "key": f"taken-down/{name}", "uri": f"taken-down:{name}", "etag": ""}
            entry.pop("files", None)
        objects.append(entry)
    if objects == body.get("objects", []):
        return body
    return {**body, "objects": objects, "redacted": True}
