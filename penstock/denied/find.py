"""Find a takedown's samples in every version that still exists, retired or not."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from loader import Root, Version
from loader.dataset.log.state import VersionRecord
from loader.dataset.names import hashes_of
from loader.dataset.publishing.apply_denies import DenyEntries
from loader.dataset.shards.index import IndexPlace
from loader.dataset.tables.columns import is_annotation
from loader.dataset.tables.foreign_objects import ForeignObject, is_foreign
from loader.dataset.tables.parquet import TableFile, get_table
from loader.dataset.tables.place_records import is_adopted

from .cells import LABELS, WORDS, may_name_samples, scrub, scrub_class_names
from .denied_bytes import DeniedBytes, denied_objects, registered_objects, registered_place
from .hashed_names import Marks
from .keys_tables import KeysTables, denied_names, keys_files
from .readable_versions import WholeVersions, read_whole_versions
from .record import Place
from .sources import list_twice


@dataclass(slots=True, kw_only=True)
class Findings:
    """A takedown's findings in one dataset."""

    dataset: str
    """Name of the dataset."""
    marks: Marks
    """Names that only the denied samples have."""
    rows: DenyEntries = field(default_factory=dict)
    """Part -> row -> number of the deny entry, over all versions."""
    uris: set[str] = field(default_factory=set)
    """URIs of the samples' raw objects, even shared ones."""
    places: list[Place] = field(default_factory=list)
    """Objects and versions that must be removed or changed."""
    versions: list[VersionRecord] = field(default_factory=list)
    """Versions that contained or name the samples, newest last."""
    adopted: set[str] = field(default_factory=set)
    """Paths of adopted objects that contain samples denied by any takedown."""
    named_in: Mapping[str, list[int]] = field(default_factory=dict)
    """Path of a table -> numbers of the rows that name the samples."""


def find(tables: KeysTables, dataset: str, known: Iterable[str] = ()) -> Findings:
    """Return a takedown's findings in a dataset's versions. Skips versions that are partly collected.

    Costs a read of each keys table, of tables that name other samples, of open transactions' samples, and of all tables
    of affected versions. known: recorded marks.
    """
    marks = frozenset(known)
    return read_whole_versions(tables.root, dataset, lambda versions: _find(tables, dataset, versions, marks))


def _find(tables: KeysTables, dataset: str, versions: WholeVersions, known: frozenset[str]) -> Findings:
    # Versions share tables: each one is read once.
    files: dict[str, dict[str, Any]] = {}
    for _, version in versions:
        for entry in keys_files(version):
            files[entry["path"]] = entry
    denied_rows_of_files = tables.denied(dataset, list(files.values()))
    denied = dict(zip(files, denied_rows_of_files, strict=True))

    own_rows = {path: rows.own for path, rows in denied.items()}  # rows of this takedown
    merged_rows: DenyEntries = {}
    for rows_of_parts in own_rows.values():
        for part, entries in rows_of_parts.items():
            merged_rows.setdefault(part, {}).update(entries)
    named = denied_names(tables, dataset, files, denied, known)
    findings = Findings(
        dataset=dataset,
        marks=named.marks,
        rows=merged_rows,
        uris=named.uris,
        named_in=named.rows,
    )
    denied_bytes = DeniedBytes(tables.root.store, tables.root.state.denies)
    search = _Search(findings, own_rows, denied_bytes)
    for record, version in versions:
        if search.has_some(version):
            findings.versions.append(record)
            findings.places += search.places(record, version)
    return findings


def find_denied_path(version: Version, marks: Marks) -> str:
    """Return the path of an object of the version that names denied samples; empty without any."""
    return _Search(Findings(dataset=version.dataset, marks=marks)).names_in(version)


def producer_names_some(manifest: Mapping[str, Any], marks: Marks) -> bool:
    """Return whether a manifest names denied samples, as a class or in text written by a person."""
    producer = manifest.get("producer", {})
    names = producer.get(LABELS)
    if isinstance(names, list) and scrub_class_names(names, marks) != names:
        return True
    if "exclusion" not in producer:
        return False  # only an exclusion has text written by a person
    for name in WORDS:
        text = producer.get(name)
        if isinstance(text, str) and marks.names(text):
            return True
    return False


class _Registered(NamedTuple):
    """The registered objects of a version."""

    objects: dict[str, list[ForeignObject]]
    """Path of a registered shard -> its objects, by offset."""
    adopted: set[str]
    """Locations whose objects were copied into the root."""


class _Search:
    """Searches one dataset's versions, reading each table once."""

    def __init__(
        self,
        findings: Findings,
        own_rows: Mapping[str, DenyEntries] = MappingProxyType({}),
        denied: DeniedBytes | None = None,
    ) -> None:
        """own_rows: path of a keys table -> rows that the takedown denies. denied: None searches no adopted objects."""
        self._findings = findings
        self._own_rows = own_rows
        self._denied = denied
        # Caches: a version is searched several times, and versions share tables.
        # Version's id -> `DeniedBytes.adopted`.
        self._adopted: dict[str, dict[str, list[str]]] = {}
        # Version's id -> its registered objects, for the last searched version only.
        self._registered: dict[str, _Registered] = {}
        # Path of a samples table -> its parts that have denied rows.
        self._parts: dict[str, frozenset[str]] = {}
        # Path of a table -> whether a cell names a denied sample.
        self._has_names_by_path: dict[str, bool] = {}
        # Path of a table of key hashes -> whether it has the hash of a denied key.
        self._has_hash_by_path: dict[str, bool] = {}
        # int64 [names]: hashes of the denied names that are known in plain text.
        self._denied_hashes = pa.array(hashes_of(sorted(findings.marks.plain)), pa.int64())

    def has_some(self, version: Version) -> bool:
        if self._version_parts(version) or self._version_adopted(version):
            return True
        return bool(self.names_in(version))

    def _version_adopted(self, version: Version) -> dict[str, list[str]]:
        if self._denied is None:
            return {}
        if version.id not in self._adopted:
            self._adopted[version.id] = self._denied.adopted(version)
        return self._adopted[version.id]

    def _version_parts(self, version: Version) -> frozenset[str]:
        parts: set[str] = set()
        for entry in keys_files(version):
            parts.update(self._own_rows.get(entry["path"], {}))
        return frozenset(parts)

    def names_in(self, version: Version) -> str:
        """Return the first object of the version that names denied samples: a path, "its manifest" or ""."""
        for entry in (*version.manifest["samples"], *version.manifest["exclusions"]):
            if self._has_names(version, entry):
                return str(entry["path"])
        if producer_names_some(version.manifest, self._findings.marks):
            return "its manifest"
        return ""

    def _parts_of_denied_rows(self, version: Version, entry: Mapping[str, Any]) -> frozenset[str]:
        path = entry["path"]
        if path not in self._parts:
            denied = self._findings.rows
            file = TableFile.from_json(dict(entry))
            table = get_table(version.store, file, ["part", "row"])
            rows = zip(table["part"].to_pylist(), table["row"].to_pylist(), strict=True)
            parts = set()
            for part, row in rows:
                if row in denied.get(part, ()):
                    parts.add(part)
            self._parts[path] = frozenset(parts)
        return self._parts[path]

    def _has_names(self, version: Version, entry: Mapping[str, Any]) -> bool:
        path = entry["path"]
        if path not in self._has_names_by_path:
            # An exclusions file has a reason column, which the manifest does not list.
            columns = [name for name in entry.get("columns", ["reason"]) if may_name_samples(name)]
            self._has_names_by_path[path] = False
            if columns:
                file = TableFile.from_json(dict(entry))
                table = get_table(version.store, file, columns)
                without_names = scrub(table, self._findings.marks)
                self._has_names_by_path[path] = without_names is not table  # the same table: it has no name
        return self._has_names_by_path[path]

    def _has_hash(self, version: Version, entry: Mapping[str, Any]) -> bool:
        path = entry["path"]
        if path not in self._has_hash_by_path:
            file = TableFile.from_json(dict(entry))
            table = get_table(version.store, file)
            is_denied = pc.is_in(table["hash"], value_set=self._denied_hashes)  # [rows]
            has_some = pc.any(is_denied)
            self._has_hash_by_path[path] = bool(has_some.as_py())
        return self._has_hash_by_path[path]

    def places(self, record: VersionRecord, version: Version) -> Iterator[Place]:
        """Yield the version, and each of its objects that must be removed or changed."""
        parts = self._version_parts(version)
        yield {"check": "retired", "what": f"version {record.name}", "of": record.dataset, "id": record.id}

        def absent(what: str, path: str) -> Place:
            return {"check": "absent", "what": what, "of": record.dataset, "path": path}

        for shard in version.parts.shard_rows().to_pylist():
            if shard["part"] not in parts:
                continue
            where = f"part {shard['part']} {shard['group']}"
            if is_foreign(shard["path"]):
                yield from self._registered_places(version, shard, absent)
            else:
                place = absent(f"shard of {where}", shard["path"])
                yield {**place, "sha256": shard["sha256"], "nbytes": shard["nbytes"]}
            index = absent(f"index of {where}", shard["index_path"])
            if shard.get("index_footer_sha256"):  # it names the index's pages in node caches
                index = {**index, "footer_sha256": shard["index_footer_sha256"]}
            yield index
            seal = IndexPlace.of(shard).seal
            if seal:
                yield absent(f"seal of {where}", seal)
        for paths in self._version_adopted(version).values():
            self._findings.adopted.update(paths)
            for path in paths:
                yield absent("adopted object", path)
        changed = set()
        for entry in version.manifest["samples"]:
            has_rows = False
            if parts:
                parts_of_table = self._parts_of_denied_rows(version, entry)
                has_rows = not parts.isdisjoint(parts_of_table)
            if has_rows or self._has_names(version, entry):
                changed.add(entry["path"])
                yield absent(f"samples table ({entry['group']})", entry["path"])
        for entry in version.manifest["exclusions"]:
            if self._has_names(version, entry):
                yield absent("exclusions", entry["path"])
        if changed and parts:  # a changed cell changes no key: only denied rows have keys to remove
            for entry in version.manifest.get("key_hashes", ()):
                if self._has_hash(version, entry):
                    yield absent("hashes of keys", entry["path"])
        counted = recount_folders(version.manifest, changed)
        for entry in version.manifest["stats"]:
            if _folder(entry["path"]) in counted:
                yield absent("statistics", entry["path"])
        if producer_names_some(version.manifest, self._findings.marks):
            yield absent("manifest", record.manifest)

    def _registered_places(
        self, version: Version, shard: dict[str, Any], absent: Callable[[str, str], Place]
    ) -> Iterator[Place]:
        if version.id not in self._registered:
            objects = registered_objects(version)
            places: set[str] = set()
            for objects_of_shard in objects.values():
                places.update(object_.place for object_ in objects_of_shard)
            adopted = {place for place in places if is_adopted(version.store, place)}
            # Only one version's objects are kept, to bound the memory.
            self._registered = {version.id: _Registered(objects, adopted)}
        registered = self._registered[version.id]
        candidates = registered.objects.get(shard["path"], ())
        rows = self._findings.rows[shard["part"]]
        for object_ in denied_objects(version, shard, candidates, rows):
            yield registered_place(self._findings.marks, object_, shard)
            if object_.place in registered.adopted:
                yield absent("adopted object", object_.path)


def folders(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return path -> folder of its run, for samples and statistics files.

    Earlier releases gave each annotation of a refresh its own folder, and all statistics of the transaction another
    one: such an annotation has the folder of these statistics here.
    """
    samples_folder_of = {entry["path"]: _folder(entry["path"]) for entry in manifest["samples"]}
    stats_folder_of = {entry["path"]: _folder(entry["path"]) for entry in manifest["stats"]}
    folder_of = samples_folder_of | stats_folder_of
    stats_folders = set(stats_folder_of.values())
    only_stats = {}  # transaction's folder -> its folder that has only statistics
    for folder in stats_folders.difference(samples_folder_of.values()):
        only_stats[_folder(folder)] = folder
    for entry in manifest["samples"]:
        folder = folder_of[entry["path"]]
        if is_annotation(entry) and folder not in stats_folders:
            folder_of[entry["path"]] = only_stats.get(_folder(folder), folder)
    return folder_of


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def recount_folders(manifest: Mapping[str, Any], changed: Collection[str]) -> set[str]:
    """Return the folders whose statistics change with these samples files. changed: their paths.

    An annotation's statistics cover its columns in all earlier files too, so they change with an earlier file.
    """
    columns: set[str] = set()  # of the changed files so far
    folder_of = folders(manifest)
    out = set()
    for entry in manifest["samples"]:  # in the order of publication
        path = entry["path"]
        if path in changed:
            columns.update(entry["columns"])
            out.add(folder_of[path])
        elif is_annotation(entry) and not columns.isdisjoint(entry["columns"]):
            out.add(folder_of[path])
    return out


def all_datasets(root: Root) -> Sequence[str]:
    """Return all datasets that have versions, transactions, or a pipeline's tables or stages."""
    # Every dataset with a version had a transaction first.
    names = {txn.dataset for txn in root.state.txns.values()}
    for folder in ("tables/", "stages/"):
        for info in list_twice(root.store, folder):
            names.add(info.key.split("/")[1])
    return sorted(names)
