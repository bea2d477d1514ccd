"""Write shards, their page hashes and seals. A shard is one POSIX tar with one part's fields of one group.

The same samples give the same bytes. Members are ustar (`<key>.<field>`, mode 0644, no owner, mtime 0). A name over 100
bytes that no `/` splits into 155 + 100 gets a pax extended header, which tarfile, GNU tar, bsdtar and webdataset read.
A seal has the checksums of registered bytes:

    seals/<sha256>.parquet      <field>_crc32c, int64: CRC-32C of each field, one row per index row; -1: unknown
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, Protocol
from zlib import adler32

import numpy as np
import pyarrow as pa
from google_crc32c import value as _crc32c

from ...errors import AlreadyExists, Corrupt, FieldTooLarge, ObjectNotFound
from ...native import PagedSha256
from ...native import crc32c as _extended_crc32c
from ...storage import Store
from ...storage.external_shards import FOREIGN
from ...storage.requests import retry_corrupt
from ..names import member_name
from ..tables.parquet import integers, parse_stored, table_bytes, table_facts

BLOCK_BYTES = 512
DEFAULT_SHARD_BYTES = 256 * 2**20
"""Default size of a writer's shard, in bytes."""
MAX_FIELD_BYTES = 4 * 2**30
"""Largest field, in bytes: no decoder takes more at once."""

END_BYTES = 3 * BLOCK_BYTES
"""Most bytes after a shard's last sample: padding and two end blocks."""

_NAME_BYTES = 100
_END = bytes(2 * BLOCK_BYTES)
_EMPTY = (
    bytes(100)
    + b"0000644\0"
    + b"0000000\0" * 2
    + b"00000000000\0" * 2
    + b" " * 8
    + bytes(101)
    + b"ustar\x0000"
    + bytes(247)
)

Int64s = np.ndarray[Any, np.dtype[np.int64]]
Uint8s = np.ndarray[Any, np.dtype[np.uint8]]
Fill = Callable[[Uint8s, Int64s], Int64s]
"""(memory, int64 [n] offsets) -> int64 [n]: writes each payload at its offset and returns the CRC-32Cs."""

WRITE_BYTES = 2**20
"""Bytes written and hashed at once, in whole pages, while other threads run."""
LARGE_BYTES = 2 * 2**20
"""Smallest payload that is read, hashed and written by pieces, so that it is copied once."""
LARGE_WRITE_BYTES = 4 * 2**20
"""As WRITE_BYTES, for large payloads: a folder takes writes of this size without a copy into the page cache."""


class LargePayload(Protocol):
    """Bytes of a field that are not in memory."""

    nbytes: int
    """Number of bytes."""

    def read_into(self, memory: memoryview, at: int) -> None:
        """Fill `memory` with the bytes from `at` on. Raises: StoreError."""


Payload = bytes | bytearray | memoryview | LargePayload


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """Return the CRC-32C (Castagnoli) of a buffer. The C library refuses memoryviews."""
    return int(_crc32c(data if isinstance(data, bytes) else np.frombuffer(data, np.uint8)))


def check_field_bytes(key: str, field: str, nbytes: int) -> None:
    if nbytes > MAX_FIELD_BYTES:
        raise FieldTooLarge(
            f"field {field!r} of sample {key!r} is {nbytes} bytes; at most {MAX_FIELD_BYTES} (4 GiB) are accepted. "
            "Cut the sample into shorter units (clips, segments, episodes)"
        )


def aligned(nbytes: int) -> memoryview:
    memory = np.empty(nbytes + PAGE_BYTES, np.uint8)
    start = -memory.ctypes.data % PAGE_BYTES
    return memory[start : start + nbytes].data


class ShardWriter:
    """Writes members in blocks, records payload offsets, and hashes the shard and its pages."""

    def __init__(self, write: Callable[[memoryview], object]) -> None:
        """write: called with each block, whose buffer is reused afterwards."""
        self._out = write
        self._block, self._filled = memoryview(bytearray(WRITE_BYTES)), 0
        self._sha256, self._pages = PagedSha256(PAGE_BYTES), list[bytes]()
        self.nbytes = 0

    def add(self, key: str, field: str, data: Payload) -> tuple[int, int, int]:
        """Append one member, and return (payload offset, payload size, CRC-32C)."""
        nbytes = payload_bytes(data)
        self._write(member_header(member_name(key, field), nbytes))
        offset = self.nbytes
        if nbytes >= LARGE_BYTES:
            crc = self._write_pieces(data, nbytes)
        else:
            data = loaded(data)
            self._write(data)
            crc = crc32c(data)
        self._write(bytes(-nbytes % BLOCK_BYTES))
        return offset, nbytes, crc

    def add_many(self, names: Sequence[str], nbytes: Int64s, fill: Fill) -> Int64s:
        """Append members whose payloads `fill` writes; return int64 [n, 3], a row as from `add` for each.

        names: `member_name` of each. nbytes: int64 [n], payload sizes. All headers are in memory at once.
        """
        headers, n_blocks = _headers(names, nbytes)
        ends = np.cumsum(BLOCK_BYTES * n_blocks + nbytes + -nbytes % BLOCK_BYTES)
        at = ends - nbytes - -nbytes % BLOCK_BYTES
        block = self._room(int(ends[-1]))
        blocks = np.frombuffer(block, np.uint8).reshape(-1, BLOCK_BYTES)
        blocks[((at + nbytes) // BLOCK_BYTES)[nbytes % BLOCK_BYTES > 0]] = 0  # padding after a payload
        last = np.cumsum(n_blocks)
        blocks[np.arange(last[-1]) + np.repeat(at // BLOCK_BYTES - last, n_blocks)] = headers
        crcs = fill(blocks.reshape(-1), at)
        spans = np.stack([at + self.nbytes, nbytes, crcs], axis=1)
        self._filled += len(block)
        self.nbytes += len(block)
        return spans

    def finish(self) -> str:
        self._write(_END)
        self._flush(self._filled)
        return self._sha256.digest().hex()

    @property
    def pages(self) -> bytes:
        return b"".join(self._pages)

    def _write(self, data: bytes | bytearray | memoryview) -> None:
        rest = memoryview(data)
        self.nbytes += len(rest)
        while len(rest) > (room := len(self._block) - self._filled):
            self._block[self._filled :] = rest[:room]
            self._filled, rest = len(self._block), rest[room:]
            self._flush(self._filled)
        self._block[self._filled : self._filled + len(rest)] = rest
        self._filled += len(rest)

    def _write_pieces(self, data: Payload, nbytes: int) -> int:
        """Append a payload by pieces, each read into the block that is hashed and written. Return its CRC-32C."""
        if len(self._block) < LARGE_WRITE_BYTES:
            self._grow(LARGE_WRITE_BYTES)
        crc, at = 0, 0
        while at < nbytes:
            if self._filled == len(self._block):
                self._flush(self._filled)
            piece = self._block[self._filled :][: nbytes - at]
            if isinstance(data, bytes | bytearray | memoryview):
                piece[:] = memoryview(data).cast("B")[at : at + len(piece)]
            else:
                data.read_into(piece, at)
            crc = _extended_crc32c(piece, crc)
            self._filled += len(piece)
            at += len(piece)
        self.nbytes += nbytes
        return crc

    def _grow(self, nbytes: int) -> None:
        larger = aligned(-(-nbytes // WRITE_BYTES) * WRITE_BYTES)
        larger[: self._filled] = self._block[: self._filled]
        self._block = larger

    def _room(self, nbytes: int) -> memoryview:
        if self._filled + nbytes > len(self._block):
            self._flush(self._filled - self._filled % PAGE_BYTES)
        if self._filled + nbytes > len(self._block):
            self._grow(self._filled + nbytes)
        return self._block[self._filled : self._filled + nbytes]

    def _flush(self, end: int) -> None:
        data = self._block[:end].toreadonly()
        self._out(data)
        self._pages.append(self._sha256.update(data))
        self._filled -= end
        self._block[: self._filled] = self._block[end : end + self._filled]


def payload_bytes(data: Payload) -> int:
    """Return a payload's size in bytes."""
    return memoryview(data).nbytes if isinstance(data, bytes | bytearray | memoryview) else data.nbytes


def loaded(data: Payload) -> bytes | bytearray | memoryview:
    """Return a payload in memory. Raises: StoreError."""
    if isinstance(data, bytes | bytearray | memoryview):
        return data
    memory = bytearray(data.nbytes)
    data.read_into(memoryview(memory), 0)
    return memory


def member_header(name: str, nbytes: int) -> bytes:
    raw = name.encode()
    split = _split(raw)
    if split is not None:
        return _block(split[1], split[0], nbytes, b"0")
    record = _pax_record(b"path", raw)
    padded = record + bytes(-len(record) % BLOCK_BYTES)
    stub = hashlib.sha256(raw).hexdigest().encode()
    return _block(b"pax/" + stub, b"", len(record), b"x") + padded + _block(stub, b"", nbytes, b"0")


def _headers(names: Sequence[str], nbytes: Int64s) -> tuple[Uint8s, Int64s]:
    raw = "\0".join(names).encode().split(b"\0")
    if max(map(len, raw)) > _NAME_BYTES:
        headers = [member_header(name, size) for name, size in zip(names, nbytes.tolist(), strict=True)]
        blocks = np.frombuffer(b"".join(headers), np.uint8).reshape(-1, BLOCK_BYTES)
        return blocks, np.fromiter(map(len, headers), np.int64) // BLOCK_BYTES
    blocks = np.tile(np.frombuffer(_block(b"", b"", 0, b"0"), np.uint8), (len(raw), 1))
    blocks[:, :_NAME_BYTES] = np.array(raw, f"S{_NAME_BYTES}").view(np.uint8).reshape(len(raw), _NAME_BYTES)
    blocks[:, 124:135] = _octal(nbytes, 11)
    checksums = blocks[:, :_NAME_BYTES].sum(axis=1, dtype=np.int64) + blocks[:, 124:135].sum(
        axis=1, dtype=np.int64
    )
    blocks[:, 148:154] = _octal(checksums + sum(_EMPTY[_NAME_BYTES:124] + _EMPTY[135:] + b"0"), 6)
    return blocks, np.ones(len(raw), np.int64)


def _octal(numbers: Int64s, digits: int) -> Int64s:
    """Return int64 [n, digits]: ASCII octal digits, most significant first."""
    return ord("0") + (numbers[:, None] >> 3 * np.arange(digits - 1, -1, -1) & 7)


def _split(raw: bytes) -> tuple[bytes, bytes] | None:
    if len(raw) <= _NAME_BYTES:
        return b"", raw
    cut = raw.find(b"/", len(raw) - _NAME_BYTES - 1)
    if 0 < cut <= 155 and cut + 1 < len(raw):
        return raw[:cut], raw[cut + 1 :]
    return None


def _pax_record(keyword: bytes, value: bytes) -> bytes:
    body = b" " + keyword + b"=" + value + b"\n"
    length = len(body)
    while len(str(length)) + len(body) != length:
        length = len(str(length)) + len(body)
    return str(length).encode() + body


def _block(name: bytes, prefix: bytes, nbytes: int, kind: bytes) -> bytes:
    block = bytearray(_EMPTY)
    block[: len(name)] = name
    block[124:135] = b"%011o" % nbytes
    block[156:157] = kind
    block[345 : 345 + len(prefix)] = prefix
    # Adler-32 contains a byte sum modulo 65,521, enough for 256 bytes, and is fast.
    checksum = (adler32(block[:256], 0) & 0xFFFF) + (adler32(block[256:], 0) & 0xFFFF)
    block[148:154] = b"%06o" % checksum
    block[154:156] = b"\0 "
    return bytes(block)


PAGE_BYTES = 64 * 2**10
"""Bytes of a page. Reading a sample costs half a page more at each end; hashes take 0.05 % of a shard."""
DIGEST_BYTES = 32
_BLOCK_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class PageHashes:
    """Hashes of a shard's pages. The last page may be shorter."""

    digests: bytes
    """32 bytes per page."""
    page_bytes: int
    nbytes: int
    """Bytes of the shard."""

    @staticmethod
    def of(digests: bytes, page_bytes: int, nbytes: int, name: str) -> "PageHashes":
        """Return the page hashes of a shard with `nbytes`. name: the index, for errors.

        Raises: Corrupt if their number is wrong.
        """
        if page_bytes < 1 or len(digests) != DIGEST_BYTES * -(-nbytes // page_bytes):
            raise Corrupt(
                f"{name} has {len(digests)} bytes of hashes of pages of {page_bytes} bytes, for a shard of {nbytes} "
                "bytes; restore it from a mirror"
            )
        return PageHashes(digests, page_bytes, nbytes)

    @property
    def n_pages(self) -> int:
        return len(self.digests) // DIGEST_BYTES

    def others(self, digests: Sequence[bytes]) -> list[int]:
        step = DIGEST_BYTES
        return [n for n, one in enumerate(digests) if self.digests[n * step : (n + 1) * step] != one]

    def is_page(self, page: int, data: bytes | memoryview) -> bool:
        start = page * DIGEST_BYTES
        return hashlib.sha256(data).digest() == self.digests[start : start + DIGEST_BYTES]


def hash_pages(path: str) -> bytes:
    block, digests = memoryview(bytearray(_BLOCK_BYTES)), list[bytes]()  # a block holds whole pages
    with open(path, "rb", buffering=0) as file:
        while nbytes := _filled(file, block):
            pages = (block[at : min(at + PAGE_BYTES, nbytes)] for at in range(0, nbytes, PAGE_BYTES))
            digests.extend(hashlib.sha256(page).digest() for page in pages)
    return b"".join(digests)


def _filled(file: BinaryIO, block: memoryview) -> int:
    at = 0
    while at < len(block) and (n := file.readinto(block[at:])):  # type: ignore[attr-defined]
        at += n
    return at


Crcs = Mapping[str, Int64s]
"""Field -> int64 [rows of the index], CRC-32Cs."""
SEALS = "seals/"
_CRC = "_crc32c"


def seal_path(shard_path: str, index_footer_sha256: str | None) -> str:
    """Return the path of an index's seal; "" for the root's own shards."""
    if not shard_path.startswith(FOREIGN) or not index_footer_sha256:
        return ""
    return f"{SEALS}{hashlib.sha256(f'{index_footer_sha256} {shard_path}'.encode()).hexdigest()}.parquet"


def seal_bytes(path: str, crcs: Crcs) -> bytes:
    table = pa.table({f"{field}{_CRC}": pa.array(crcs[field]) for field in sorted(crcs)})
    return table_bytes(table, "seal", facts={"path": path, "content_sha256": _content(crcs)})


def put_seal(store: Store, path: str, data: bytes) -> None:
    try:
        store.put_if_absent(path, data)
    except AlreadyExists:
        return


def read_seal(store: Store, path: str, fields: list[str], n_rows: int) -> Crcs | None:
    """Return the seal's checksums for an index with these sorted fields, or None. One request."""
    name = f"{store.url}/{path}"
    try:
        crcs = retry_corrupt(partial(_read, store, path))
    except ObjectNotFound:
        return None
    if sorted(crcs) != fields or any(len(column) != n_rows for column in crcs.values()):
        raise Corrupt(
            f"{name} has the fields {sorted(crcs)}, its index {fields} in {n_rows} rows: it is another's. {_AGAIN}"
        )
    return crcs


def parse_seal(data: bytes, path: str, name: str) -> Crcs:
    table = parse_stored(data, path, name)
    try:
        crcs = {column.removesuffix(_CRC): integers(table[column]) for column in table.column_names}
    except TypeError as error:
        raise Corrupt(f"{name} is no seal: {error}. {_AGAIN}") from error
    if (content := _content(crcs)) != table_facts(table).get("content_sha256"):
        raise Corrupt(
            f"{name}: the SHA-256 of its checksums is {content}, unlike the stored one: it was damaged. {_AGAIN}"
        )
    return crcs


_AGAIN = "Restore it from a mirror, or delete it and run penstock seal again"


def _read(store: Store, path: str) -> Crcs:
    return parse_seal(store.get(path).data, path, f"{store.url}/{path}")


def _content(crcs: Crcs) -> str:
    digest = hashlib.sha256()
    for field in sorted(crcs):
        digest.update(f"{field} {len(crcs[field])} ".encode() + np.asarray(crcs[field], "<i8").tobytes())
    return digest.hexdigest()
