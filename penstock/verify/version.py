"""`penstock verify REF`: stored bytes against the history, down to the field and its byte range."""

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from loader import Root, Version
from loader.dataset.shards.index import IndexFile, IndexPlace
from loader.dataset.shards.part import SHARDS_SCHEMA
from loader.dataset.tables.foreign_objects import is_foreign
from loader.dataset.tables.parquet import TableFile, get_tables
from loader.errors import PenstockError
from loader.storage import ObjectInfo

from ..progress import progress
from .registered import check_registered
from .shard import Problem, check_bytes, check_last_row
from .tables import any_in, bad_tables, check_statistics, compare_tables

SAMPLE_SHARDS = 1000
"""Shards that are looked at without `--full`: the first, the last and others evenly between them."""
AT_ONCE = 16


@dataclass(slots=True)
class Report:
    """The result of a check of a version."""

    version: str
    """Name of the version."""
    full: bool
    """True where every byte was read."""
    shards: int = 0
    """Shards that were looked at."""
    of_shards: int = 0
    """Shards of the version."""
    rows: int = 0
    """Rows of the shards that were looked at."""
    nbytes: int = 0
    """Bytes of the shards that were looked at."""
    unverified_nbytes: int = 0
    """Registered bytes among them that were read, and of which no checksum is known; 0 unless every byte was read."""
    problems: list[Problem] = field(default_factory=list)
    """Things that are wrong."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def verify(root: Root, ref: str, *, full: bool = False) -> Report:
    """Check the log's chain, the manifest, and the version as `check_version` does.

    Raises: what opening the version raises (VersionNotFound, NotARoot, Corrupt for a damaged log or manifest).
    """
    root.log.verify()
    return check_version(root.open(ref), full=full, seen=set())


def check_version(version: Version, *, full: bool, seen: set[str]) -> Report:
    """Check every table against its hash and against the others, and shards.

    Without `full`, of a sample of the shards: the size, the index, and the header and checksum of the last row.

    With `full`, every byte of every shard:

    - the SHA-256 of each shard, the CRC-32C of each field, and the tar headers;
    - that all groups of a part and the samples table hold the same keys in the same order;
    - the hashes of keys, and the statistics, computed again.

    Registered objects are asked for their size and change token, also without `full`; with it, their fields are read.

    A bad table stops only the checks that need it. The shards that a bad table names are not looked at: the problem
    says their number. Tables are compared with each other for each version, for which those of samples and parts are
    read. Each shard is read once, in order. Costs a request per table and, without `full`, 3 per shard of the sample.

    seen: shards and tables that were looked at before, and need not be again; those of this version are added.
    """
    report = Report(version=version.name, full=full)
    unverified: list[int] = []
    bad = bad_tables(version, seen)
    different = list(compare_tables(version, bad))
    report.problems.extend([*bad.values(), *different])
    if full and not different:
        report.problems.extend(check_statistics(version, bad))
    keys = _sample_keys(version, bad) if full else {}
    # A part that is not among them is in a bad table, or in none.
    no_keys = None if any_in(bad, version.manifest["samples"]) else list[str]()
    rows = _shard_rows(version, bad)
    report.of_shards = sum(file["n_rows"] for file in version.manifest["shards"])
    chosen = np.arange(len(rows))
    if not full and len(rows) > SAMPLE_SHARDS:
        chosen = np.unique(np.linspace(0, len(rows) - 1, SAMPLE_SHARDS).astype(np.int64))
    shards = [row for row in rows.take(chosen).to_pylist() if row["path"] not in seen]
    seen.update(shard["path"] for shard in shards)
    with ThreadPoolExecutor(1 if full else AT_ONCE, thread_name_prefix="penstock-verify") as pool:
        found = pool.map(
            lambda shard: list(
                _shard(version, shard, keys.get(shard["part"], no_keys), unverified.append, full=full)
            ),
            shards,
        )
        for shard in progress(
            shards,
            f"verify {version.name}",
            lambda shard: int(shard["nbytes"]) if full else 1,
            sum(s["nbytes"] for s in shards) if full else len(shards),
        ):
            report.shards += 1
            report.rows += shard["n_rows"]
            report.nbytes += shard["nbytes"]
            report.problems.extend(next(found))
    report.unverified_nbytes = sum(unverified)
    return report


def _shard_rows(version: Version, bad: Collection[str]) -> pa.Table:
    """Return the rows of the shards tables that are not bad, whatever is wrong with others."""
    try:
        return version.parts.shard_rows()
    except PenstockError:  # a problem that was found before
        files = [file for file in version.manifest["shards"] if file["path"] not in bad]
        tables = get_tables(version.store, [TableFile.from_json(file) for file in files])
        return pa.concat_tables([SHARDS_SCHEMA.empty_table(), *tables], promote_options="default")


def _sample_keys(version: Version, bad: Collection[str]) -> dict[str, list[str]]:
    """Return part -> its keys, by the samples tables that are not bad. The rows of a part lie in one of them."""
    keys: dict[str, list[str]] = {}
    named = [one for one in version.manifest["samples"] if one["group"] == "keys" and one["path"] not in bad]
    files = [TableFile.from_json(one) for one in named]
    for table in get_tables(version.store, files, ["part", "row", "key"]):
        for part, key in zip(table["part"].to_pylist(), table["key"].to_pylist(), strict=True):
            keys.setdefault(part, []).append(key)
    return keys


def _shard(
    version: Version,
    shard: dict[str, Any],
    keys: list[str] | None,
    unverified: Callable[[int], None],
    *,
    full: bool,
) -> Iterator[Problem]:
    """Yield the problems of a shard and its index.

    keys: of its part, by the samples table; None where that cannot be told.
    unverified: told the registered bytes of which no checksum is known.
    full: whether every byte is read.
    """
    address = f"{version.name}/{shard['part']} {shard['group']} ({shard['path']})"
    try:
        registered = is_foreign(shard["path"])
        if registered and not version.parts.live_members(version.parts.position(shard["part"])).any():
            return  # its object may be another now, or gone: registering again has left its samples out
        found = _head(version, shard["path"])
        if found.nbytes != shard["nbytes"]:
            yield Problem(
                address=address,
                what=f"the shard has {found.nbytes} bytes, the manifest says {shard['nbytes']}",
            )
        index = IndexFile(version.store, IndexPlace.of(shard))
        if index.n_rows != shard["n_rows"]:
            yield Problem(
                address=address,
                what=f"its index has {index.n_rows} rows, the manifest says {shard['n_rows']}",
            )
        if full:
            there = version.store.head(shard["index_path"]).nbytes
            if there != shard["index_nbytes"]:  # readers ask for its first bytes, and see no others
                yield Problem(
                    address=address,
                    what=f"its index has {there} bytes, the manifest says {shard['index_nbytes']}",
                )
            if registered:
                yield from check_registered(version, shard, address, index, keys, unverified)
            else:
                yield from check_bytes(version, shard, address, index, keys)
        elif not registered and index.n_rows and found.nbytes == shard["nbytes"]:
            yield from check_last_row(version, shard, index)
    except (PenstockError, OSError) as error:
        yield Problem(address=address, what=str(error))


def _head(version: Version, path: str) -> ObjectInfo:
    """Return what the store of a shard says of it. Raises: Changed for a registered object that is another now."""
    placed = version.placed
    return version.store.head(path) if placed is None else placed.head(path)
