"""What a pipeline wrote of samples that are taken down: its tables, its stages' records, its batches' manifests.

No version names these files. A table is written again without the rows, under a new name; then every record that named
it is replaced, under its own number, so that what read it goes on to; then the old one is deleted. Killed in between,
the next run finds the old one and does the rest.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from loader.dataset.entries import canonical
from loader.dataset.parquet import parse_table, put_named_table, table_facts
from loader.storage import Store
from penstock.stage_records import settled_path

from .cells import OWN, scrubbed, without_rows
from .edits import Edits
from .marks import Marks, marks_of

Json = dict[str, Any]
AHEAD = "clips_ahead"
"""A folder of clips that wait for their batch to be cut: they are made again."""


def lifecycle_edits(store: Store, dataset: str, marks: Marks, shards: Mapping[str, Json]) -> Edits:
    """What is to become of a pipeline's objects; the new tables are written. shards: path of a shard, or of a part's
    samples table -> what has taken its place, for records that name it. Costs a read of each table and record of the
    dataset. Raises: Corrupt; StoreError."""
    tables = _Tables(store, dataset, marks)
    tables.rewrite()
    puts: dict[str, bytes] = {}
    for path, body in _records(store, f"stages/{dataset}/"):
        new = _redirected(scrubbed(body, tables.marks), {**shards, **tables.replaced})
        if new != body:
            puts[path] = canonical(new)
    for path, body in _records(store, f"tables/{dataset}/manifests/"):
        if (new := _batch(body, tables.marks)) != body:
            puts[path] = canonical(new)
    gone = list(tables.replaced)
    if puts or gone:
        gone += [info.key for info in store.list(f"tables/{dataset}/{AHEAD}/")]
    return Edits(puts=puts, deletes=tuple(gone))


class _Tables:
    """The lifecycle tables of a dataset. replaced: old path -> the new file, as a record names it."""

    def __init__(self, store: Store, dataset: str, marks: Marks) -> None:
        self._store, self._dataset, self.marks = store, dataset, marks
        self.replaced: dict[str, Json] = {}

    def rewrite(self) -> None:
        self.marks = self._with_units()
        for path, table in self._each():
            new = without_rows(table, self.marks)
            if new is not table:
                kind = table_facts(table)["table"]
                made = put_named_table(self._store, path.rpartition("/")[0], new, kind)
                self.replaced[path] = made.to_json()

    def _with_units(self) -> Marks:
        """What was cut of a raw object that is taken down is too, in a version or not."""
        names: set[str] = set()
        for path, table in self._each():
            if path.split("/")[2] == "units":
                for row in table.to_pylist():
                    if any(row.get(name) and self.marks.has(row[name]) for name in sorted(OWN)):
                        names |= {row["key"], row["unit_id"]}
        marks = self.marks
        return marks_of(marks.salt, marks.dataset, marks.plain | names, (), marks.hashes)

    def _each(self) -> Iterator[tuple[str, pa.Table]]:
        for info in self._store.list(f"tables/{self._dataset}/"):
            if info.key == settled_path(self._dataset):
                continue  # a hint that may be damaged
            if info.key.endswith(".parquet") and f"/{AHEAD}/" not in info.key:
                yield info.key, parse_table(self._store.get(info.key).data, info.key)


def _records(store: Store, prefix: str) -> Iterator[tuple[str, Json]]:
    for info in store.list(prefix):
        if info.key.endswith(".json"):
            yield info.key, json.loads(store.get(info.key).data)


def _redirected(value: Any, replaced: Mapping[str, Json]) -> Any:
    """JSON in which what names a file that was replaced names the new one."""
    if isinstance(value, Mapping):
        new = replaced.get(value["path"], {}) if isinstance(value.get("path"), str) else {}
        return {name: new[name] if name in new else _redirected(one, replaced) for name, one in value.items()}
    if isinstance(value, list):
        return [_redirected(one, replaced) for one in value]
    return value


def _batch(body: Json, marks: Marks) -> Json:
    """A batch's manifest in which objects that are taken down have another name. It keeps the batch's, which is a hash
    of what they were called, and says so."""
    objects = []
    for one in body.get("objects", ()):
        if any(isinstance(one.get(name), str) and marks.names(one[name]) for name in ("key", "uri")):
            named = hashlib.sha256(f"{marks.salt} {one['key']}".encode()).hexdigest()[:32]
            one = {**one, "key": f"taken-down/{named}", "uri": f"taken-down:{named}", "etag": ""}
        objects.append(one)
    if objects == body.get("objects", []):
        return body
    return {**body, "objects": objects, "redacted": True}
