"""Files of a pipeline on denied samples: its tables, its stages' records, its batches' manifests.

No version names these files. They are replaced in this order; killed in between, the next run finds the old table and
does the rest:

1. A table is written again without the rows, under a new name.
2. Every record that named it is replaced, under its own number, so that its readers go on to the new one.
3. The old table is deleted.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from loader.dataset.log.entries import canonical
from loader.dataset.tables.parquet import parse_table, put_named_table, table_facts
from loader.storage import Store

from ...denied.cells import scrubbed, taken_rows, without_rows
from ...denied.hashed_names import Marks
from ...denied.json_text import json_object
from ...stages import settled_path
from .recorded_edits import Edits

Json = dict[str, Any]
AHEAD = "clips_ahead"
"""A folder of clips that wait for their batch to be cut: they are made again."""


def lifecycle_edits(store: Store, dataset: str, marks: Marks, shards: Mapping[str, Json]) -> Edits:
    """Return the edits of a pipeline's objects. The new tables are written.

    Costs a read of each table and record of the dataset.

    shards: path of a shard, or of a part's samples table -> what has taken its place, for records that name it.

    Raises: Corrupt; StoreError.
    """
    marks = with_units(store, dataset, marks)
    replaced: dict[str, Json] = {}
    for path in _paths(store, f"tables/{dataset}/", ".parquet"):
        if (new := table_without(store, path, marks)) is not None:
            made = put_named_table(store, path.rpartition("/")[0], new, table_facts(new)["table"])
            replaced[path] = made.to_json()
    puts: dict[str, bytes] = {}
    for prefix in (f"stages/{dataset}/", f"tables/{dataset}/manifests/"):
        for path in _paths(store, prefix, ".json"):
            body = json_object(store.get(path).data, path, store.url)
            new_body = _redirected(without_names(path, body, marks), {**shards, **replaced})
            if new_body != body:
                puts[path] = canonical(new_body)
    gone = list(replaced)
    if puts or gone:
        gone += [info.key for info in store.list(f"tables/{dataset}/{AHEAD}/")]
    return Edits(puts=puts, deletes=tuple(gone))


def with_units(store: Store, dataset: str, marks: Marks) -> Marks:
    """Return the marks with the units that were cut of denied raw objects, in a version or not.

    Reads the tables of units.
    """
    names: set[str] = set()
    for path in _paths(store, f"tables/{dataset}/units/", ".parquet"):
        table = parse_table(store.get(path).data, path)
        gone = table.filter(pa.array(taken_rows(table, marks), pa.bool_()))
        names |= {name for row in gone.to_pylist() for name in (row["key"], row["unit_id"]) if name}
    return marks.adding(names)


def table_without(store: Store, path: str, marks: Marks) -> pa.Table | None:
    """Return a lifecycle table without denied names; None if it has none. Raises: Corrupt."""
    table = parse_table(store.get(path).data, path)
    new = without_rows(table, marks)
    return None if new is table else new


def without_names(path: str, body: Json, marks: Marks) -> Json:
    """Return a stage's record, or a batch's manifest, without denied names.

    Returns an equal one where it has nothing of it.
    """
    if path.startswith("tables/"):
        return _batch(body, marks)
    new: Json = scrubbed(body, marks)
    return new


def is_hint(path: str) -> bool:
    """Return whether a path under `tables/` is of a hint: it names no sample, and may be damaged."""
    dataset = path.split("/")[1]
    return path == settled_path(dataset) or path.startswith(f"tables/{dataset}/{AHEAD}/")


def _paths(store: Store, prefix: str, suffix: str) -> Iterator[str]:
    for info in store.list(prefix):
        if info.key.endswith(suffix) and not is_hint(info.key):
            yield info.key


def _redirected(value: Any, replaced: Mapping[str, Json]) -> Any:
    """Return JSON in which entries that name a replaced file name the new one."""
    if isinstance(value, Mapping):
        new = replaced.get(value["path"], {}) if isinstance(value.get("path"), str) else {}
        return {name: new[name] if name in new else _redirected(one, replaced) for name, one in value.items()}
    if isinstance(value, list):
        return [_redirected(one, replaced) for one in value]
    return value


def _batch(body: Json, marks: Marks) -> Json:
    """Return a batch's manifest in which denied objects have another name.

    It keeps the batch's name, which is a hash of the objects' former names, and is marked as redacted.
    """
    objects = []
    for one in body.get("objects", ()):
        if any(isinstance(one.get(name), str) and marks.takes("raw", one[name]) for name in ("key", "uri")):
            named = hashlib.sha256(f"{marks.salt} {one['key']}".encode()).hexdigest()[:32]
            one = {name: value for name, value in one.items() if name != "files"}
            one |= {"key": f"taken-down/{named}", "uri": f"taken-down:{named}", "etag": ""}
        objects.append(one)
    if objects == body.get("objects", []):
        return body
    return {**body, "objects": objects, "redacted": True}
