"""Find the objects that a mirror lacks, from the log and manifests, without listing the data."""

from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

from loader.dataset.log.state import State, VersionRecord
from loader.dataset.tables.foreign_objects import is_foreign
from loader.dataset.tables.manifest import Reference, read_manifest, table_references
from loader.dataset.tables.parquet import TableFile, get_table
from loader.errors import ObjectNotFound, PenstockError
from loader.storage import Store

from ...denied.denied_bytes import DeniedBytes
from ...denied.record import read_record
from ..copying.items import Item
from ..gc.derived_segments import FOLDERS as DERIVED
from ..gc.derived_segments import is_record

SMALL_FOLDERS = (
    "plans/",
    "views/",
    "packs/",
    "lists/",
    "windows/",
    "norms/",
    "protected/",
    "seals/",
    "foreign/",
    "cards/",
    "gates/",
    "exclusions/",
    "slices/",
    "search/",
    "maps/",
    "swept/",
    "takedowns/",
    "trails/",
    "log/repair-",
)
"""Prefixes of objects that no manifest names. Only these are listed."""
FOLLOWS = "follows/"
"""Prefix of runs' records of plans. They are copied after the log: their plans read versions that it names."""
_COLUMNS = ["path", "nbytes", "sha256", "index_path", "index_nbytes", "index_crc32c"]


Failed = Callable[[str, PenstockError], None]
"""Callback for an unreadable object: its path, and the error."""
LeftOut = Callable[[str, str], object]
"""Callback for an object outside `OWN`: its version's name, and its path."""
OWN = "data/"
"""Prefix of all of a version's objects, except registered ones."""


def new_versions(state: State, after: int) -> list[VersionRecord]:
    """Return the versions committed after entry `after` and not retired, in log order."""
    records = [
        one for versions in state.datasets.values() for one in versions if one.n > after and not one.retired
    ]
    return sorted(records, key=lambda record: record.n)


def new_items(
    source: Store, target: Store, state: State, after: int, failed: Failed, left_out: LeftOut
) -> Iterator[Item]:
    """Yield the objects that versions committed after entry `after` have and earlier versions lack.

    An object outside `OWN` could overwrite the mirror's log, and is never copied. A manifest follows its objects;
    `SMALL_FOLDERS` come last. Objects that a takedown deletes are skipped.

    Costs the takedown records, listings of the small folders, two requests per new version, and one per new or merged
    shards table. Memory: the shards tables that one version adds.
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


def stale_derived(source: Store, target: Store) -> list[str]:
    """Return the mirror's objects of indexes and maps that the primary dropped, or made again with another record.

    Segments of two fits do not fit together. Costs a listing of each prefix, and two requests per index and map.
    """
    stale: list[str] = []
    for prefix in DERIVED:
        keys_by_folder: dict[str, list[str]] = defaultdict(list)
        for info in target.list(prefix):
            folder, _, _ = info.key.rpartition("/")
            keys_by_folder[folder].append(info.key)
        for keys in keys_by_folder.values():
            records = [key for key in keys if is_record(key)]
            if any(_read(source, key) != _read(target, key) for key in records):
                stale += keys
    return stale


def _read(store: Store, key: str) -> bytes | None:
    """Return an object's bytes; None if it does not exist."""
    try:
        return store.get(key).data
    except ObjectNotFound:
        return None


def missing_records(source: Store, target: Store) -> list[Item]:
    """Return the records under `follows/` that the mirror lacks.

    Call this before the log and the small folders are read. A record is written after what it names: the later reads
    then find every plan and every version of these records.
    """
    present = {info.key for info in target.list(FOLLOWS)}
    missing = [info for info in source.list(FOLLOWS) if info.key not in present]
    return [Item(path=info.key, nbytes=info.nbytes) for info in missing]


def _version(
    source: Store, state: State, record: VersionRecord, failed: Failed, left_out: LeftOut
) -> Iterator[Item]:
    """Yield the objects of a version that its parent lacks; its manifest comes last."""
    try:
        manifest = read_manifest(source, record.manifest, record.sha256)
        base = _base(source, state, record)
        # The mirror has the parent's tables: versions are copied in the log's order.
        known = {file.path for file in table_references(base)}
        merged = _merge_paths(source, base, manifest)
    except PenstockError as error:
        failed(record.manifest, error)
        return
    # A retired parent was copied before its retirement, or not at all.
    may_exist = not base and record.parent is not None
    for file in table_references(manifest):
        if file.path in known:
            continue
        if not file.path.startswith(OWN):
            left_out(record.name, file.path)
            continue
        if file.kind == "shards":
            for item in _shards(source, TableFile(**_as_table(file)), may_exist, merged, failed):
                if item.path.startswith(OWN):
                    yield item
                else:
                    left_out(record.name, item.path)
        yield Item(path=file.path, nbytes=file.nbytes, digest=f"sha256:{file.sha256}", may_exist=may_exist)
    yield Item(path=record.manifest, nbytes=None, digest=f"sha256:{record.sha256}", may_exist=may_exist)


def _merge_paths(source: Store, base: Mapping[str, Any], manifest: Mapping[str, Any]) -> set[str]:
    """Return paths of indexes in the parent's shards tables that this version merged into its own.

    The mirror has these shards from the parent. base: the parent's manifest, or {}.
    """
    paths = {file["path"] for file in manifest["shards"]}
    index_paths: set[str] = set()
    for file in base.get("shards", ()):
        if file["path"] in paths:
            continue
        table = get_table(source, TableFile.from_json(file), ["index_path"])
        index_paths.update(table["index_path"].to_pylist())
    return index_paths


def _base(source: Store, state: State, record: VersionRecord) -> Mapping[str, Any]:
    """Return the manifest of the version's parent; {} without one, or if it is retired."""
    parent = None
    if record.parent:
        parent = state.by_id(record.parent)
    if parent is None or parent.retired:
        return {}
    return read_manifest(source, parent.manifest, parent.sha256)


def _as_table(file: Reference) -> dict[str, Any]:
    """Return the fields of a `TableFile`; a reference has no number of rows."""
    return {"path": file.path, "nbytes": file.nbytes, "sha256": file.sha256, "n_rows": 0}


def _shards(
    source: Store, file: TableFile, may_exist: bool, merged: Container[str], failed: Failed
) -> Iterator[Item]:
    """Yield the shards and indexes of a shards table. merged: paths of indexes that the mirror has, with their shards.

    may_exist: as in `Item`.
    """
    try:
        table = get_table(source, file, _COLUMNS)
    except PenstockError as error:
        failed(file.path, error)
        return
    # Python objects of a slice at a time: a table may name millions of shards.
    for batch in table.to_batches(max_chunksize=4096):
        row: dict[str, Any]
        for row in batch.to_pylist():
            if row["index_path"] in merged:
                continue
            if not is_foreign(row["path"]):  # registered bytes stay where they are
                yield Item(
                    path=row["path"],
                    nbytes=row["nbytes"],
                    digest=f"sha256:{row['sha256']}",
                    may_exist=may_exist,
                )
            yield Item(
                path=row["index_path"],
                nbytes=row["index_nbytes"],
                digest=f"crc32c:{row['index_crc32c']:08x}",
                may_exist=may_exist,
            )
