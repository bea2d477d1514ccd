"""`penstock verify`: are the stored bytes what the history says, down to the field and its byte range?"""

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from loader import Root, Version
from loader.dataset.index import IndexFile, IndexRows
from loader.dataset.member_names import member_name
from loader.dataset.parquet import TableFile, get_table
from loader.dataset.shard import crc32c, member_header
from loader.errors import PenstockError

from .progress import progress

BLOCK_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong. address: version, part, field, byte range and key as far as they are known."""

    address: str
    what: str


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
    part and the samples table hold the same keys in the same order.

    Raises: what opening the version raises (VersionNotFound, NotARoot, Corrupt for a damaged log or manifest).
    """
    root.log.verify()
    version = root.open(ref)
    report = Report(version=version.name, full=full, problems=[])
    assert report.problems is not None
    tables = [*version.manifest["samples"], *version.manifest["stats"]]
    for entry in tables:
        report.problems.extend(_table(version, entry))
    if any(problem for problem in report.problems):
        return report
    keys = _sample_keys(version) if full else {}
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
        report.problems.extend(_shard(version, shard, keys.get(shard["part"]), full))
    return report


def _table(version: Version, entry: dict[str, Any]) -> Iterator[Problem]:
    try:
        table = get_table(version.store, TableFile.from_json(entry))
    except (PenstockError, OSError) as error:
        yield Problem(address=f"{version.name} {entry['path']}", what=str(error))
        return
    if table.num_rows != entry["n_rows"] and "n_rows" in entry:
        yield Problem(
            address=f"{version.name} {entry['path']}",
            what=f"{table.num_rows} rows, the manifest says {entry['n_rows']}",
        )


def _sample_keys(version: Version) -> dict[str, list[str]]:
    keys: dict[str, list[str]] = {}
    for entry in version.manifest["samples"]:
        if entry["group"] == "keys":
            table = get_table(version.store, TableFile.from_json(entry), ["part", "row", "key"])
            for part, key in zip(table["part"].to_pylist(), table["key"].to_pylist(), strict=True):
                keys.setdefault(part, []).append(key)
    return keys


def _shard(version: Version, shard: dict[str, Any], keys: list[str] | None, full: bool) -> Iterator[Problem]:
    address = f"{version.name}/{shard['part']} {shard['group']} ({shard['path']})"
    try:
        found = version.store.head(shard["path"])
        if found.nbytes != shard["nbytes"]:
            yield Problem(
                address=address,
                what=f"the shard has {found.nbytes} bytes, the manifest says {shard['nbytes']}",
            )
        index = IndexFile(version.store, shard["index_path"], shard["index_nbytes"], shard["index_crc32c"])
        if index.n_rows != shard["n_rows"]:
            yield Problem(
                address=address,
                what=f"its index has {index.n_rows} rows, the manifest says {shard['n_rows']}",
            )
        if full:
            yield from _bytes(version, shard, address, index, keys)
    except (PenstockError, OSError) as error:
        yield Problem(address=address, what=str(error))


def _bytes(
    version: Version, shard: dict[str, Any], address: str, index: IndexFile, keys: list[str] | None
) -> Iterator[Problem]:
    hashed = hashlib.sha256()
    with version.store.open_stream(shard["path"]) as stream:
        while block := stream.read(BLOCK_BYTES):
            hashed.update(block)
    if hashed.hexdigest() != shard["sha256"]:
        yield Problem(
            address=address, what=f"its SHA-256 is {hashed.hexdigest()}, the manifest says {shard['sha256']}"
        )
    row = 0
    while row < index.n_rows:
        rows = index.read_row_group(index.row_group_of(row))
        if keys is not None and rows.keys != keys[row : row + len(rows.keys)]:
            at = next(i for i, (a, b) in enumerate(zip(rows.keys, keys[row:], strict=False)) if a != b)
            yield Problem(
                address=f"{address} row {row + at}",
                what=f"its index has key {rows.keys[at]!r}, the samples table {keys[row + at]!r}",
            )
        yield from _rows(version, shard, address, rows)
        row += len(rows.keys)


def _rows(version: Version, shard: dict[str, Any], address: str, rows: IndexRows) -> Iterator[Problem]:
    for field in rows.offset:
        for local in np.lexsort((rows.offset[field],)).tolist():
            offset, nbytes = int(rows.offset[field][local]), int(rows.nbytes[field][local])
            key = rows.keys[local]
            header = member_header(member_name(key, field), nbytes)
            span = f"{shard['group']}[{offset}:{offset + nbytes}]"
            where = f"{version.name}/{shard['part']} {span} sample {key!r} field {field!r}"
            start = offset - len(header)
            try:
                data = version.store.get_range(shard["path"], start, len(header) + nbytes).data
            except (PenstockError, OSError) as error:
                yield Problem(address=where, what=str(error))
                continue
            if data[: len(header)] != header:
                yield Problem(address=where, what="the tar header before it is not this member's")
            found = crc32c(memoryview(data)[len(header) :])
            if found != int(rows.crc32c[field][local]):
                yield Problem(
                    address=where,
                    what=f"its CRC-32C is {found:08x}, the index says {int(rows.crc32c[field][local]):08x}",
                )
