"""Write shards and their page hashes. A shard is one POSIX tar with one part's fields of one group.

The same samples give the same bytes. Members are ustar (`<key>.<field>`, mode 0644, no owner, mtime 0). A name over 100
bytes that no `/` splits into 155 + 100 gets a pax extended header, which tarfile, GNU tar, bsdtar and webdataset read.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import FileIO
from typing import Any, Protocol
from zlib import adler32

import numpy as np
from google_crc32c import value as _crc32c

from ...errors import Corrupt, FieldTooLarge
from ...native import PagedSha256
from ...native import crc32c as _extended_crc32c
from ..names import member_name

BLOCK_BYTES = 512
PAGE_BYTES = 64 * 2**10
"""Bytes of a page. Reading a sample costs half a page more at each end; hashes take 0.05 % of a shard."""
DIGEST_BYTES = 32
DEFAULT_SHARD_BYTES = 256 * 2**20
"""Default size of a writer's shard, in bytes."""
MAX_FIELD_BYTES = 4 * 2**30
"""Largest field, in bytes: no decoder takes more at once."""

END_BYTES = 3 * BLOCK_BYTES
"""Most bytes after a shard's last sample: padding and two end blocks."""

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
    if isinstance(data, bytes):
        return int(_crc32c(data))
    return int(_crc32c(np.frombuffer(data, np.uint8)))


def check_field_bytes(
    key: str,
    field: str,
    nbytes: int,
) -> None:
    if nbytes > MAX_FIELD_BYTES:
        raise FieldTooLarge(
            f"field {field!r} of sample {key!r} is {nbytes} bytes; at most {MAX_FIELD_BYTES} (4 GiB) are accepted. "
            "Cut the sample into shorter units (clips, segments, episodes)"
        )


def aligned(nbytes: int) -> memoryview:
    memory = np.empty(nbytes + PAGE_BYTES, np.uint8)
    start = -memory.ctypes.data % PAGE_BYTES
    end = start + nbytes
    memory = memory[start:end]
    return memory.data


class ShardWriter:
    """Writes members in blocks, records payload offsets, and hashes the shard and its pages."""

    def __init__(self, write: Callable[[memoryview], object]) -> None:
        """write: called with each block, whose buffer is reused afterwards."""
        self._out = write
        self._block = memoryview(bytearray(WRITE_BYTES))
        self._filled = 0  # bytes at the block's beginning that are not written yet
        self._sha256 = PagedSha256(PAGE_BYTES)
        self._pages: list[bytes] = []
        self.nbytes = 0

    def add(
        self,
        key: str,
        field: str,
        data: Payload,
    ) -> tuple[int, int, int]:
        """Append one member, and return (payload offset, payload size, CRC-32C)."""
        nbytes = payload_bytes(data)
        name = member_name(key, field)
        self._write(member_header(name, nbytes))
        offset = self.nbytes
        if nbytes >= LARGE_BYTES:
            crc = self._write_pieces(data, nbytes)
        else:
            data = loaded(data)
            self._write(data)
            crc = crc32c(data)
        padding = -nbytes % BLOCK_BYTES
        self._write(bytes(padding))
        return offset, nbytes, crc

    def add_many(
        self,
        names: Sequence[str],
        nbytes: Int64s,
        fill: Fill,
    ) -> Int64s:
        """Append members whose payloads `fill` writes; return int64 [n, 3], a row as from `add` for each.

        names: `member_name` of each. nbytes: int64 [n], payload sizes. All headers are in memory at once.
        """
        headers, n_blocks = _headers(names, nbytes)
        padding = -nbytes % BLOCK_BYTES  # [n]
        header_nbytes = n_blocks * BLOCK_BYTES
        ends = np.cumsum(header_nbytes + nbytes + padding)
        payload_at = ends - padding - nbytes  # [n]: offset of each payload in the new bytes
        room = self._room(int(ends[-1]))
        blocks = np.frombuffer(room, np.uint8).reshape(-1, BLOCK_BYTES)

        # The rest of a payload's last block is its padding: the block is cleared before `fill` writes into it.
        last_block = (payload_at + nbytes) // BLOCK_BYTES
        padded_blocks = last_block[padding > 0]
        blocks[padded_blocks] = 0

        # A member's headers end where its payload begins.
        header_ends = np.cumsum(n_blocks)  # [n]: rows of `headers`
        shift = payload_at // BLOCK_BYTES - header_ends  # [n]: from a row of `headers` to its row of `blocks`
        header_rows = np.arange(header_ends[-1])
        block_rows = header_rows + np.repeat(shift, n_blocks)
        blocks[block_rows] = headers

        crcs = fill(blocks.reshape(-1), payload_at)
        offsets = payload_at + self.nbytes
        self._filled += len(room)
        self.nbytes += len(room)
        return np.stack([offsets, nbytes, crcs], axis=1)

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
            self._filled = len(self._block)
            self._flush(self._filled)
            rest = rest[room:]
        end = self._filled + len(rest)
        self._block[self._filled : end] = rest
        self._filled = end

    def _write_pieces(
        self,
        data: Payload,
        nbytes: int,
    ) -> int:
        """Append a payload by pieces, each read into the block that is hashed and written. Return its CRC-32C."""
        if len(self._block) < LARGE_WRITE_BYTES:
            self._grow(LARGE_WRITE_BYTES)
        crc = 0
        start = 0
        while start < nbytes:
            if self._filled == len(self._block):
                self._flush(self._filled)
            room = self._block[self._filled :]
            piece = room[: nbytes - start]
            end = start + len(piece)
            if isinstance(data, bytes | bytearray | memoryview):
                piece[:] = memoryview(data).cast("B")[start:end]
            else:
                data.read_into(piece, start)
            crc = _extended_crc32c(piece, crc)
            self._filled += len(piece)
            start = end
        self.nbytes += nbytes
        return crc

    def _grow(self, nbytes: int) -> None:
        n_writes = -(-nbytes // WRITE_BYTES)
        larger = aligned(n_writes * WRITE_BYTES)
        larger[: self._filled] = self._block[: self._filled]
        self._block = larger

    def _room(self, nbytes: int) -> memoryview:
        """Return memory for the shard's next bytes, after writing or growing the block where they do not fit."""
        if self._filled + nbytes > len(self._block):
            self._flush(self._filled - self._filled % PAGE_BYTES)
        end = self._filled + nbytes
        if end > len(self._block):
            self._grow(end)
        return self._block[self._filled : end]

    def _flush(self, end: int) -> None:
        data = self._block[:end].toreadonly()
        self._out(data)
        page_digests = self._sha256.update(data)
        self._pages.append(page_digests)
        rest = self._block[end : self._filled]
        self._block[: len(rest)] = rest
        self._filled = len(rest)


def payload_bytes(data: Payload) -> int:
    """Return a payload's size in bytes."""
    if isinstance(data, bytes | bytearray | memoryview):
        return memoryview(data).nbytes
    return data.nbytes


def loaded(data: Payload) -> bytes | bytearray | memoryview:
    """Return a payload in memory. Raises: StoreError."""
    if isinstance(data, bytes | bytearray | memoryview):
        return data
    memory = bytearray(data.nbytes)
    data.read_into(memoryview(memory), 0)
    return memory


_NAME_BYTES = 100
_PREFIX_BYTES = 155
_NAME = slice(0, _NAME_BYTES)
_SIZE = slice(124, 135)
_CHECKSUM = slice(148, 154)
_TYPE = slice(156, 157)
_PREFIX_AT = 345
_END = bytes(2 * BLOCK_BYTES)
_EMPTY = (
    bytes(_NAME_BYTES)
    + b"0000644\0"  # mode
    + b"0000000\0" * 2  # user, group
    + b"00000000000\0" * 2  # size, mtime
    + b" " * 8  # checksum, whose own bytes count as spaces
    + bytes(101)  # type, link
    + b"ustar\x0000"
    + bytes(247)  # names of user and group, device, prefix
)
_FILE = b"0"
_PAX = b"x"
_COMMON_SUM = sum(_EMPTY[_NAME.stop : _SIZE.start]) + sum(_EMPTY[_SIZE.stop :]) + sum(_FILE)
"""Sum of a file's header without its name and its size."""


def member_header(name: str, nbytes: int) -> bytes:
    raw = name.encode()
    split = _split(raw)
    if split is not None:
        prefix, rest = split
        return _block(rest, prefix, nbytes, _FILE)

    record = _pax_record(b"path", raw)
    padding = bytes(-len(record) % BLOCK_BYTES)
    stub = hashlib.sha256(raw).hexdigest().encode()
    pax_block = _block(b"pax/" + stub, b"", len(record), _PAX)
    member_block = _block(stub, b"", nbytes, _FILE)
    return pax_block + record + padding + member_block


def _headers(names: Sequence[str], nbytes: Int64s) -> tuple[Uint8s, Int64s]:
    """Return (uint8 [blocks, 512]: the headers of all members; int64 [n]: blocks of each header)."""
    raw = "\0".join(names).encode().split(b"\0")  # one call encodes all; no name has a NUL
    if max(map(len, raw)) > _NAME_BYTES:
        headers = list(map(member_header, names, nbytes.tolist()))
        blocks = np.frombuffer(b"".join(headers), np.uint8).reshape(-1, BLOCK_BYTES)
        header_nbytes = np.fromiter(map(len, headers), np.int64)
        return blocks, header_nbytes // BLOCK_BYTES

    n = len(raw)
    padded_names = np.array(raw, f"S{_NAME_BYTES}").view(np.uint8)
    template = _block(b"", b"", 0, _FILE)
    blocks = np.tile(np.frombuffer(template, np.uint8), (n, 1))
    blocks[:, _NAME] = padded_names.reshape(n, _NAME_BYTES)
    blocks[:, _SIZE] = _octal(nbytes, 11)

    # Only the name and the size differ from member to member, so that only their bytes are added up.
    name_sums = blocks[:, _NAME].sum(axis=1, dtype=np.int64)
    size_sums = blocks[:, _SIZE].sum(axis=1, dtype=np.int64)
    checksums = name_sums + size_sums + _COMMON_SUM
    blocks[:, _CHECKSUM] = _octal(checksums, 6)
    return blocks, np.ones(n, np.int64)


def _octal(numbers: Int64s, digits: int) -> Int64s:
    """Return int64 [n, digits]: ASCII octal digits, most significant first."""
    digit = np.arange(digits - 1, -1, -1)
    shifted = numbers[:, None] >> 3 * digit
    return ord("0") + (shifted & 7)


def _split(raw: bytes) -> tuple[bytes, bytes] | None:
    """Return (prefix, name) as ustar stores them, or None if the name does not fit."""
    if len(raw) <= _NAME_BYTES:
        return b"", raw
    first_cut = len(raw) - _NAME_BYTES - 1  # behind it the name still fits
    cut = raw.find(b"/", first_cut)
    if 0 < cut <= _PREFIX_BYTES and cut + 1 < len(raw):
        return raw[:cut], raw[cut + 1 :]
    return None


def _pax_record(keyword: bytes, value: bytes) -> bytes:
    body = b" " + keyword + b"=" + value + b"\n"
    # The record begins with its length, whose own digits count.
    length = len(body)
    while True:
        digits = b"%d" % length
        if len(digits) + len(body) == length:
            return digits + body
        length = len(digits) + len(body)


def _block(
    name: bytes,
    prefix: bytes,
    nbytes: int,
    kind: bytes,
) -> bytes:
    block = bytearray(_EMPTY)
    block[: len(name)] = name
    block[_SIZE] = b"%011o" % nbytes
    block[_TYPE] = kind
    block[_PREFIX_AT : _PREFIX_AT + len(prefix)] = prefix
    # Adler-32 contains a byte sum modulo 65,521, enough for 256 bytes, and is fast.
    first_half = adler32(block[:256], 0) & 0xFFFF
    second_half = adler32(block[256:], 0) & 0xFFFF
    checksum = first_half + second_half
    block[_CHECKSUM] = b"%06o" % checksum
    block[154:156] = b"\0 "
    return bytes(block)


_READ_BYTES = 4 * 2**20
"""Bytes of a shard that are read and hashed at once: whole pages."""


@dataclass(frozen=True, slots=True)
class PageHashes:
    """Hashes of a shard's pages. The last page may be shorter."""

    digests: bytes
    """32 bytes per page."""
    page_bytes: int
    nbytes: int
    """Bytes of the shard."""

    @staticmethod
    def of(
        digests: bytes,
        page_bytes: int,
        nbytes: int,
        name: str,
    ) -> "PageHashes":
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
        """Return the pages whose digest differs from the given one."""
        pages = []
        for page, digest in enumerate(digests):
            start = page * DIGEST_BYTES
            if self.digests[start : start + DIGEST_BYTES] != digest:
                pages.append(page)
        return pages

    def is_page(self, page: int, data: bytes | memoryview) -> bool:
        start = page * DIGEST_BYTES
        return hashlib.sha256(data).digest() == self.digests[start : start + DIGEST_BYTES]


def hash_pages(path: str) -> bytes:
    block = memoryview(bytearray(_READ_BYTES))
    digests: list[bytes] = []
    with open(path, "rb", buffering=0) as file:
        while nbytes := _fill(file, block):
            for start in range(0, nbytes, PAGE_BYTES):
                end = min(start + PAGE_BYTES, nbytes)
                page = block[start:end]
                digests.append(hashlib.sha256(page).digest())
    return b"".join(digests)


def _fill(file: FileIO, block: memoryview) -> int:
    """Read until the block is full or the file ends; return the number of bytes."""
    end = 0
    while end < len(block):
        nbytes = file.readinto(block[end:])
        if not nbytes:
            break
        end += nbytes
    return end
