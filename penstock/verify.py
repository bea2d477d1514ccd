"""`penstock verify`: are the stored bytes what the history says, down to the field and its byte range?"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from loader import Root, Version
from loader.dataset.index import IndexFile, IndexPlace
from loader.dataset.parquet import TableFile, get_table
from loader.errors import PenstockError

from .progress import progress
from .verify_shard import Problem, check_bytes


@dataclass(slots=True)
class Report:
    """What was looked at, and what is wrong with it."""

    version: str
    full: bool
    shards: int = 0
    rows: int = 0
    nbytes: int = 0
    problems: list[Problem] | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def verify(root: Root, ref: str, *, full: bool = False) -> Report:
    """Check the log's chain, the manifest, every table, and of each shard its size and index; with `full` also
    every byte: the SHA-256 of each shard, the CRC-32C of each field, the tar headers, and that all groups of a
    part and the samples table hold the same keys in the same order. Each shard is read once, in order.

    Raises: what opening the version raises (VersionNotFound, NotARoot, Corrupt for a damaged log or manifest).
    """
    root.log.verify()
    version = root.open(ref)
    report = Report(version=version.name, full=full, problems=[])
    assert report.problems is not None
    for kind in ("shards", "exclusions", "samples", "stats"):
        for entry in version.manifest[kind]:
            report.problems.extend(_table(version, entry))
    if report.problems:
        return report  # the tables say where everything else is
    keys = _sample_keys(version) if full else None
    shards = version.parts.shard_rows().to_pylist()
    for shard in progress(
        shards,
        f"verify {version.name}",
        lambda shard: int(shard["nbytes"]) if full else 1,
        sum(s["nbytes"] for s in shards) if full else len(shards),
    ):
        report.shards += 1
        report.rows += shard["n_rows"]
        report.nbytes += shard["nbytes"]
        report.problems.extend(_shard(version, shard, keys))
    return report


def _table(version: Version, entry: dict[str, Any]) -> Iterator[Problem]:
    address = f"{version.name} {entry['path']}"
    try:
        table = get_table(version.store, TableFile.from_json(entry))
    except (PenstockError, OSError) as error:
        yield Problem(address=address, what=str(error))
        return
    if table.num_rows != entry["n_rows"]:
        yield Problem(address=address, what=f"{table.num_rows} rows, the manifest says {entry['n_rows']}")


def _sample_keys(version: Version) -> dict[str, list[str]]:
    keys: dict[str, list[str]] = {}
    for entry in version.manifest["samples"]:
        if entry["group"] == "keys":
            table = get_table(version.store, TableFile.from_json(entry), ["part", "row", "key"])
            for part, key in zip(table["part"].to_pylist(), table["key"].to_pylist(), strict=True):
                keys.setdefault(part, []).append(key)
    return keys


def _shard(version: Version, shard: dict[str, Any], keys: dict[str, list[str]] | None) -> Iterator[Problem]:
    """keys: part -> its keys by the samples table; with them every byte is read."""
    address = f"{version.name}/{shard['part']} {shard['group']} ({shard['path']})"
    try:
        found = version.store.head(shard["path"])
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
        if keys is not None:
            yield from check_bytes(version, shard, address, index, keys.get(shard["part"], []))
    except (PenstockError, OSError) as error:
        yield Problem(address=address, what=str(error))
