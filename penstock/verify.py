"""`penstock verify`: are the stored bytes what the history says, down to the field and its byte range?"""

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any, BinaryIO

import numpy as np
from google_crc32c import extend

from loader import Root, Version
from loader.dataset.index import IndexFile, IndexPlace, IndexRows
from loader.dataset.member_names import member_name
from loader.dataset.parquet import TableFile, get_table
from loader.dataset.shard import member_header
from loader.errors import PenstockError

from .progress import progress

BLOCK_BYTES = 4 * 2**20


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
            yield from _bytes(version, shard, address, index, keys.get(shard["part"], []))
    except (PenstockError, OSError) as error:
        yield Problem(address=address, what=str(error))


def _bytes(
    version: Version, shard: dict[str, Any], address: str, index: IndexFile, keys: list[str]
) -> Iterator[Problem]:
    with version.store.open_stream(shard["path"]) as stream:
        reader = _Hashing(stream)
        row, ended = 0, False
        while row < index.n_rows:
            rows = index.read_row_group(index.row_group_of(row))
            for position, (got, wanted) in enumerate(
                zip_longest(rows.keys, keys[row : row + len(rows.keys)])
            ):
                if got != wanted:
                    yield Problem(
                        address=f"{address} row {row + position}",
                        what=f"its index has key {got!r}, the samples table {wanted!r}",
                    )
                    break
            for problem in () if ended else _rows(version, shard, rows, reader):
                yield problem
                ended = reader.ended
            row += len(rows.keys)
        reader.skip()
    if len(keys) > row:
        yield Problem(address=address, what=f"its index has {row} rows, the samples table {len(keys)}")
    if reader.sha256.hexdigest() != shard["sha256"]:
        yield Problem(
            address=address,
            what=f"its SHA-256 is {reader.sha256.hexdigest()}, the manifest says {shard['sha256']}",
        )


def _rows(version: Version, shard: dict[str, Any], rows: IndexRows, reader: "_Hashing") -> Iterator[Problem]:
    """The members of these rows as the shard has them, in the order of their offsets."""
    names = list(rows.offset)
    offsets = np.stack([rows.offset[field] for field in names])
    for flat in np.argsort(offsets, axis=None, kind="stable").tolist():
        field, local = names[flat // len(rows.keys)], flat % len(rows.keys)
        offset, nbytes = int(rows.offset[field][local]), int(rows.nbytes[field][local])
        crc, key = int(rows.crc32c[field][local]), rows.keys[local]
        span = f"{shard['group']}[{offset}:{offset + nbytes}]"
        where = f"{version.name}/{shard['part']} {span} sample {key!r} field {field!r}"
        header = member_header(member_name(key, field), nbytes)
        if offset - len(header) < reader.at:
            yield Problem(address=where, what=f"it overlaps the member before it, which ends at {reader.at}")
            continue
        reader.skip(offset - len(header))
        if reader.take(len(header)) != header:
            yield Problem(address=where, what="the tar header before it is not this member's")
        found = reader.crc32c(nbytes)
        if reader.ended:
            yield Problem(
                address=where,
                what=f"the shard ends at byte {reader.at}: this field is cut off, as all after it",
            )
            return
        if found != crc:
            yield Problem(address=where, what=f"its CRC-32C is {found:08x}, the index says {crc:08x}")


class _Hashing:
    """Reads a stream forward in blocks and hashes all of it on the way. at: bytes read; ended: it was too short."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.sha256 = hashlib.sha256()
        self.at, self.ended = 0, False

    def skip(self, until: int | None = None) -> None:
        """Read on to byte `until`, or to the end."""
        for _ in self._blocks(None if until is None else until - self.at):
            pass

    def take(self, nbytes: int) -> bytes:
        """The next bytes; fewer at the end."""
        return b"".join(self._blocks(nbytes))

    def crc32c(self, nbytes: int) -> int:
        """The CRC-32C of the next bytes."""
        crc = 0
        for block in self._blocks(nbytes):
            crc = extend(crc, block)
        return crc

    def _blocks(self, nbytes: int | None) -> Iterator[bytes]:
        while nbytes is None or nbytes > 0:
            block = self._stream.read(BLOCK_BYTES if nbytes is None else min(nbytes, BLOCK_BYTES))
            if not block:
                self.ended = nbytes is not None
                return
            self.sha256.update(block)
            self.at += len(block)
            nbytes = None if nbytes is None else nbytes - len(block)
            yield block
