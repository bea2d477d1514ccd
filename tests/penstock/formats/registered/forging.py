"""Versions as somebody forges them who may write to a root: a registered one with another table of objects."""

import hashlib

import pyarrow as pa

from loader.dataset.log.entries import canonical
from loader.dataset.log.rules import CommitBody
from loader.dataset.tables.foreign_objects import FOREIGN_SCHEMA, foreign_objects
from loader.dataset.tables.parquet import put_named, table_bytes


def forge(root, version, change):
    """The next version, whose rows of objects are what `change` makes of those of `version`."""
    objects, facts = foreign_objects(root.store, version.manifest["foreign"])
    rows = [{name: getattr(one, name) for name in FOREIGN_SCHEMA.names} for one in objects]
    change(rows)
    data = table_bytes(pa.Table.from_pylist(rows, FOREIGN_SCHEMA), "foreign", facts=facts)
    txn = root.begin(version.dataset)
    file = put_named(root.store, f"data/{txn}/forged", "foreign", data, len(rows))

    def build(state):
        body = {**version.manifest, "parent": version.id, "txn": txn, "foreign": [file.to_json()]}
        manifest = canonical(body)
        sha256 = hashlib.sha256(manifest).hexdigest()
        path = f"data/{txn}/forged/manifest-{sha256[:16]}.json"
        root.store.put_if_absent(path, manifest)
        denies = state.last_deny
        return CommitBody(id=f"v-{sha256}", manifest=path, sha256=sha256, parent=version.id, denies=denies)

    root.log.commit(txn, build)
    return root.open(version.dataset)


def place_id(version):
    """The id of the place of a registered version."""
    return version.parts.shard_rows()["path"][0].as_py().split("/")[1]
