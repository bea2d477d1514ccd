"""Write shards and their page hashes. A shard is one POSIX tar with one part's fields of one group.

The same samples give the same bytes. Members are named `<key>.<field>`.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import FileIO
from typing import Protocol

import numpy as np
from google_crc32c import value as _crc32c

from ...errors import Corrupt, FieldTooLarge
from ...native import PagedSha256
from ...native import crc32c as _extended_crc32c
from ..names import member_name
from .bitmap import Int64s
from .tar_headers import (
    BLOCK_BYTES,
    END_BLOCKS,
    Uint8s,
    member_header,
    member_headers,
)

PAGE_BYTES = 64 * 2**10
"""Bytes of a page. Reading a sample costs half a page more at each end; hashes take 0.05 % of a shard."""
DIGEST_BYTES = 32
DEFAULT_SHARD_BYTES = 256 * 2**20
"""Default size of a writer's shard, in bytes."""
MAX_FIELD_BYTES = 4 * 2**30
"""Largest field, in bytes: no decoder takes more at once."""

END_BYTES = 3 * BLOCK_BYTES
"""Most bytes after a shard's last sample: padding and two end blocks."""

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

    def read_into(
        self,
        memory: memoryview,
        at: int,
    ) -> None:
        """Fill `memory` with the bytes from `at` on. Raises: StoreError."""


Payload = bytes | bytearray | memoryview | LargePayload


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """Return the CRC-32C (Castagnoli) of a buffer. The C library refuses memoryviews."""
    if isinstance(data, bytes):
        return int(_crc32c(data))
    octets = np.frombuffer(data, np.uint8)
    return int(_crc32c(octets))


def check_field_bytes(
    key: str,
    field: str,
    nbytes: int,
) -> None:
    """Raise FieldTooLarge for a field that no shard accepts."""
    if nbytes > MAX_FIELD_BYTES:
        raise FieldTooLarge(
            f"field {field!r} of sample {key!r} is {nbytes} bytes; "
            f"at most {MAX_FIELD_BYTES} (4 GiB) are accepted. "
            "Cut the sample into shorter units (clips, segments, episodes)",
            what=field,
            where=f"sample {key!r}",
            given=nbytes,
            accepted=MAX_FIELD_BYTES,
        )


def allocate_aligned(nbytes: int) -> memoryview:
    """Return memory that begins at a page, as writes without a copy into the page cache need it."""
    memory = np.empty(nbytes + PAGE_BYTES, np.uint8)
    address = memory.ctypes.data
    start = -address % PAGE_BYTES
    end = start + nbytes
    memory = memory[start:end]
    return memory.data


class ShardWriter:
    """Writes members in blocks, records payload offsets, and hashes the shard and its pages."""

    def __init__(self, write: Callable[[memoryview], object]) -> None:
        """write: called with each block, whose buffer is reused afterwards."""
        self._out = write
        memory = bytearray(WRITE_BYTES)
        self._block = memoryview(memory)
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
        header = member_header(name, nbytes)
        self._write(header)

        offset = self.nbytes
        if nbytes >= LARGE_BYTES:
            crc = self._write_pieces(data, nbytes)
        else:
            data = load_payload(data)
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
        headers, n_blocks = member_headers(names, nbytes)
        header_nbytes = n_blocks * BLOCK_BYTES
        padding = -nbytes % BLOCK_BYTES  # [n]
        payload_nbytes = nbytes + padding  # [n]: whole blocks
        ends = np.cumsum(header_nbytes + payload_nbytes)
        payload_at = ends - payload_nbytes  # [n]: offset of each payload in the new bytes

        room_nbytes = int(ends[-1])
        room = self._room(room_nbytes)
        octets = np.frombuffer(room, np.uint8)
        blocks = octets.reshape(-1, BLOCK_BYTES)

        # The rest of a payload's last block is its padding: the block is cleared before `fill` writes into it.
        payload_end = payload_at + nbytes
        last_block = payload_end // BLOCK_BYTES
        padded_blocks = last_block[padding > 0]
        blocks[padded_blocks] = 0

        # A member's headers end where its payload begins.
        header_ends = np.cumsum(n_blocks)  # [n]: rows of `headers`
        payload_block = payload_at // BLOCK_BYTES
        shift = payload_block - header_ends  # [n]: from a row of `headers` to its row of `blocks`
        header_rows = np.arange(header_ends[-1])
        row_shift = np.repeat(shift, n_blocks)
        block_rows = header_rows + row_shift
        blocks[block_rows] = headers

        crcs = fill(octets, payload_at)
        offsets = payload_at + self.nbytes
        self._filled += room_nbytes
        self.nbytes += room_nbytes
        columns = [
            offsets,
            nbytes,
            crcs,
        ]
        return np.stack(columns, axis=1)

    def finish(self) -> str:
        """Write the end of the tar; return the shard's SHA-256."""
        self._write(END_BLOCKS)
        self._flush(self._filled)
        digest = self._sha256.digest()
        return digest.hex()

    @property
    def pages(self) -> bytes:
        """SHA-256 of each page, one after another. Complete after `finish`."""
        return b"".join(self._pages)

    def _write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes to the block, and write it out whenever it is full."""
        rest = memoryview(data)
        self.nbytes += len(rest)

        block_nbytes = len(self._block)
        room = block_nbytes - self._filled
        while len(rest) > room:
            self._block[self._filled :] = rest[:room]
            self._filled = block_nbytes
            self._flush(block_nbytes)
            rest = rest[room:]
            room = block_nbytes - self._filled

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
                octets = memoryview(data).cast("B")
                piece[:] = octets[start:end]
            else:
                data.read_into(piece, start)
            crc = _extended_crc32c(piece, crc)
            self._filled += len(piece)
            start = end

        self.nbytes += nbytes
        return crc

    def _grow(self, nbytes: int) -> None:
        """Replace the block by one of at least `nbytes`, with the same unwritten bytes."""
        n_writes = -(-nbytes // WRITE_BYTES)
        larger_nbytes = n_writes * WRITE_BYTES
        larger = allocate_aligned(larger_nbytes)
        unwritten = self._block[: self._filled]
        larger[: self._filled] = unwritten
        self._block = larger

    def _room(self, nbytes: int) -> memoryview:
        """Return memory for the shard's next bytes, after writing or growing the block where they do not fit."""
        end = self._filled + nbytes
        if end > len(self._block):
            # Only whole pages leave the block: the hash of a page ends where a flush ends.
            part_of_page = self._filled % PAGE_BYTES
            self._flush(self._filled - part_of_page)
            end = self._filled + nbytes

        if end > len(self._block):
            self._grow(end)
        return self._block[self._filled : end]

    def _flush(self, end: int) -> None:
        """Write and hash the first `end` bytes of the block, and move the others to its beginning."""
        block = self._block[:end]
        data = block.toreadonly()
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


def load_payload(data: Payload) -> bytes | bytearray | memoryview:
    """Return a payload in memory. Raises: StoreError."""
    if isinstance(data, bytes | bytearray | memoryview):
        return data
    memory = bytearray(data.nbytes)
    view = memoryview(memory)
    data.read_into(view, 0)
    return memory


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
                f"{name} has {len(digests)} bytes of hashes of pages of {page_bytes} bytes, "
                f"for a shard of {nbytes} bytes; restore it from a mirror",
                what="hashes of pages",
                where=name,
                given=len(digests),
                accepted=nbytes,
            )
        return PageHashes(
            digests=digests,
            page_bytes=page_bytes,
            nbytes=nbytes,
        )

    @property
    def n_pages(self) -> int:
        return len(self.digests) // DIGEST_BYTES

    def others(self, digests: Sequence[bytes]) -> list[int]:
        """Return the pages whose digest differs from the given one."""
        pages = []
        for page, digest in enumerate(digests):
            if self._digest(page) != digest:
                pages.append(page)
        return pages

    def is_page(
        self,
        page: int,
        data: bytes | memoryview,
    ) -> bool:
        """Return whether the data has the SHA-256 of this page."""
        sha256 = hashlib.sha256(data)
        return sha256.digest() == self._digest(page)

    def _digest(self, page: int) -> bytes:
        start = page * DIGEST_BYTES
        end = start + DIGEST_BYTES
        return self.digests[start:end]


def hash_pages(path: str) -> bytes:
    """Return the SHA-256 of each page of a local file, one after another."""
    memory = bytearray(_READ_BYTES)
    block = memoryview(memory)
    digests: list[bytes] = []
    with open(path, "rb", buffering=0) as file:
        while nbytes := _fill(file, block):
            for start in range(0, nbytes, PAGE_BYTES):
                end = min(start + PAGE_BYTES, nbytes)
                page = block[start:end]
                sha256 = hashlib.sha256(page)
                digests.append(sha256.digest())
    return b"".join(digests)


def _fill(file: FileIO, block: memoryview) -> int:
    """Read until the block is full or the file ends; return the number of bytes."""
    end = 0
    while end < len(block):
        room = block[end:]
        nbytes = file.readinto(room)
        if not nbytes:
            break
        end += nbytes
    return end
