"""Read every byte of a version's shards on a cluster; each shard is a unit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from loader import Version
from loader.dataset.root import root_in_store
from loader.dataset.tables.parquet import TableFile
from loader.errors import VersionNotFound
from loader.storage import Store

from ...compute.attach import outcomes_anew
from ...compute.cluster import Cluster
from ...compute.work import Node, Work
from .shard import Problem, ShardProblems, check_shard, shard_address
from .tables import keys_of_parts

READ_BYTES_PER_S = 200e6
"""Estimated bytes per second that a process reads and hashes."""
SLOWEST_BYTES_PER_S = 1e6
"""Bytes per second. A shard read more slowly fails, after ten minutes of grace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardUnit:
    """One unit of work: a shard to read."""

    root: str
    """Root URL."""
    version: str
    """Id of the version that names the shard."""
    shard: dict[str, Any]
    """Shard's row in the shards table."""
    keys: dict[str, Any] | None
    """Manifest entry of the samples file with the part's keys; None if no undamaged file has them."""
    keys_are_known: bool
    """False if a damaged samples file may have the part's keys: the shard's are then not compared."""


def read_shard(unit: ShardUnit, node: Node) -> ShardProblems:
    """Return the problems in a shard, after reading every byte."""
    store = node.open(unit.root)
    keys: list[str] | None = None
    if unit.keys_are_known:
        keys = []
        if unit.keys is not None:
            keys_by_part = _keys(store, TableFile.from_json(unit.keys))
            keys = keys_by_part.get(unit.shard["part"], [])
    return check_shard(_version(unit.version, store), unit.shard, keys, full=True)


def _cost_s(unit: ShardUnit) -> float:
    return float(unit.shard["nbytes"]) / READ_BYTES_PER_S


def _limit_s(unit: ShardUnit) -> float:
    return 600.0 + float(unit.shard["nbytes"]) / SLOWEST_BYTES_PER_S


READ_SHARDS = Work(
    name="verify-shards",
    version="1",
    function=read_shard,
    unit=ShardUnit,
    result=ShardProblems,
    timeout_s=_limit_s,
    cost_s=_cost_s,
)


def read_shards_on_cluster(
    cluster: Cluster, version: Version, units: Sequence[ShardUnit]
) -> Iterator[ShardProblems]:
    """Yield the result for each shard, in order. A shard that no worker could finish is a problem.

    An abandoned verification is resumed; a finished one runs again. Raises: as `attach`.
    """
    about = f"verify {version.name}"
    outcomes = outcomes_anew(READ_SHARDS, units, cluster, store=version.store, about=about)
    for unit, outcome in zip(units, outcomes, strict=True):
        yield outcome.value or _not_read(version, unit, outcome.error)


def _not_read(version: Version, unit: ShardUnit, error: Any) -> ShardProblems:
    what = f"it could not be read to its end: {error.code}: {error.summary}"
    problem = Problem(address=shard_address(version, unit.shard), what=what)
    return ShardProblems(problems=[problem], unverified_nbytes=0)


_opened: dict[str, Version] = {}
_read: dict[str, dict[str, list[str]]] = {}
"""Path of the last samples file that this worker process read -> its keys."""


def _version(id_: str, store: Store) -> Version:
    if id_ not in _opened:
        record = root_in_store(store).state.by_id(id_)
        if record is None:
            raise VersionNotFound(f"{store.url} has no version {id_} any more")
        # One version at a time bounds the memory.
        _opened.clear()
        _opened[id_] = Version.of_record(store, record)
    return _opened[id_]


def _keys(store: Store, file: TableFile) -> dict[str, list[str]]:
    if file.path not in _read:
        keys = keys_of_parts(store, [file])
        _read.clear()
        _read[file.path] = keys
    return _read[file.path]
