"""`penstock verify REF`: check a version's stored bytes against the history, down to field and byte range."""

from collections.abc import Collection, Generator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from loader import Root, Version
from loader.dataset.shards.part import SHARDS_SCHEMA
from loader.dataset.tables.parquet import TableFile, get_tables
from loader.errors import PenstockError
from loader.storage.threads import DaemonPool

from ...progress import progress
from .shard import Problem, ShardProblems, check_shard
from .tables import bad_tables, check_statistics, compare_tables, contains_bad, keys_of_parts

if TYPE_CHECKING:
    from ...compute.cluster import Cluster

SAMPLE_SHARDS = 1000
"""Most shards checked without `--full`: first, last, and evenly spaced ones."""
AT_ONCE = 16
"""Shards checked at once without `full`."""


@dataclass(slots=True)
class VerifyReport:
    version: str
    """Version name."""
    full: bool
    """True if every byte was read."""
    shards: int = 0
    """Checked shards."""
    of_shards: int = 0
    """Number of the version's shards."""
    rows: int = 0
    """Rows in the checked shards."""
    nbytes: int = 0
    """Bytes in the checked shards."""
    unverified_nbytes: int = 0
    """Registered bytes that were read but have no known checksum; 0 unless `full`."""
    problems: list[Problem] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def verify(root: Root, ref: str, *, full: bool = False, cluster: "Cluster | None" = None) -> VerifyReport:
    """Check the log's chain, the manifest, and the version. Raises: as opening the version; as `check_version`."""
    root.log.verify()
    return check_version(root.open(ref), full=full, seen=set(), cluster=cluster)


def check_version(
    version: Version, *, full: bool, seen: set[str], cluster: "Cluster | None" = None
) -> VerifyReport:
    """Check a version's tables against their hashes and each other, and its shards.

    Without `full`, checks up to `SAMPLE_SHARDS` shards: size, index, and the last row's header and checksum. With
    `full`, checks all shards:

    - each shard's SHA-256, each field's CRC-32C, and the tar headers;
    - that all groups of a part and the samples table have the same keys in the same order;
    - the key hashes and statistics, which are recomputed.

    Registered objects are checked by size and change token; with `full` their fields are read. A bad table stops only
    the checks that need it. Costs a request per table and, without `full`, 3 per checked shard.

    seen: shards and tables checked before; this version's are added. cluster: reads the shards if `full`.
    """
    report = VerifyReport(version=version.name, full=full)
    bad = bad_tables(version, seen)
    different = list(compare_tables(version, bad))
    report.problems.extend([*bad.values(), *different])
    # With other rows the statistics differ too, and only repeat the problem.
    if full and not different:
        report.problems.extend(check_statistics(version, bad))
    rows = _shard_rows(version, bad)
    report.of_shards = sum(file["n_rows"] for file in version.manifest["shards"])
    chosen = np.arange(len(rows))
    if not full and len(rows) > SAMPLE_SHARDS:
        chosen = np.unique(np.linspace(0, len(rows) - 1, SAMPLE_SHARDS).astype(np.int64))
    shards = [row for row in rows.take(chosen).to_pylist() if row["path"] not in seen]
    seen.update(shard["path"] for shard in shards)
    read = partial(_shards_here, full=full) if cluster is None else partial(_verify_shards, cluster)
    with closing(read(version, shards, bad)) as results:
        for shard in progress(
            shards,
            f"verify {version.name}",
            lambda shard: int(shard["nbytes"]) if full else 1,
            sum(s["nbytes"] for s in shards) if full else len(shards),
        ):
            result = next(results)
            report.shards += 1
            report.rows += shard["n_rows"]
            report.nbytes += shard["nbytes"]
            report.problems.extend(result.problems)
            report.unverified_nbytes += result.unverified_nbytes
    return report


def _shards_here(
    version: Version, shards: Sequence[dict[str, Any]], bad: Collection[str], *, full: bool
) -> Generator[ShardProblems]:
    files = []
    if full:  # else keys are not compared
        files = [TableFile.from_json(entry) for entry in _keys_files(version, bad)]
    keys = keys_of_parts(version.store, files)
    no_keys = _no_keys(version, bad)

    def read(shard: dict[str, Any]) -> ShardProblems:
        return check_shard(version, shard, keys.get(shard["part"], no_keys), full=full)

    # A full read is bound by bandwidth and hashing; small requests wait for replies.
    with DaemonPool(1 if full else AT_ONCE, "penstock-verify") as pool:
        yield from pool.map(read, shards)


def _verify_shards(
    cluster: "Cluster", version: Version, shards: Sequence[dict[str, Any]], bad: Collection[str]
) -> Generator[ShardProblems]:
    from ...compute.work import StoredPlace
    from .shards_job import ShardUnit, read_shards_on_cluster

    files = _file_of_parts(version, bad)
    # A part of no samples file has no keys, unless a damaged file has them.
    has_all_files = not contains_bad(bad, version.manifest["samples"])
    units = [
        ShardUnit(
            root=StoredPlace.of(version.store).url,
            version=version.id,
            shard=shard,
            keys=files.get(shard["part"]),
            keys_are_known=has_all_files or shard["part"] in files,
        )
        for shard in shards
    ]
    yield from read_shards_on_cluster(cluster, version, units)


def _no_keys(version: Version, bad: Collection[str]) -> list[str] | None:
    """Return the keys of a part that no undamaged samples file has: [], or None if a damaged file may have them."""
    if contains_bad(bad, version.manifest["samples"]):
        return None
    return []


def _shard_rows(version: Version, bad: Collection[str]) -> pa.Table:
    """Return the rows of the shards tables that are not bad."""
    try:
        return version.parts.shard_rows()
    except PenstockError:  # already reported as a problem
        files = [file for file in version.manifest["shards"] if file["path"] not in bad]
        tables = get_tables(version.store, [TableFile.from_json(file) for file in files])
        # Tables of earlier releases lack columns, which become null.
        return pa.concat_tables([SHARDS_SCHEMA.empty_table(), *tables], promote_options="default")


def _keys_files(version: Version, bad: Collection[str]) -> list[dict[str, Any]]:
    return [one for one in version.manifest["samples"] if one["group"] == "keys" and one["path"] not in bad]


def _file_of_parts(version: Version, bad: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return part -> manifest entry of the undamaged samples file with its keys."""
    files = _keys_files(version, bad)
    tables = get_tables(version.store, [TableFile.from_json(one) for one in files], ["part"])
    return {
        part: one
        for one, table in zip(files, tables, strict=True)
        for part in table["part"].unique().to_pylist()
    }
