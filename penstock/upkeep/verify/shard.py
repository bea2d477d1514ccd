"""Check one shard against its version: size, index, and all bytes or only the last row."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, BinaryIO

import numpy as np
from google_crc32c import extend

from loader import Version
from loader.dataset.names import member_name
from loader.dataset.shards.address import UNKNOWN_CRC
from loader.dataset.shards.index import IndexFile, IndexPlace
from loader.dataset.shards.index_rows import IndexRows
from loader.dataset.shards.shard import crc32c
from loader.dataset.shards.tar_headers import member_header
from loader.dataset.tables.foreign_objects import is_foreign
from loader.errors import Corrupt, PenstockError
from loader.storage import ByteRange, ObjectInfo
from loader.storage.external_shards import SEVERAL

BLOCK_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem."""

    address: str
    """Version, part, field, byte range and key, as far as known."""
    what: str
    """Damage, often with the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardProblems:
    problems: list[Problem]
    unverified_nbytes: int
    """Bytes that were read but have no known checksum."""


def shard_address(version: Version, shard: dict[str, Any]) -> str:
    """Return a shard's version, part, group and path as text."""
    return f"{version.name}/{shard['part']} {shard['group']} ({shard['path']})"


def check_bytes(
    version: Version, shard: dict[str, Any], address: str, index: IndexFile, keys: list[str] | None
) -> Iterator[Problem]:
    """Check every byte of a shard against its hash and index, and the index against the part's keys.

    keys: the part's keys, by the samples table; None if unknown.
    """
    pages = index.page_hashes(shard["nbytes"])
    with version.store.open_stream(shard["path"]) as stream:
        reader = _Hashing(stream, pages.page_bytes if pages else 0)
        row = 0
        ended = False
        while row < index.n_rows:
            rows = index.read_group(index.row_group_number(row))
            yield from check_keys(address, rows, row, keys)
            for problem in () if ended else _rows(version, shard, rows, reader):
                yield problem
                ended = reader.ended
            row += len(rows.keys)
        reader.skip()
    yield from too_few_rows(address, row, keys)
    if reader.sha256.hexdigest() != shard["sha256"]:
        yield Problem(
            address=address,
            what=f"its SHA-256 is {reader.sha256.hexdigest()}, the manifest states {shard['sha256']}",
        )
    elif pages is not None and (bad := pages.others(reader.pages())):
        yield Problem(
            address=address,
            what=f"its index has another SHA-256 of {len(bad)} of its pages of {pages.page_bytes} bytes, first of "
            f"number {bad[0]}",
        )


def check_keys(address: str, rows: IndexRows, first: int, keys: list[str] | None) -> Iterator[Problem]:
    """Yield a problem at the first row of an index whose key differs from the samples table's.

    first: number of the first of these rows. keys: the samples table's, of the whole part; None checks nothing.
    """
    if keys is None:
        return
    expected_keys = keys[first : first + len(rows.keys)]
    for position, (got, expected) in enumerate(zip_longest(rows.keys, expected_keys)):
        if got != expected:
            yield Problem(
                address=f"{address} row {first + position}",
                what=f"its index has key {got!r}, the samples table {expected!r}",
            )
            return


def too_few_rows(address: str, n_rows: int, keys: list[str] | None) -> Iterator[Problem]:
    """Yield a problem if an index has fewer rows than its part has keys."""
    if keys is not None and len(keys) > n_rows:
        yield Problem(address=address, what=f"its index has {n_rows} rows, the samples table {len(keys)}")


def check_last_row(version: Version, shard: dict[str, Any], index: IndexFile) -> Iterator[Problem]:
    """Check the last row's smallest field at the offset that the index states; a swapped shard has another key there.

    Costs one index row group and one range: only the header, if the field is larger than `BLOCK_BYTES`.
    """
    last_row = index.n_rows - 1
    rows = index.read_group(index.row_group_number(last_row))
    key = rows.keys[-1]
    name = min(rows.nbytes, key=lambda field: int(rows.nbytes[field][-1]))
    offset = int(rows.offset[name][-1])
    nbytes = int(rows.nbytes[name][-1])
    crc = int(rows.crc32c[name][-1])
    header = member_header(member_name(key, name), nbytes)
    n_checked = 0
    if nbytes <= BLOCK_BYTES:
        n_checked = nbytes
    start = offset - len(header)
    data = version.store.get_range(shard["path"], start, len(header) + n_checked).data
    span = f"{shard['group']}[{offset}:{offset + nbytes}]"
    where = f"{version.name}/{shard['part']} {span} sample {key!r} field {name!r} ({shard['path']})"
    if data[: len(header)] != header:
        yield Problem(address=where, what="the tar header before it is not this member's")
        return
    if not n_checked:
        return
    actual = extend(0, data[len(header) :])
    if actual != crc:
        yield Problem(address=where, what=f"its CRC-32C is {actual:08x}, the index states {crc:08x}")


def _rows(version: Version, shard: dict[str, Any], rows: IndexRows, reader: "_Hashing") -> Iterator[Problem]:
    names = list(rows.offset)
    # int64 [fields, rows].
    offsets = np.stack([rows.offset[field] for field in names])
    # In the order of the bytes, so that one stream reads the shard.
    for flat in np.argsort(offsets, axis=None, kind="stable").tolist():
        field = names[flat // len(rows.keys)]
        local = flat % len(rows.keys)
        offset = int(rows.offset[field][local])
        nbytes = int(rows.nbytes[field][local])
        crc = int(rows.crc32c[field][local])
        key = rows.keys[local]
        span = f"{shard['group']}[{offset}:{offset + nbytes}]"
        where = f"{version.name}/{shard['part']} {span} sample {key!r} field {field!r}"
        header = member_header(member_name(key, field), nbytes)
        if offset - len(header) < reader.at:
            yield Problem(address=where, what=f"it overlaps the member before it, which ends at {reader.at}")
            continue
        reader.skip(offset - len(header))
        if reader.take(len(header)) != header:
            yield Problem(address=where, what="the tar header before it is not this member's")
        actual = reader.crc32c(nbytes)
        if reader.ended:
            yield Problem(
                address=where,
                what=f"the shard ends at byte {reader.at}: this field is cut off, as all after it",
            )
            return
        if actual != crc:
            yield Problem(address=where, what=f"its CRC-32C is {actual:08x}, the index states {crc:08x}")


class _Hashing:
    """Reads a stream in blocks and hashes it, and each page unless `page_bytes` is 0."""

    def __init__(self, stream: BinaryIO, page_bytes: int) -> None:
        self._stream = stream
        self._page_bytes = page_bytes
        self.sha256 = hashlib.sha256()
        self._page = hashlib.sha256()
        self._digests = list[bytes]()
        self.at = 0
        self.ended = False

    def skip(self, until: int | None = None) -> None:
        for _ in self._blocks(None if until is None else until - self.at):
            pass

    def take(self, nbytes: int) -> bytes:
        return b"".join(self._blocks(nbytes))

    def crc32c(self, nbytes: int) -> int:
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
            self._hash_pages(block)
            self.at += len(block)
            nbytes = None if nbytes is None else nbytes - len(block)
            yield block

    def pages(self) -> list[bytes]:
        unfinished = self._page_bytes and self.at % self._page_bytes
        if unfinished:
            return [*self._digests, self._page.digest()]
        return self._digests

    def _hash_pages(self, block: bytes) -> None:
        view = memoryview(block)
        start = 0
        while self._page_bytes and start < len(block):
            rest = self._page_bytes - (self.at + start) % self._page_bytes
            self._page.update(view[start : start + rest])
            if start + rest <= len(block):
                self._digests.append(self._page.digest())
                self._page = hashlib.sha256()
            start += rest


READ_BYTES = 16 * 2**20
"""Most bytes of fields read together; a larger field is read by itself."""


def check_registered(
    version: Version,
    shard: dict[str, Any],
    address: str,
    index: IndexFile,
    keys: list[str] | None,
    unverified: Callable[[int], None],
) -> Iterator[Problem]:
    """Read every field of a registered shard, and compare it with its known checksum.

    keys: as for `check_bytes`. unverified: receives the size in bytes of each field without a checksum.
    """
    decoded = None
    if version.placed:
        decoded = version.placed.objects(shard["path"])[0].decoded
    if decoded is not None:
        decoded.forget()  # read the stored bytes, not cached ones
    row = 0
    while row < index.n_rows:
        rows = index.read_group(index.row_group_number(row))
        yield from check_keys(address, rows, row, keys)
        yield from _fields(version, shard, rows, unverified, by_chunk=decoded is not None)
        row += len(rows.keys)
    yield from too_few_rows(address, row, keys)


def _fields(
    version: Version,
    shard: dict[str, Any],
    rows: IndexRows,
    unverified: Callable[[int], None],
    *,
    by_chunk: bool,
) -> Iterator[Problem]:
    names = sorted(rows.offset)
    # int64 [rows * fields]: places, as flat numbers, in the order of their offsets.
    order = np.argsort(rows.places[:, :, 0], axis=None, kind="stable")
    nbytes = rows.places[:, :, 1].reshape(-1)[order]
    # int64 [blocks - 1]: where the running sum enters another multiple of `READ_BYTES`.
    cuts = np.flatnonzero(np.diff(np.cumsum(nbytes) // READ_BYTES)) + 1
    blocks = deque(np.split(order, cuts))
    while blocks:
        block = blocks.popleft()
        at = [divmod(flat, len(names)) for flat in block.tolist()]
        places = [rows.places[local, number].tolist() for local, number in at]
        try:
            blobs = version.shard_store.get_ranges(shard["path"], [ByteRange(*place[:2]) for place in places])
        except PenstockError as error:
            if by_chunk and len(block) > 1 and isinstance(error, Corrupt):
                # A damaged chunk of a coded object: halves find its fields, and clear the others.
                blocks.extendleft(reversed(np.array_split(block, 2)))
                continue
            yield Problem(
                address=_where(version, shard, rows.keys[at[0][0]], names[at[0][1]], places[0]),
                what=str(error),
            )
            continue
        for (local, number), place, blob in zip(at, places, blobs, strict=True):
            if place[2] == UNKNOWN_CRC:
                unverified(place[1])
            elif (actual := crc32c(blob.data)) != place[2]:
                yield Problem(
                    address=_where(version, shard, rows.keys[local], names[number], place),
                    what=f"its CRC-32C is {actual:08x}, {place[2]:08x} is known of it",
                )


def _where(version: Version, shard: dict[str, Any], key: str, field: str, place: list[int]) -> str:
    span = f"{shard['group']}[{place[0]}:{place[0] + place[1]}]"
    return f"{version.name}/{shard['part']} {span} sample {key!r} field {field!r} ({shard['path']})"


def check_shard(
    version: Version, shard: dict[str, Any], keys: list[str] | None, *, full: bool
) -> ShardProblems:
    """Return the problems in a shard and its index. keys: as for `check_bytes`. full: read every byte."""
    unverified: list[int] = []
    problems = list(_problems(version, shard, keys, unverified.append, full=full))
    return ShardProblems(problems=problems, unverified_nbytes=sum(unverified))


def _problems(
    version: Version,
    shard: dict[str, Any],
    keys: list[str] | None,
    unverified: Callable[[int], None],
    *,
    full: bool,
) -> Iterator[Problem]:
    address = shard_address(version, shard)
    try:
        registered = is_foreign(shard["path"])
        if registered and not version.parts.live_members(version.parts.position(shard["part"])).any():
            return  # its object may have changed or gone: registering it again left its samples out
        index = IndexFile(version.store, IndexPlace.of(shard))
        info = _head(version, shard, index)
        if info.nbytes != shard["nbytes"]:
            yield Problem(
                address=address,
                what=f"the shard has {info.nbytes} bytes, the manifest states {shard['nbytes']}",
            )
        if index.n_rows != shard["n_rows"]:
            yield Problem(
                address=address,
                what=f"its index has {index.n_rows} rows, the manifest states {shard['n_rows']}",
            )
        if full:
            there = version.store.head(shard["index_path"]).nbytes
            if there != shard["index_nbytes"]:  # readers only read the stated number of bytes
                yield Problem(
                    address=address,
                    what=f"its index has {there} bytes, the manifest states {shard['index_nbytes']}",
                )
            if registered:
                yield from check_registered(version, shard, address, index, keys, unverified)
            else:
                yield from check_bytes(version, shard, address, index, keys)
        elif not registered and index.n_rows and info.nbytes == shard["nbytes"]:
            yield from check_last_row(version, shard, index)
    except (PenstockError, OSError) as error:
        yield Problem(address=address, what=str(error))


def _head(version: Version, shard: dict[str, Any], index: IndexFile) -> ObjectInfo:
    placed = version.placed
    path = shard["path"]
    if placed is None or not is_foreign(path):
        return version.store.head(path)
    live = version.parts.live_members(version.parts.position(shard["part"]))
    if live.all() or len(placed.objects(path)) == 1:
        return placed.head(path)
    # Objects without a live sample may have changed or gone.
    needed = set[int]()
    row = 0
    while row < index.n_rows:
        rows = index.read_group(index.row_group_number(row))
        fields = rows.places[live[row : row + len(rows.keys)]].reshape(-1, 3)
        needed.update(fields[fields[:, 1] > 0, 0].tolist())
        row += len(rows.keys)
    placed.check_objects(path, needed)
    return ObjectInfo(key=path, nbytes=shard["nbytes"], etag=SEVERAL)
