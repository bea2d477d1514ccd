"""The samples of a takedown, found in every version that is still there, retired or not."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from loader import Root, Version
from loader.dataset.log.state import VersionRecord
from loader.dataset.names import hashes_of
from loader.dataset.publishing.apply_denies import Rows
from loader.dataset.shards.index import IndexPlace
from loader.dataset.tables.columns import is_annotation
from loader.dataset.tables.foreign_objects import ForeignObject, is_adopted, is_foreign
from loader.dataset.tables.parquet import TableFile, get_table

from ..confirmed_listing import listed_twice
from .cells import LABELS, TOLD, class_names_without, scrub, searched
from .denied_bytes import DeniedBytes
from .hashed_names import Marks
from .keys_tables import KeysTables
from .names import keys_files, names_of
from .readable_versions import Whole, over_whole
from .record import Place
from .registered_objects import by_shard, objects_with, owners_place


@dataclass(slots=True, kw_only=True)
class Found:
    """The findings in one dataset."""

    dataset: str
    """Name of the dataset."""
    marks: Marks
    """Names that only these samples have."""
    rows: Rows = field(default_factory=dict)
    """Part -> row -> deny entry, of all its versions."""
    uris: set[str] = field(default_factory=set)
    """URIs of the raw objects that they were cut of, whether or not others were too."""
    places: list[Place] = field(default_factory=list)
    """Places that have to be gone."""
    versions: list[VersionRecord] = field(default_factory=list)
    """Versions that had them, or name them, newest last."""
    adopted: set[str] = field(default_factory=set)
    """Paths of adopted objects that hold samples denied by any takedown."""
    named_in: Mapping[str, list[int]] = field(default_factory=dict)
    """Path of a table -> numbers of its rows that have names of theirs."""


def find(tables: KeysTables, dataset: str, known: Iterable[str] = ()) -> Found:
    """Return the findings of a takedown in the versions of a dataset.

    Versions of which something was collected already are left out: `left_over` finds what is left of these.

    Reads the keys table of every run once, the tables with columns that name other samples, and what open transactions
    have of samples. It reads all tables of samples and shards of the versions that have something.

    known: marks that are on record.

    Raises: Corrupt; StoreError.
    """
    marks = frozenset(known)
    return over_whole(tables.root, dataset, lambda versions: _find(tables, dataset, versions, marks))


def _find(tables: KeysTables, dataset: str, versions: Whole, known: frozenset[str]) -> Found:
    files = {entry["path"]: entry for _, version in versions for entry in keys_files(version)}
    denied = dict(zip(files, tables.denied(dataset, list(files.values())), strict=True))
    by_file = {path: rows.mine for path, rows in denied.items()}
    rows: Rows = {}
    for some in by_file.values():
        for part, members in some.items():
            rows.setdefault(part, {}).update(members)
    named = names_of(tables, dataset, files, denied, known)
    found = Found(dataset=dataset, marks=named.marks, rows=rows, uris=named.uris, named_in=named.rows)
    look = _Look(found, by_file, DeniedBytes(tables.root.store, tables.root.state.denies))
    for record, version in versions:
        if look.has_some(version):
            found.versions.append(record)
            found.places += look.places(record, version)
    return found


def names_some(version: Version, marks: Marks) -> bool:
    """Return whether a version names denied samples, in a column, reason or class. Reads tables that may."""
    return _Look(Found(dataset=version.dataset, marks=marks)).names_some(version)


def producer_names_some(manifest: Mapping[str, Any], marks: Marks) -> bool:
    """Return whether a manifest names them: as a class, or in what a person said who excluded samples."""
    producer = manifest.get("producer", {})
    names = producer.get(LABELS)
    if isinstance(names, list) and class_names_without(names, marks) != names:
        return True
    said = [producer.get(name) for name in TOLD] if "exclusion" in producer else []
    return any(isinstance(text, str) and marks.names(text) for text in said)


class _Look:
    """Versions of one dataset, each of their tables looked at once."""

    def __init__(
        self,
        found: Found,
        by_file: Mapping[str, Rows] = MappingProxyType({}),
        denied: DeniedBytes | None = None,
    ) -> None:
        """Begin with nothing looked at. by_file: path of a keys table -> its denied samples, under their own keys."""
        self._denied, self._adopted = denied, dict[str, dict[str, list[str]]]()
        self._found, self._by_file = found, by_file
        self._parts: dict[str, frozenset[str]] = {}
        self._names: dict[str, bool] = {}
        self._hashes = pa.array(hashes_of(sorted(found.marks.plain)), pa.int64())
        self._hashed: dict[str, bool] = {}
        self._objects: dict[str, tuple[dict[str, list[ForeignObject]], set[str]]] = {}

    def has_some(self, version: Version) -> bool:
        """Return whether a version has such samples, or names them."""
        return bool(self._parts_of(version) or self._adopted_of(version)) or self.names_some(version)

    def _adopted_of(self, version: Version) -> dict[str, list[str]]:
        """Return its adopted objects that hold denied samples, by shard: also redacted ones."""
        if version.id not in self._adopted:
            self._adopted[version.id] = {} if self._denied is None else self._denied.adopted(version)
        return self._adopted[version.id]

    def _parts_of(self, version: Version) -> frozenset[str]:
        """Return its parts that have such samples; a redacted part has none any more."""
        files = [self._by_file.get(entry["path"], {}) for entry in keys_files(version)]
        return frozenset(part for file in files for part in file)

    def names_some(self, version: Version) -> bool:
        """Return whether a table, or a class, names them."""
        entries = (*version.manifest["samples"], *version.manifest["exclusions"])
        return any(self._has_names(version, one) for one in entries) or producer_names_some(
            version.manifest, self._found.marks
        )

    def _with_rows(self, version: Version, entry: Mapping[str, Any]) -> frozenset[str]:
        """Return the parts of which a table has rows that are denied."""
        path, rows = entry["path"], self._found.rows
        if path not in self._parts:
            table = get_table(version.store, TableFile.from_json(dict(entry)), ["part", "row"])
            at = zip(table["part"].to_pylist(), table["row"].to_pylist(), strict=True)
            self._parts[path] = frozenset(part for part, row in at if row in rows.get(part, ()))
        return self._parts[path]

    def _has_names(self, version: Version, entry: Mapping[str, Any]) -> bool:
        path = entry["path"]
        if path not in self._names:
            # An exclusions file has a reason; a manifest lists no columns of it.
            columns = [name for name in entry.get("columns", ["reason"]) if searched(name)]
            self._names[path] = False
            if columns:
                table = get_table(version.store, TableFile.from_json(dict(entry)), columns)
                self._names[path] = scrub(table, self._found.marks) is not table
        return self._names[path]

    def _has_hash(self, version: Version, entry: Mapping[str, Any]) -> bool:
        """Return whether a table of hashes of keys has one of theirs."""
        path = entry["path"]
        if path not in self._hashed:
            table = get_table(version.store, TableFile.from_json(dict(entry)))
            self._hashed[path] = bool(pc.any(pc.is_in(table["hash"], value_set=self._hashes)).as_py())
        return self._hashed[path]

    def places(self, record: VersionRecord, version: Version) -> Iterator[Place]:
        """Yield the places of these samples in this version: the version, shards with their indexes, and tables."""
        parts = self._parts_of(version)
        yield {"check": "retired", "what": f"version {record.name}", "of": record.dataset, "id": record.id}

        def absent(what: str, path: str) -> Place:
            return {"check": "absent", "what": what, "of": record.dataset, "path": path}

        for shard in version.parts.shard_rows().to_pylist():
            if shard["part"] in parts:
                where = f"part {shard['part']} {shard['group']}"
                facts = {"sha256": shard["sha256"], "nbytes": shard["nbytes"]}
                if is_foreign(shard["path"]):
                    yield from self._registered(version, shard, absent)
                else:
                    yield {**absent(f"shard of {where}", shard["path"]), **facts}
                yield absent(f"index of {where}", shard["index_path"])
                if seal := IndexPlace.of(shard).seal:
                    yield absent(f"seal of {where}", seal)
        for paths in self._adopted_of(version).values():
            self._found.adopted.update(paths)
            yield from (absent("adopted object", path) for path in paths)
        changed = set()
        for entry in version.manifest["samples"]:
            mine = bool(parts) and not parts.isdisjoint(self._with_rows(version, entry))
            if mine or self._has_names(version, entry):
                changed.add(entry["path"])
                yield absent(f"samples table ({entry['group']})", entry["path"])
        for entry in version.manifest["exclusions"]:
            if self._has_names(version, entry):
                yield absent("exclusions", entry["path"])
        for entry in version.manifest.get("key_hashes", ()) if changed and parts else ():
            if self._has_hash(version, entry):
                yield absent("hashes of keys", entry["path"])
        counted = counted_again(version.manifest, changed)
        for entry in version.manifest["stats"]:
            if _folder(entry) in counted:
                yield absent("statistics", entry["path"])
        if producer_names_some(version.manifest, self._found.marks):
            yield absent("manifest", record.manifest)

    def _registered(
        self, version: Version, shard: dict[str, Any], absent: Callable[[str, str], Place]
    ) -> Iterator[Place]:
        """Yield the objects of a registered shard that have samples of the takedown."""
        if version.id not in self._objects:
            objects = by_shard(version)
            places = {one.place for some in objects.values() for one in some}
            here = {place for place in places if is_adopted(version.store, place)}
            self._objects = {version.id: (objects, here)}
        objects, here = self._objects[version.id]
        for one in objects_with(
            version, shard, objects.get(shard["path"], ()), self._found.rows[shard["part"]]
        ):
            yield owners_place(self._found.marks, one, shard)
            if one.place in here:
                yield absent("adopted object", one.path)


def folders(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return path -> folder of its run, of samples and statistics files.

    A run's files lie in one folder, its statistics among them. Earlier releases laid each annotation of a refresh in a
    folder of its own, and the statistics of all beside these, under the same transaction.
    """
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
    """Return the folders of the runs whose statistics change with these samples files.

    They are their own folders, and the folders of annotations, which count a whole earlier column.
    """
    columns: set[str] = set()
    out, folder_of = set(), folders(manifest)
    for entry in manifest["samples"]:
        if entry["path"] in changed or (is_annotation(entry) and not columns.isdisjoint(entry["columns"])):
            out.add(folder_of[entry["path"]])
        if entry["path"] in changed:
            columns |= set(entry["columns"])
    return out


def all_datasets(root: Root) -> Sequence[str]:
    """Return the datasets with versions or transactions, and the datasets of a pipeline's tables or stages."""
    named = {
        info.key.split("/")[1] for place in ("tables/", "stages/") for info in listed_twice(root.store, place)
    }
    # A dataset with a version had a transaction first.
    return sorted(named | {txn.dataset for txn in root.state.txns.values()})
