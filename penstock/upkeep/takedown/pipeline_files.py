"""Remove denied samples from a pipeline's tables, stage records and batch manifests, which no version names."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from loader.dataset.log.entries import canonical
from loader.dataset.tables.parquet import parse_table, put_named_table, table_facts
from loader.storage import Store

from ...denied.cells import json_object, scrubbed, taken_rows, without_rows
from ...denied.hashed_names import Marks
from ...stages import settled_path
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
        if (new := table_without(store, path, marks)) is not None:
            table = put_named_table(store, path.rpartition("/")[0], new, table_facts(new)["table"])
            replaced[path] = table.to_json()
    puts: dict[str, bytes] = {}
    for prefix in (f"stages/{dataset}/", f"tables/{dataset}/manifests/"):
        for path in _paths(store, prefix, ".json"):
            body = json_object(store.get(path).data, path, store.url)
            new_body = _redirected(without_names(path, body, marks), {**shards, **replaced})
            if new_body != body:
                puts[path] = canonical(new_body)
    deletes = list(replaced)
    if puts or deletes:
        deletes += [info.key for info in store.list(f"tables/{dataset}/{AHEAD}/")]
    return Edits(puts=puts, deletes=tuple(deletes))


def with_units(store: Store, dataset: str, marks: Marks) -> Marks:
    """Return the denied names, plus the units of denied raw objects. Reads the units tables."""
    names: set[str] = set()
    for path in _paths(store, f"tables/{dataset}/units/", ".parquet"):
        table = parse_table(store.get(path).data, path)
        denied = table.filter(pa.array(taken_rows(table, marks), pa.bool_()))
        names |= {name for row in denied.to_pylist() for name in (row["key"], row["unit_id"]) if name}
    return marks.adding(names)


def table_without(store: Store, path: str, marks: Marks) -> pa.Table | None:
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
    new: Json = scrubbed(body, marks)
    return new


def is_hint(path: str) -> bool:
    """Return whether a path under `tables/` is a hint or of bands, which name no sample."""
    if is_of_bands(path):
        return True
    dataset = path.split("/")[1]
    return path == settled_path(dataset) or path.startswith(f"tables/{dataset}/{AHEAD}/")


def _paths(store: Store, prefix: str, suffix: str) -> Iterator[str]:
    for info in store.list(prefix):
        if info.key.endswith(suffix) and not is_hint(info.key):
            yield info.key


def _redirected(value: Any, replaced: Mapping[str, Json]) -> Any:
    if isinstance(value, Mapping):
        new = replaced.get(value["path"], {}) if isinstance(value.get("path"), str) else {}
        return {name: new[name] if name in new else _redirected(one, replaced) for name, one in value.items()}
    if isinstance(value, list):
        return [_redirected(one, replaced) for one in value]
    return value


def _batch(body: Json, marks: Marks) -> Json:
    objects = []
    for entry in body.get("objects", ()):
        if any(
            isinstance(entry.get(name), str) and marks.takes("raw", entry[name]) for name in ("key", "uri")
        ):
            named = hashlib.sha256(f"{marks.salt} {entry['key']}".encode()).hexdigest()[:32]
            entry = {name: value for name, value in entry.items() if name != "files"}
            entry |= {"key": f"taken-down/{named}", "uri": f"taken-down:{named}", "etag": ""}
        objects.append(entry)
    if objects == body.get("objects", []):
        return body
    return {**body, "objects": objects, "redacted": True}
