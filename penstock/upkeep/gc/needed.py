"""Find the versions that must stay, because readers can open or claim them, and why each object may be deleted.

If a file that names a version's objects is unreadable, nothing may be deleted (but see `Unreadable`).
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loader.dataset.log.leases import LeaseRecord
from loader.dataset.log.state import State, Txn, VersionRecord
from loader.dataset.shards.seals import seal_path
from loader.dataset.tables.manifest import read_manifest, table_references
from loader.dataset.tables.parquet import TableFile, get_table
from loader.errors import Corrupt, FormatTooNew, ObjectNotFound
from loader.storage import Store
from loader.storage.external_shards import FOREIGN as FOREIGN_FOLDER
from loader.storage.store import UNFINISHED
from loader.storage.threads import DaemonPool

from ...progress import progress
from .deleted_record import read_swept
from .plan import stretch

logger = logging.getLogger(__name__)


def claims(state: State, condemned: Collection[str] = ()) -> dict[str, list[str]]:
    """Return version id -> claims, in words, by which the log keeps retired versions.

    Claims are tags, aliases, holds, and open transactions. condemned: as for `protected`.
    """
    by_id: dict[str, list[str]] = defaultdict(list)
    for ref in state.refs.values():
        record = state.version(ref.dataset, ref.number)
        if record is not None and record.id not in condemned:
            by_id[record.id].append(f"{ref.ref_kind} {ref.name!r}")
    for hold in state.holds:
        record = state.version(hold.dataset, hold.number)
        if record is not None:
            by_id[record.id].append(f"a hold by {hold.by!r}")
    for txn in state.txns.values():
        if txn.status == "open" and txn.parent:
            by_id[txn.parent].append(f"open transaction {txn.txn}, as its parent")
    return dict(by_id)


class Unreadable:
    """Decides whether unreadable files of kept versions may be skipped.

    condemned: as for `protected`. mirror: True for a mirror, which may lack versions retired before the copy.
    """

    def __init__(self, store: Store, state: State, condemned: Collection[str], *, mirror: bool) -> None:
        self._store = store
        self._claims = claims(state, condemned)
        moved = 0
        if state.primary is not None:
            moved = state.primary.n
        self._copied = state.n if mirror else moved

    def rank(self, record: VersionRecord) -> int:
        """Return 2 for a version not retired, 1 for a retired one that the log keeps, 0 if only leases keep it.

        The highest rank decides about a shared file.
        """
        if record.retired is None:
            return 2
        return int(record.id in self._claims)

    def without(self, record: VersionRecord, path: str, error: ObjectNotFound | Corrupt) -> None:
        """Log that an unreadable file is skipped, or raise the error with advice."""
        if (
            isinstance(error, ObjectNotFound)
            and record.retired is not None
            and self._may_be_gone(record, path)
        ):
            logger.warning(
                "%s is retired and %s is gone; objects that it names are not kept", record.name, path
            )
            return
        error.add_note(self._what_to_do(record))
        raise error

    def _may_be_gone(self, record: VersionRecord, path: str) -> bool:
        # No claim of the log keeps it, or it was retired before the copy: then objects may be gone.
        if record.id not in self._claims or record.n <= self._copied:
            return True
        # A sweep deletes in pieces: the manifest may be gone while other objects of the version wait for the next one.
        return any(path in table["key"].to_pylist() for table in read_swept(self._store))

    def _what_to_do(self, record: VersionRecord) -> str:
        who = self._claims.get(record.id, [])
        if record.retired is None:
            is_kept = "can be opened"
            end = "retire the version"
        else:
            is_kept = f"is retired and kept by {', '.join(who or ['a lease'])}"
            end = f"release its holds, abort its transactions, and penstock gc sweep --give-up {record.name}"
        return (
            f"{record.name} {is_kept}, and its objects are unknown, so nothing is collected: restore the "
            f"file from a mirror or a versioned bucket; if no copy exists, {end}"
        )


READ_AHEAD = 16


def protected(
    state: State, leases: Iterable[LeaseRecord], condemned: Collection[str] = ()
) -> dict[str, VersionRecord]:
    """Return id -> record for each version that stays.

    It is not retired, or named by a tag or alias, leased, held, or the parent of an open transaction. Ids in
    `condemned` are of retired versions that tags, aliases and leases do not keep.
    """
    kept = {one.id: one for versions in state.datasets.values() for one in versions if one.retired is None}
    leased = [id for lease in leases for id in lease.versions if id not in condemned]
    claimed = map(state.by_id, [*claims(state, condemned), *leased])
    return kept | {one.id: one for one in claimed if one is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """The objects that some versions need."""

    paths: pa.Array
    """Object keys: large_string, ascending."""
    owners: Mapping[str, str]
    """Dataset -> owner named by its newest version among these."""

    def within(self, keys: pa.Array) -> pa.Array:
        """Return whether each key is referenced. keys: ascending large_string."""
        return pc.is_in(keys, value_set=self.paths[stretch(self.paths, keys)])


def references(store: Store, records: Sequence[VersionRecord], lost: Unreadable) -> References:
    """Return every object of these versions. lost: decides about unreadable files.

    Costs a request per version and per shards table. Memory: 0.2 KB per object. Raises: ObjectNotFound or Corrupt if a
    version's objects are unknown, so that nothing may be deleted.
    """
    paths: set[str] = set()
    tables: dict[str, tuple[TableFile, VersionRecord]] = {}
    foreign: dict[str, tuple[TableFile, VersionRecord]] = {}
    newest: dict[str, tuple[int, str]] = {}
    with DaemonPool(READ_AHEAD, "penstock-collect") as pool:
        manifests = pool.map(lambda record: _manifest(store, record, lost), records)
        for record, manifest in zip(
            records, progress(manifests, "versions", total=len(records)), strict=True
        ):
            if manifest is None:
                continue
            paths.add(record.manifest)
            paths.update(one.path for one in table_references(manifest))
            for files, by_path in ((manifest["shards"], tables), (manifest.get("foreign", ()), foreign)):
                for file in files:
                    _, other = by_path.get(file["path"], (None, record))
                    by_path[file["path"]] = TableFile.from_json(file), max(other, record, key=lost.rank)
            newest[record.dataset] = max(
                newest.get(record.dataset, (0, "")), (record.number, _owner(manifest))
            )
        shards = [*_shards(store, tables.values(), lost, pool)]
        here = pa.concat_arrays([pa.array([], pa.large_string()), *shards])
        objects = [*_objects(store, foreign.values(), here, lost, pool)]
    every = pa.concat_arrays([pa.array(sorted(paths), pa.large_string()), here, *objects])
    return References(
        paths=every.take(pc.sort_indices(every)),
        owners={dataset: owner for dataset, (_, owner) in newest.items() if owner},
    )


def owners(store: Store, state: State, kept: Collection[str], known: Mapping[str, str]) -> dict[str, str]:
    """Return dataset -> owner named by its newest version, retired or not.

    known: owners to use if that manifest is gone. Costs a request per dataset whose newest version does not stay.
    """
    newest = [
        versions[-1] for versions in state.datasets.values() if versions and versions[-1].id not in kept
    ]

    def owner(record: VersionRecord) -> str:
        try:
            return _owner(read_manifest(store, record.manifest, record.sha256))
        except (ObjectNotFound, Corrupt, FormatTooNew):
            return known.get(record.dataset, "")

    with DaemonPool(READ_AHEAD, "penstock-collect") as pool:
        read_owners = dict(zip((one.dataset for one in newest), pool.map(owner, newest), strict=True))
    return {dataset: owner for dataset, owner in {**known, **read_owners}.items() if owner}


def _owner(manifest: Mapping[str, Any]) -> str:
    return str(manifest["producer"].get("owner", ""))


def _manifest(store: Store, record: VersionRecord, lost: Unreadable) -> dict[str, Any] | None:
    try:
        return read_manifest(store, record.manifest, record.sha256)
    except (ObjectNotFound, Corrupt) as error:
        lost.without(record, record.manifest, error)
        return None


def _shards(
    store: Store, tables: Collection[tuple[TableFile, VersionRecord]], lost: Unreadable, pool: Executor
) -> Iterator[pa.Array]:
    for table in _read(store, tables, ["path", "index_path", "index_footer_sha256"], lost, pool):
        for name in ("path", "index_path"):
            yield from table[name].cast(pa.large_string()).chunks
        registered = table.filter(pc.starts_with(table["path"], FOREIGN_FOLDER))
        seals = [seal_path(one["path"], one.get("index_footer_sha256")) for one in registered.to_pylist()]
        yield pa.array(seals, pa.large_string())


def _objects(
    store: Store,
    tables: Collection[tuple[TableFile, VersionRecord]],
    shards: pa.Array,
    lost: Unreadable,
    pool: Executor,
) -> Iterator[pa.Array]:
    for table in _read(store, tables, ["shard", "path"], lost, pool):
        is_of_shards = pc.is_in(table["shard"].cast(pa.large_string()), value_set=shards)
        yield from table["path"].filter(is_of_shards).cast(pa.large_string()).chunks


def _read(
    store: Store,
    tables: Collection[tuple[TableFile, VersionRecord]],
    columns: list[str],
    lost: Unreadable,
    pool: Executor,
) -> Iterator[pa.Table]:

    def read(entry: tuple[TableFile, VersionRecord]) -> pa.Table | None:
        file, record = entry
        try:
            return get_table(store, file, columns)
        except (ObjectNotFound, Corrupt) as error:
            lost.without(record, file.path, error)
            return None

    yield from (table for table in pool.map(read, tables) if table is not None)


_UNIT_RECORD = r"(?:[0-9]{5,}[a-z]*(?:_[0-9]+)?(?:\.part)?|missing)\.json"
"""Matches an import's records of its units. Only a repeated run of its open transaction reads them."""
OURS = (
    r"^data/(?P<txn>[A-Za-z0-9][A-Za-z0-9._-]*)/(?P<attempt>[^/]+)/"
    rf"(?:manifest-[0-9a-f]{{16}}\.json|{_UNIT_RECORD}|[^/]+\.tar|[^/]+\.parquet|{UNFINISHED})$"
)
"""Matches every key that a writer creates under `data/`, including a folder's unfinished files."""
FOREIGN, OPEN, LIVE, RETIRED, ABORTED, LEFTOVER = range(6)
WHY = ("foreign", "open transaction", "live", "retired version", "aborted transaction", "leftover")
_FOREIGN = ("", FOREIGN)
_NOTHING = (0, 0)


@dataclass(slots=True)
class Tally:
    """Counts and sizes of the listed objects."""

    sums: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    """(dataset or "", state in `WHY` or reason of a side object) -> (objects, bytes)."""
    foreign: list[str] = field(default_factory=list)
    """Keys of the first twenty objects that penstock did not write."""

    def add(self, dataset: str, what: str, objects: int, nbytes: int) -> None:
        before = self.sums.get((dataset, what), _NOTHING)
        self.sums[dataset, what] = before[0] + objects, before[1] + nbytes

    def add_foreign(self, keys: list[str], nbytes: int = 0) -> None:
        """Count foreign objects, and keep the first twenty keys."""
        self.add("", WHY[FOREIGN], len(keys), nbytes)
        self.foreign += keys[: 20 - len(self.foreign)]


def sorter(
    state: State, kept: Mapping[str, object], live: References, tally: Tally
) -> Callable[[pa.RecordBatch], pa.Table]:
    """Return a function that counts a piece of a listing and returns its condemned objects.

    Its table has the columns key, nbytes, dataset, txn and why. Links are foreign. Takes 1 s per million objects.
    kept: ids of the versions that stay.
    """
    fates: dict[str, tuple[str, int]] = {}

    def transaction_fate(txn: str) -> tuple[str, int]:
        if txn not in fates:
            known = state.txns.get(txn)
            fates[txn] = _FOREIGN if known is None else (known.dataset, _fate(known, state, kept))
        return fates[txn]

    def select_condemned(batch: pa.RecordBatch) -> pa.Table:
        keys = batch.column("key")
        sizes = batch.column("nbytes")
        # Encoded: Python then decides once per transaction, not per object.
        txns = pc.struct_field(pc.extract_regex(keys, OURS), "txn").dictionary_encode()
        names: list[str] = txns.dictionary.to_pylist()
        fates_of_txns = [transaction_fate(name) for name in names]
        # Keys that no writer creates have no transaction: they take the last fate, FOREIGN.
        at = txns.indices.fill_null(len(names)).to_numpy()
        # int8 [objects]: index into `WHY`.
        fate = np.array([what for _, what in fates_of_txns] + [FOREIGN], np.int8)[at]
        # A link may lead to bytes outside the root.
        fate[batch.column("link").to_numpy(zero_copy_only=False)] = FOREIGN
        # A version also names objects that an earlier transaction wrote, such as the shards of its parent.
        fate[(fate != FOREIGN) & live.within(keys).to_numpy(zero_copy_only=False)] = LIVE
        numbers: dict[str, int] = {}
        # int64 [objects]: index into `datasets`.
        of = np.array(
            [numbers.setdefault(dataset, len(numbers)) for dataset, _ in [*fates_of_txns, _FOREIGN]]
        )[at]
        datasets = list(numbers)
        _count(tally, datasets, of, fate, sizes.to_numpy())
        foreign = np.flatnonzero(fate == FOREIGN)
        if len(foreign):
            tally.add_foreign(keys.take(foreign).to_pylist(), pc.sum(sizes.take(foreign)).as_py())
        condemned = np.flatnonzero(fate > LIVE)
        return pa.table(
            {
                "key": keys.take(condemned),
                "nbytes": sizes.take(condemned),
                "dataset": pa.array(datasets, pa.large_string()).take(pa.array(of[condemned])),
                "txn": txns.take(condemned).cast(pa.large_string()),
                "why": pa.array(np.array(WHY, object)[fate[condemned]], pa.large_string()),
            }
        )

    return select_condemned


def _fate(txn: Txn, state: State, kept: Mapping[str, object]) -> int:
    if txn.status == "open":
        return OPEN
    version = state.committed(txn.txn)
    if version is None:
        return ABORTED
    return LEFTOVER if version.id in kept else RETIRED


def _count(tally: Tally, datasets: list[str], of: np.ndarray, fate: np.ndarray, nbytes: np.ndarray) -> None:
    # [objects]: one number for each dataset and fate, so that one pass counts all.
    kind = of * len(WHY) + fate
    objects = np.bincount(kind)
    total = np.zeros(len(datasets) * len(WHY), np.int64)
    np.add.at(total, kind, nbytes)  # weights of bincount are floats, which lose bytes beyond 2^53
    for number in np.flatnonzero(objects).tolist():
        dataset, what = divmod(number, len(WHY))
        if what != FOREIGN:
            tally.add(datasets[dataset], WHY[what], int(objects[number]), int(total[number]))
