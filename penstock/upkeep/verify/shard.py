"""Check every byte of one shard in one pass: hashes of file and pages, headers, checksums, keys."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, BinaryIO

import numpy as np
from google_crc32c import extend

from loader import Version
from loader.dataset.names import member_name
from loader.dataset.shards.index import IndexFile, IndexRows
from loader.dataset.shards.shard import member_header

BLOCK_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem."""

    address: str
    """Version, part, field, byte range and key, as far as known."""
    what: str
    """The damage in words, often with the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardProblems:
    """The result of a shard."""

    problems: list[Problem]
    """Problems."""
    unverified_nbytes: int
    """Bytes that were read and have no known checksum."""


def shard_address(version: Version, shard: dict[str, Any]) -> str:
    """Return version, part, group and path of a shard."""
    return f"{version.name}/{shard['part']} {shard['group']} ({shard['path']})"


def check_bytes(
    version: Version, shard: dict[str, Any], address: str, index: IndexFile, keys: list[str] | None
) -> Iterator[Problem]:
    """Check every byte of a shard against its hash and index, and the index against the keys of its part.

    keys: by the samples table; None if unknown.
    """
    pages = index.page_hashes(shard["nbytes"])
    with version.store.open_stream(shard["path"]) as stream:
        reader = _Hashing(stream, pages.page_bytes if pages else 0)
        row, ended = 0, False
        while row < index.n_rows:
            rows = index.read_group(index.row_group_of(row))
            yield from other_key(address, rows, row, keys)
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


def other_key(address: str, rows: IndexRows, first: int, keys: list[str] | None) -> Iterator[Problem]:
    """Yield the first row of an index whose key differs from the samples table.

    first: number of its first row. keys: of the part, by the samples table; None if unknown.
    """
    named = rows.keys if keys is None else keys[first : first + len(rows.keys)]
    for position, (got, expected) in enumerate(zip_longest(rows.keys, named)):
        if got != expected:
            yield Problem(
                address=f"{address} row {first + position}",
                what=f"its index has key {got!r}, the samples table {expected!r}",
            )
            return


def too_few_rows(address: str, n_rows: int, keys: list[str] | None) -> Iterator[Problem]:
    """Yield a problem if an index has fewer rows than the samples table has keys of its part."""
    if keys is not None and len(keys) > n_rows:
        yield Problem(address=address, what=f"its index has {n_rows} rows, the samples table {len(keys)}")


def check_last_row(version: Version, shard: dict[str, Any], index: IndexFile) -> Iterator[Problem]:
    """Check the last row's smallest field where its index places it.

    An exchanged shard has another key there. Costs one index row group and one range; only the header of a field
    above `BLOCK_BYTES`.
    """
    rows = index.read_group(index.row_group_of(index.n_rows - 1))
    name = min(rows.nbytes, key=lambda field: int(rows.nbytes[field][-1]))
    offset, nbytes, crc = (int(table[name][-1]) for table in (rows.offset, rows.nbytes, rows.crc32c))
    header = member_header(member_name(rows.keys[-1], name), nbytes)
    n_checked = nbytes if nbytes <= BLOCK_BYTES else 0
    data = version.store.get_range(shard["path"], offset - len(header), len(header) + n_checked).data
    span = f"{shard['group']}[{offset}:{offset + nbytes}]"
    where = f"{version.name}/{shard['part']} {span} sample {rows.keys[-1]!r} field {name!r} ({shard['path']})"
    if data[: len(header)] != header:
        yield Problem(address=where, what="the tar header before it is not this member's")
    elif n_checked and (actual := extend(0, data[len(header) :])) != crc:
        yield Problem(address=where, what=f"its CRC-32C is {actual:08x}, the index states {crc:08x}")


def _rows(version: Version, shard: dict[str, Any], rows: IndexRows, reader: "_Hashing") -> Iterator[Problem]:
    """Check the members of these rows, by offset."""
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
    """Reads a stream in blocks and hashes it, also by pages unless `page_bytes` is 0.

    at: bytes read; ended: it was too short.
    """

    def __init__(self, stream: BinaryIO, page_bytes: int) -> None:
        self._stream, self._page_bytes = stream, page_bytes
        self.sha256 = hashlib.sha256()
        self._page, self._digests = hashlib.sha256(), list[bytes]()
        self.at, self.ended = 0, False

    def skip(self, until: int | None = None) -> None:
        """Read to byte `until`, or to the end."""
        for _ in self._blocks(None if until is None else until - self.at):
            pass

    def take(self, nbytes: int) -> bytes:
        """Return the next bytes, fewer at the end."""
        return b"".join(self._blocks(nbytes))

    def crc32c(self, nbytes: int) -> int:
        """Return the CRC-32C of the next bytes."""
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
        """Return the SHA-256 of each page, once all was read."""
        unfinished = self._page_bytes and self.at % self._page_bytes
        return [*self._digests, self._page.digest()] if unfinished else self._digests

    def _hash_pages(self, block: bytes) -> None:
        view, start = memoryview(block), 0
        while self._page_bytes and start < len(block):
            rest = self._page_bytes - (self.at + start) % self._page_bytes
            self._page.update(view[start : start + rest])
            if start + rest <= len(block):
                self._digests.append(self._page.digest())
                self._page = hashlib.sha256()
            start += rest
