"""Where the samples of a takedown are: in every version that is still there, retired or not."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from loader import Root, Version
from loader.dataset.apply_denies import Rows, denied_files
from loader.dataset.edits import is_annotation
from loader.dataset.history import Deny, VersionRecord
from loader.dataset.key_hashes import hashes_of
from loader.dataset.parquet import TableFile, get_table

from .record import Place
from .whole import Whole, over_whole

NAMES = ("key", "source_key", "unit_id", "raw_key", "raw_uri", "raw_sha256", "subject")
"""Columns whose values name a sample."""


@dataclass(slots=True)
class Found:
    """Of one dataset. rows: part -> row -> deny entry, of all its versions; names: in plain, of what only these samples
    have; uris: of the raw objects that they were cut of, others too or not; places: what has to be gone; versions:
    those that had them, newest last."""

    dataset: str
    rows: Rows = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    uris: set[str] = field(default_factory=set)
    places: list[Place] = field(default_factory=list)
    versions: list[VersionRecord] = field(default_factory=list)


def find(root: Root, dataset: str, deny: Deny) -> Found:
    """What the versions of a dataset have of a takedown, those left out of which something was collected already
    (`left_over` finds what is left of these). Reads the keys table of every run once, and of the versions that have
    something all tables of samples and shards. Raises: Corrupt; StoreError."""
    return over_whole(root, dataset, lambda versions: _find(root, dataset, deny, versions))


def _find(root: Root, dataset: str, deny: Deny, versions: Whole) -> Found:
    found = Found(dataset)
    files = {entry["path"]: entry for _, version in versions for entry in keys_files(version)}
    by_file = {path: denied_files(root.store, [deny], dataset, [entry]) for path, entry in files.items()}
    for rows in by_file.values():
        for part, members in rows.items():
            found.rows.setdefault(part, {}).update(members)
    if not found.rows:
        return found
    _name(root, files, by_file, found)
    for record, version in versions:
        if any(by_file[entry["path"]] for entry in keys_files(version)):
            found.versions.append(record)
            found.places += _places(record, version, found.rows, found.names)
    return found


def keys_files(version: Version) -> list[dict[str, Any]]:
    """Where a version has the keys and the provenance of its samples, as its manifest names them."""
    return [entry for entry in version.manifest["samples"] if entry["group"] == "keys"]


def _name(
    root: Root, files: Mapping[str, Mapping[str, Any]], by_file: Mapping[str, Rows], found: Found
) -> None:
    """Fills names and uris. What names a raw object that other samples were cut of too is not theirs alone; what stands
    for a sample that was redacted already is no name of it."""
    mine: dict[str, set[str]] = {name: set() for name in NAMES}
    others: list[tuple[str, pa.ChunkedArray]] = []
    for path, entry in files.items():
        names = [name for name in NAMES if name in entry["columns"]]
        table = get_table(root.store, TableFile.from_json(dict(entry)), ["part", "row", *names])
        at = list(zip(table["part"].to_pylist(), table["row"].to_pylist(), strict=True))
        gone = pa.array([row in by_file[path].get(part, ()) for part, row in at], pa.bool_())
        left = pa.array([row not in found.rows.get(part, ()) for part, row in at], pa.bool_())
        for name in names:
            mine[name] |= set(pc.unique(table[name].filter(gone)).drop_null().to_pylist())
            others.append((name, table[name].filter(left)))
    found.uris = mine["raw_uri"] - {""}
    for name, values in others:
        shared = pc.is_in(values, value_set=pa.array(sorted(mine[name]), pa.string()))
        mine[name] -= set(values.filter(shared).to_pylist())
    found.names = set().union(*mine.values()) - {""}


def _places(record: VersionRecord, version: Version, rows: Rows, names: set[str]) -> Iterator[Place]:
    """What this version has of these samples: the version, shards with their indexes, and tables of samples."""
    yield {"check": "retired", "what": f"version {record.name}", "of": record.dataset, "id": record.id}

    def absent(what: str, path: str) -> Place:
        return {"check": "absent", "what": what, "of": record.dataset, "path": path}

    for shard in version.parts.shard_rows().to_pylist():
        if shard["part"] in rows:
            where = f"part {shard['part']} {shard['group']}"
            facts = {"sha256": shard["sha256"], "nbytes": shard["nbytes"]}
            yield {**absent(f"shard of {where}", shard["path"]), **facts}
            yield absent(f"index of {where}", shard["index_path"])
    changed = set()
    for entry in version.manifest["samples"]:
        table = get_table(version.store, TableFile.from_json(entry), ["part", "row"])
        at = zip(table["part"].to_pylist(), table["row"].to_pylist(), strict=True)
        if any(row in rows.get(part, ()) for part, row in at):
            changed.add(entry["path"])
            yield absent(f"samples table ({entry['group']})", entry["path"])
    hashes = pa.array(hashes_of(sorted(names)), pa.int64())
    for entry in version.manifest.get("key_hashes", ()) if changed else ():
        table = get_table(version.store, TableFile.from_json(entry))
        if pc.any(pc.is_in(table["hash"], value_set=hashes)).as_py():
            yield absent("hashes of keys", entry["path"])
    counted = counted_again(version.manifest, changed)
    for entry in version.manifest["stats"]:
        if _folder(entry) in counted:
            yield absent("statistics", entry["path"])


def folders(manifest: Mapping[str, Any]) -> dict[str, str]:
    """path -> folder of its run, of samples and statistics files: a run's files lie in one, its statistics among them.

    Earlier releases laid each annotation of a refresh in a folder of its own, and the statistics of all beside these,
    under the same transaction."""
    found = {entry["path"]: _folder(entry) for entry in (*manifest["samples"], *manifest["stats"])}
    counted = {_folder(entry) for entry in manifest["stats"]}
    alone = counted - {_folder(entry) for entry in manifest["samples"]}
    of_txn = {folder.rpartition("/")[0]: folder for folder in alone}
    for entry in manifest["samples"]:
        folder = _folder(entry)
        if is_annotation(entry) and folder not in counted:
            found[entry["path"]] = of_txn.get(folder.rpartition("/")[0], folder)
    return found


def _folder(entry: Mapping[str, Any]) -> str:
    folder: str = entry["path"].rpartition("/")[0]
    return folder


def counted_again(manifest: Mapping[str, Any], changed: Collection[str]) -> set[str]:
    """Folders of the runs whose statistics change with these samples files: their own, and those of annotations, which
    count a column whole that was there before."""
    columns: set[str] = set()
    out, folder_of = set(), folders(manifest)
    for entry in manifest["samples"]:
        if entry["path"] in changed or (is_annotation(entry) and not columns.isdisjoint(entry["columns"])):
            out.add(folder_of[entry["path"]])
        if entry["path"] in changed:
            columns |= set(entry["columns"])
    return out


def all_datasets(root: Root) -> Sequence[str]:
    """Those that have versions or transactions, and those that a pipeline has tables or stages of."""
    named = {info.key.split("/")[1] for place in ("tables/", "stages/") for info in root.store.list(place)}
    # Whoever has a version had a transaction first.
    return sorted(named | {txn.dataset for txn in root.state.txns.values()})
