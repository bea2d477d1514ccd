"""Count the stored bytes of versions from their manifests and tables: media are neither read nor listed.

Each object counts once, for the oldest version that names it. The set of versions that name an object is a bit mask,
and objects of one mask are added up.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from loader.dataset.log.state import State, VersionRecord
from loader.dataset.tables.manifest import read_manifest, table_references
from loader.dataset.tables.parquet import TableFile, get_tables
from loader.storage import Store
from loader.storage.external_shards import FOREIGN
from loader.storage.threads import DaemonPool

from ..units import WEEK_US
from ..upkeep.gc.needed import READ_AHEAD, protected
from .derived import list_derived
from .forecast import FAR_WEEKS


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedVersion:
    """A version that readers can open, or that a tag, alias or hold keeps."""

    dataset: str
    """Name of the dataset."""
    name: str
    """Reference such as "photos@3"."""
    owner: str
    """Owner that its producer named; "" for none."""
    created_us: int
    """UTC microseconds of its publication."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRow:
    """Bytes of one version, dataset or owner."""

    name: str
    versions: int
    """Number of its versions."""
    nbytes: int
    """Bytes in the root that no older version of another row names."""
    registered: int
    """The same for registered bytes, which stay in their owner's store."""
    frees: int
    """Bytes in the root that deleting all of its versions would free."""


KEYS: Mapping[str, Callable[[CountedVersion], str]] = {
    "dataset": lambda version: version.dataset,
    "version": lambda version: version.name,
    "owner": lambda version: version.owner,
}
"""Name of a way to group -> row in which a version counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBytes:
    """All versions of a root, and the bytes that each set of them shares."""

    versions: Sequence[CountedVersion]
    """Versions, the oldest first."""
    shared: Mapping[int, int]
    """Mask of versions, bit k for `versions[k]` -> bytes that these name."""
    registered: Mapping[int, int]
    """The same for registered bytes."""

    @property
    def nbytes(self) -> int:
        """All bytes in the root that versions name."""
        return sum(self.shared.values())

    def rows(self, by: str) -> list[StoredRow]:
        """Return a row per dataset, version or owner, the largest first."""
        names = [KEYS[by](version) for version in self.versions]
        counts = Counter(names)
        masks = defaultdict[str, int](int)  # name of a row -> mask of its versions
        for place, name in enumerate(names):
            masks[name] |= 1 << place
        nbytes = Counter[str]()
        registered = Counter[str]()
        frees = Counter[str]()
        for mask, size in self.shared.items():
            name = names[_oldest(mask)]
            nbytes[name] += size
            # Bytes that another row's version names too stay after a deletion.
            is_shared = bool(mask & ~masks[name])
            if not is_shared:
                frees[name] += size
        for mask, size in self.registered.items():
            registered[names[_oldest(mask)]] += size
        rows = [
            StoredRow(
                name=name,
                versions=count,
                nbytes=nbytes[name],
                registered=registered[name],
                frees=frees[name],
            )
            for name, count in counts.items()
        ]
        return sorted(rows, key=lambda row: (-row.nbytes, row.name))

    def weekly(self, until_us: int) -> list[int]:
        """Return the bytes at the end of each week up to a time, by the publication of what is still there.

        Publications before the last ten years count in the first week.
        """
        added = Counter[int]()
        for mask, size in self.shared.items():
            age_us = max(0, until_us - self.versions[_oldest(mask)].created_us)
            added[min(age_us // WEEK_US, FAR_WEEKS)] += size
        total = 0
        totals = []
        # week: number of weeks before the end.
        for week in range(max(added, default=-1), -1, -1):
            total += added[week]
            totals.append(total)
        return totals


def stored_bytes(store: Store, state: State) -> StoredBytes:
    """Return the bytes that each set of versions names, without manifests and the log; indexes and maps are included.

    Costs a request per version, a request per table of shards or of registered objects, however many versions share
    it, and the requests of `list_derived`. Memory: 0.9 KB per shard. Raises: Corrupt or ObjectNotFound if a version's
    objects are unknown.
    """
    # Without leases: a retired version that a process still reads is collected once that process ends.
    staying = protected(state, leases=[])
    named = _read_manifests(store, staying.values())
    shared = Counter[int]()
    for path, nbytes in named.table_nbytes.items():
        shared[named.masks[path]] += nbytes
    # The column `table` of these objects is a position in `shard_masks`, or in `foreign_masks`.
    shard_objects = list(_objects(store, named.shards, ("path", "nbytes"), ("index_path", "index_nbytes")))
    shard_masks = [named.masks[path] for path in named.shards]
    foreign_objects = list(_objects(store, named.foreign, ("path", "nbytes")))
    foreign_masks = [named.masks[path] for path in named.foreign]
    # A Counter's `update` adds.
    shared.update(_by_mask(shard_objects, shard_masks))
    shared.update(_derived_bytes(store, shard_objects, shard_masks))
    registered = _by_mask(foreign_objects, foreign_masks)
    return StoredBytes(versions=named.versions, shared=shared, registered=registered)


@dataclass(slots=True, kw_only=True)
class _NamedTables:
    """Versions, and the tables that their manifests name."""

    versions: list[CountedVersion] = field(default_factory=list)
    """Versions, the oldest first."""
    table_nbytes: dict[str, int] = field(default_factory=dict)
    """Path of a table -> its bytes."""
    masks: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Path of a table -> mask of the versions that name it."""
    shards: dict[str, TableFile] = field(default_factory=dict)
    """Path -> table of shards."""
    foreign: dict[str, TableFile] = field(default_factory=dict)
    """Path -> table of registered objects."""


def _read_manifests(store: Store, records: Iterable[VersionRecord]) -> _NamedTables:
    named = _NamedTables()
    # In the order of publication: `_oldest` takes the lowest bit of a mask.
    by_age = sorted(records, key=lambda record: record.n)
    with DaemonPool(READ_AHEAD, "penstock-usage") as pool:
        manifests = pool.map(lambda record: read_manifest(store, record.manifest, record.sha256), by_age)
        for place, (record, manifest) in enumerate(zip(by_age, manifests, strict=True)):
            named.versions.append(_count(record, manifest))
            for reference in table_references(manifest):
                named.table_nbytes[reference.path] = reference.nbytes
                named.masks[reference.path] |= 1 << place
            for file in manifest.get("shards", ()):
                named.shards[file["path"]] = TableFile.from_json(file)
            for file in manifest.get("foreign", ()):
                named.foreign[file["path"]] = TableFile.from_json(file)
    return named


def _count(record: VersionRecord, manifest: Mapping[str, Any]) -> CountedVersion:
    return CountedVersion(
        dataset=record.dataset,
        name=record.name,
        owner=str(manifest["producer"].get("owner", "")),
        created_us=manifest["created_us"],
    )


def _objects(store: Store, files: Mapping[str, TableFile], *columns: tuple[str, str]) -> Iterator[pa.Table]:
    """Yield tables of objects: path (large_string), nbytes, and `table`, the number of the file that names it.

    columns: pairs of columns, a path and its bytes.
    """
    names = [name for pair in columns for name in pair]
    for number, table in enumerate(get_tables(store, list(files.values()), names)):
        for path, nbytes in columns:
            paths = table[path].cast(pa.large_string())
            objects = pa.table(
                {"path": paths, "nbytes": table[nbytes], "table": pa.repeat(number, len(table))}
            )
            # A table of shards names registered ones too: they are counted from tables of registered objects.
            if "index_path" in names:
                is_registered = pc.starts_with(paths, FOREIGN)
                objects = objects.filter(pc.invert(is_registered))
            yield objects


def _derived_bytes(store: Store, objects: Sequence[pa.Table], masks: Sequence[int]) -> Counter[int]:
    """Return mask of versions -> bytes of the indexes and maps that these need. objects, masks: as for `_by_mask`."""
    segments_and_records = list_derived(store)
    sources: set[str] = set()
    for derived in segments_and_records:
        sources.update(derived.sources)
    mask_by_source = _masks_by_path(objects, masks, sources)
    by_mask = Counter[int]()
    for derived in segments_and_records:
        mask = 0
        for source in derived.sources:
            mask |= mask_by_source.get(source, 0)
        if mask:  # otherwise it waits for a collector
            by_mask[mask] += derived.nbytes
    return by_mask


def _by_mask(objects: Sequence[pa.Table], masks: Sequence[int]) -> Counter[int]:
    """Return mask of versions -> bytes; an object that several tables name has the masks of all.

    objects: as `_objects` yields them. masks: the versions that name each `table`.
    """
    shared = Counter[int]()
    if not objects:
        return shared
    table = pa.concat_tables(objects)
    grouped = table.group_by("path").aggregate([("nbytes", "max"), ("table", "min"), ("table", "max")])
    # Arrow adds up objects of one table, which are most, and Python only the others.
    single = pc.equal(grouped["table_min"], grouped["table_max"])
    sums = grouped.filter(single).group_by("table_min").aggregate([("nbytes_max", "sum")])
    for row in sums.to_pylist():
        shared[masks[row["table_min"]]] += row["nbytes_max_sum"]
    several = grouped.filter(pc.invert(single))
    mask_by_path = _masks_by_path(objects, masks, several["path"])
    for row in several.to_pylist():
        shared[mask_by_path[row["path"]]] += row["nbytes_max"]
    return shared


def _masks_by_path(
    objects: Sequence[pa.Table],
    masks: Sequence[int],
    paths: Iterable[str] | pa.ChunkedArray,
) -> dict[str, int]:
    """Return path -> mask of the versions that name it, for these paths. objects, masks: as for `_by_mask`."""
    if not isinstance(paths, pa.ChunkedArray):
        paths = pa.chunked_array([pa.array(paths, pa.large_string())])
    by_path: dict[str, int] = {}
    for table in objects:
        is_wanted = pc.is_in(table["path"], value_set=paths)
        for row in table.filter(is_wanted).to_pylist():
            mask = by_path.get(row["path"], 0)
            by_path[row["path"]] = mask | masks[row["table"]]
    return by_path


def _oldest(mask: int) -> int:
    """Return the number of the lowest bit."""
    return (mask & -mask).bit_length() - 1
