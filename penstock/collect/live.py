"""What must stay: versions that somebody can open or has a claim on, and the objects that these are made of."""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from loader.dataset.history import State, VersionRecord
from loader.dataset.lease import LeaseRecord
from loader.dataset.manifest import read_manifest
from loader.dataset.parquet import TableFile, get_tables
from loader.dataset.references import table_references
from loader.errors import ObjectNotFound
from loader.storage import Store

from ..progress import progress

READ_AHEAD = 16
logger = logging.getLogger(__name__)


def protected(
    state: State, leases: Iterable[LeaseRecord], condemned: Collection[str] = ()
) -> dict[str, VersionRecord]:
    """id -> version of those that stay: not retired, or named by a tag or alias, leased, held, or the parent of an open
    transaction. condemned: ids that neither a name nor a lease keeps once they are retired: a takedown's."""
    kept = {one.id: one for versions in state.datasets.values() for one in versions if one.retired is None}
    soft = [state.version(ref.dataset, ref.number) for ref in state.refs.values()]
    soft += [state.by_id(id) for lease in leases for id in lease.versions]
    hard = [state.version(hold.dataset, hold.number) for hold in state.holds]
    hard += [state.by_id(txn.parent) for txn in state.txns.values() if txn.status == "open" and txn.parent]
    kept |= {one.id: one for one in soft if one is not None and one.id not in condemned}
    kept |= {one.id: one for one in hard if one is not None}
    return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """paths: large_string, ascending, of every object that some versions are made of; owners: dataset -> owner, as the
    producer of its newest version says."""

    paths: pa.Array
    owners: Mapping[str, str]

    def within(self, keys: pa.Array) -> pa.Array:
        """bool: which of `keys`, ascending large_string, are referenced."""
        return pc.is_in(keys, value_set=self.paths[stretch(self.paths, keys)])


def stretch(ascending: pa.Array, keys: pa.Array) -> slice:
    """Where in one ascending array those may lie that another has."""
    if not len(keys):
        return slice(0, 0)
    return slice(_first(ascending, keys[0].as_py()), _first(ascending, keys[-1].as_py() + "\0"))


def _first(ascending: pa.Array, key: str) -> int:
    """How many are less than `key`."""
    low, high = 0, len(ascending)
    while low < high:
        middle = (low + high) // 2
        if ascending[middle].as_py() < key:
            low = middle + 1
        else:
            high = middle
    return low


def references(store: Store, records: Sequence[VersionRecord]) -> References:
    """Every object of these versions. A request per version, and one per table of shards, which versions share.

    A retired version whose files are gone already keeps what is left of it. Memory: 0.2 KB per object. Raises:
    ObjectNotFound, Corrupt for a version that can be opened and whose files are not there: what it is made of cannot be
    told, so nothing may be deleted.
    """
    paths: set[str] = set()
    tables: dict[str, tuple[TableFile, bool]] = {}
    newest: dict[str, tuple[int, str]] = {}
    with ThreadPoolExecutor(READ_AHEAD, thread_name_prefix="penstock-collect") as pool:
        found = pool.map(lambda record: _manifest(store, record), records)
        for record, manifest in zip(records, progress(found, "versions", total=len(records)), strict=True):
            if manifest is None:
                continue
            paths.add(record.manifest)
            paths.update(one.path for one in table_references(manifest))
            for file in manifest["shards"]:
                lenient = record.retired is not None and tables.get(file["path"], (None, True))[1]
                tables[file["path"]] = TableFile.from_json(file), lenient
            owner = str(manifest["producer"].get("owner", ""))
            newest[record.dataset] = max(newest.get(record.dataset, (0, "")), (record.number, owner))
    columns = [pa.array(sorted(paths), pa.large_string()), *_shards(store, tables)]
    every = pa.concat_arrays(columns)
    return References(
        paths=every.take(pc.sort_indices(every)),
        owners={dataset: owner for dataset, (_, owner) in newest.items() if owner},
    )


def _manifest(store: Store, record: VersionRecord) -> dict[str, Any] | None:
    try:
        return read_manifest(store, record.manifest, record.sha256)
    except ObjectNotFound as error:
        if record.retired is None:
            error.add_note(
                f"{record.name} can be opened, and what it is made of cannot be told, so nothing is collected: "
                "restore the file from a mirror, or retire the version"
            )
            raise
        logger.warning("%s is retired and its manifest is gone; what is left of it is not kept", record.name)
        return None


def _shards(store: Store, tables: Mapping[str, tuple[TableFile, bool]]) -> Iterable[pa.Array]:
    """The paths of shards and of their indexes."""
    strict = [file for file, lenient in tables.values() if not lenient]
    found = list(get_tables(store, strict, ["path", "index_path"]))
    for file, lenient in tables.values():
        if lenient:
            try:
                found += get_tables(store, [file], ["path", "index_path"])
            except ObjectNotFound:
                logger.warning("%s is gone, of a retired version", file.path)
    for table in found:
        for column in table.columns:
            yield from column.cast(pa.large_string()).chunks
