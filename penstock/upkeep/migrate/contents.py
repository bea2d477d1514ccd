"""Objects that a mirror lacks, named by the log and by manifests, without a listing of the data."""

from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

from loader.dataset.log.state import State, VersionRecord
from loader.dataset.tables.foreign_objects import is_foreign
from loader.dataset.tables.manifest import Reference, read_manifest, table_references
from loader.dataset.tables.parquet import TableFile, get_table
from loader.errors import PenstockError
from loader.storage import Store

from ...denied.denied_bytes import DeniedBytes
from ...denied.record import read_record
from ..copying.items import Item

SMALL_FOLDERS = (
    "plans/",
    "views/",
    "packs/",
    "lists/",
    "seals/",
    "foreign/",
    "cards/",
    "gates/",
    "exclusions/",
    "swept/",
    "takedowns/",
    "trails/",
    "log/repair-",
)
"""Prefixes of objects that no manifest names, named after their content or created once: only these are listed.

`foreign/` has only adopted objects. `swept/` and `takedowns/` tell the mirror's collector what the primary's has
deleted, and which versions a takedown retired. `log/repair-` tells what was done to the log, which readers need before
the entries.
"""
_COLUMNS = ["path", "nbytes", "sha256", "index_path", "index_nbytes", "index_crc32c"]


Failed = Callable[[str, PenstockError], None]
"""Called with the path of an object that cannot be read, and the error."""
LeftOut = Callable[[str, str], object]
"""Called with the name of a version, and the path of an object that it names outside of `OWN`."""
OWN = "data/"
"""Prefix of every object that a version is made of, but for registered ones."""


def new_versions(state: State, after: int) -> list[VersionRecord]:
    """Return the versions that are not retired and were committed after that entry, in the order of their commits."""
    found = [
        one for versions in state.datasets.values() for one in versions if one.n > after and not one.retired
    ]
    return sorted(found, key=lambda one: one.n)


def new_items(
    source: Store, target: Store, state: State, after: int, failed: Failed, left_out: LeftOut
) -> Iterator[Item]:
    """Yield the objects of the versions committed after entry `after` that earlier versions do not have.

    An object that a version names outside of `OWN` is never copied. The publisher chooses that path, and
    the mirror's log or a collector's notes may lie there.

    Each version's manifest comes after all else of it; at the end comes what lies in `SMALL_FOLDERS` and not in those
    of the target. Objects that a takedown deletes are passed over. Costs the records of takedowns, the listings of
    the small folders, two requests per new version, and one per shards table that is new or was merged since. Memory:
    the shards tables that one version adds.
    """
    for record in new_versions(state, after):
        if record.manifest.startswith(OWN):
            yield from _version(source, state, record, failed, left_out)
        else:
            left_out(record.name, record.manifest)
    denied = DeniedBytes(source, state.denies)
    deleted = {
        place["path"] for deny in state.denies for place in read_record(source, deny.n).having("absent")
    }
    for folder in SMALL_FOLDERS:
        there = {info.key for info in target.list(folder)}
        for info in source.list(folder):
            if info.key not in there and info.key not in deleted and not denied.has_path(info.key):
                yield Item(path=info.key, nbytes=info.nbytes)


def _version(
    source: Store, state: State, record: VersionRecord, failed: Failed, left_out: LeftOut
) -> Iterator[Item]:
    """Yield the objects of a version that its parent does not have, its manifest last."""
    try:
        manifest = read_manifest(source, record.manifest, record.sha256)
        base = _base(source, state, record)
        known = {file.path for file in table_references(base)}
        merged = _merged(source, base, manifest)
    except PenstockError as error:
        failed(record.manifest, error)
        return
    look = (
        not base and record.parent is not None
    )  # the parent was retired: it was copied before that, or never
    for file in table_references(manifest):
        if file.path in known:
            continue
        if not file.path.startswith(OWN):
            left_out(record.name, file.path)
            continue
        if file.kind == "shards":
            for item in _shards(source, TableFile(**_as_table(file)), look, merged, failed):
                if item.path.startswith(OWN):
                    yield item
                else:
                    left_out(record.name, item.path)
        yield Item(path=file.path, nbytes=file.nbytes, digest=f"sha256:{file.sha256}", look=look)
    yield Item(path=record.manifest, nbytes=None, digest=f"sha256:{record.sha256}", look=look)


def _merged(source: Store, base: Mapping[str, Any], manifest: Mapping[str, Any]) -> set[str]:
    """Return the indexes of shards of the parent's tables that were merged since.

    The merged tables name shards that came with the parent, by their indexes: registered bytes may have another one.
    """
    gone = {file["path"] for file in base.get("shards", ())} - {one["path"] for one in manifest["shards"]}
    tables = (TableFile.from_json(file) for file in base.get("shards", ()) if file["path"] in gone)
    return {
        path for file in tables for path in get_table(source, file, ["index_path"])["index_path"].to_pylist()
    }


def _base(source: Store, state: State, record: VersionRecord) -> Mapping[str, Any]:
    """Return the manifest of the parent; {} without one that is copied before."""
    parent = state.by_id(record.parent) if record.parent else None
    if parent is None or parent.retired:
        return {}
    return read_manifest(source, parent.manifest, parent.sha256)


def _as_table(file: Reference) -> dict[str, Any]:
    return {"path": file.path, "nbytes": file.nbytes, "sha256": file.sha256, "n_rows": 0}


def _shards(
    source: Store, file: TableFile, look: bool, merged: Container[str], failed: Failed
) -> Iterator[Item]:
    try:
        table = get_table(source, file, _COLUMNS)
    except PenstockError as error:
        failed(file.path, error)
        return
    for batch in table.to_batches(max_chunksize=4096):
        row: dict[str, Any]
        for row in batch.to_pylist():
            if row["index_path"] in merged:
                continue
            if not is_foreign(row["path"]):  # registered bytes stay where they are
                yield Item(
                    path=row["path"], nbytes=row["nbytes"], digest=f"sha256:{row['sha256']}", look=look
                )
            yield Item(
                path=row["index_path"],
                nbytes=row["index_nbytes"],
                digest=f"crc32c:{row['index_crc32c']:08x}",
                look=look,
            )
