"""Write a part in one pass over the state's copy, without the part's bytes in memory.

Pieces go into a block that stays in the processor's cache, where they are hashed, and from which a write bypasses the
page cache. A part in memory took four passes: to fill it, for its SHA-256, for its checksums, and into the page cache.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from loader.dataset.shards.shard import allocate_aligned
from loader.native import crc32c

from ..marker import StoredObject
from ..parts import StoredPiece, TensorPiece, checksums, header, place_pieces

WRITE_BYTES = 4 * 2**20
"""Bytes of a write. Direct writes of 1 MiB took half as much processor time again."""


class WrittenPart(NamedTuple):
    """A part in a file, and the same bytes as views of the state's copy."""

    stored: StoredObject
    placed: Sequence[StoredPiece]
    """Locations of its pieces."""
    checksum: int
    """CRC-32C of its bytes."""
    views: Sequence[memoryview]
    """Its bytes, in order."""


def write_part(
    name: str,
    pieces: Sequence[TensorPiece],
    contents: Sequence[memoryview],
    write: Callable[[memoryview], object],
) -> WrittenPart:
    """Write a part, block by block. write: its memory is used again after each call."""
    head = memoryview(header(pieces))
    views = [head, *contents]
    nbytes = sum(len(view) for view in views)
    blocks = _PartBlocks(write, min(nbytes, WRITE_BYTES))
    blocks.add(head)
    sums = []
    for content in contents:
        piece_sums = checksums(content)
        sums.append(piece_sums)
        blocks.add(content)
    blocks.flush()
    stored = StoredObject(
        name=name,
        nbytes=nbytes,
        sha256=blocks.sha256.hexdigest(),
    )
    placed = place_pieces(
        stored,
        len(head),
        pieces,
        sums,
    )
    return WrittenPart(
        stored,
        placed,
        blocks.checksum,
        views,
    )


class _PartBlocks:
    """Hashes bytes, and writes them in blocks that begin at a page, as direct writes need."""

    def __init__(self, write: Callable[[memoryview], object], nbytes: int) -> None:
        self._write = write
        self._block = np.frombuffer(allocate_aligned(nbytes), np.uint8)
        self._filled = 0  # bytes at the block's beginning that are not written yet
        self.sha256 = hashlib.sha256()
        self.checksum = 0
        """CRC-32C of what was written."""

    def add(self, data: memoryview) -> None:
        """Add bytes, and write each block that they fill."""
        start = 0
        while start < len(data):
            room = len(self._block) - self._filled
            piece = data[start : start + room]
            source = np.frombuffer(piece, np.uint8)
            end = self._filled + len(source)
            # numpy copies without the interpreter's lock; a memoryview holds it.
            self._block[self._filled : end] = source
            self._filled = end
            start += len(source)
            if self._filled == len(self._block):
                self.flush()

    def flush(self) -> None:
        """Write the block as far as it is filled: after the last bytes, or once it is full."""
        if not self._filled:
            return
        data = self._block[: self._filled].data
        # Hashed block by block, while the block is in the processor's cache.
        self.sha256.update(data)
        self.checksum = crc32c(data, self.checksum)
        self._write(data)
        self._filled = 0
