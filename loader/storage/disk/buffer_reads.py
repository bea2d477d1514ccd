"""Reads that only a folder of this machine has: into buffers, and by mapping files. Neighbouring spans of a file share
a read."""

import os
from collections.abc import Sequence
from typing import Any, BinaryIO, NamedTuple, Protocol, cast

from ..store import RangeReader

_MAX_GAP_BYTES = 4096
"""Reading so much more costs less than another call."""
_MAX_BUFFERS = 512
"""Of one read; the kernel takes 1,024."""
_GAP = bytearray(_MAX_GAP_BYTES)  # what lies between pieces: every thread writes here, nobody reads

Buffer = Any
"""What `os.preadv` writes into: a memoryview, a bytearray, a numpy array; C-contiguous and writable."""
Piece = tuple[int, int, Sequence[Buffer]]
"""(offset, nbytes, buffers of together so many bytes, to be filled from there on)."""


class Run(NamedTuple):
    """Bytes [offset, offset + nbytes) of a file, and where they go."""

    offset: int
    nbytes: int
    buffers: list[Buffer]


def runs_of(pieces: Sequence[Piece]) -> list[Run]:
    """Pieces put together where each begins at most `_MAX_GAP_BYTES` behind the one before."""
    runs: list[Run] = []
    start = end = 0
    buffers: list[Buffer] = []
    for offset, nbytes, filled in pieces:
        gap = offset - end
        if buffers and 0 <= gap <= _MAX_GAP_BYTES and len(buffers) + len(filled) < _MAX_BUFFERS:
            if gap:
                buffers.append(memoryview(_GAP)[:gap])
            buffers.extend(filled)
        else:
            if buffers:
                runs.append(Run(start, end - start, buffers))
            start, buffers = offset, list(filled)
        end = offset + nbytes
    if buffers:
        runs.append(Run(start, end - start, buffers))
    return runs


Neighbours = tuple[int, int, list[int]]
"""(offset, nbytes, numbers of the spans in it, ascending by offset)."""


def neighbours(spans: Sequence[tuple[int, int]]) -> list[Neighbours]:
    """(offset, nbytes) spans put together where each begins at most `_MAX_GAP_BYTES` behind the one before."""
    runs: list[Neighbours] = []
    first = end = 0
    numbers: list[int] = []
    for i in sorted(range(len(spans)), key=spans.__getitem__):
        offset, nbytes = spans[i]
        if numbers and 0 <= offset - end <= _MAX_GAP_BYTES:
            numbers.append(i)
        else:
            if numbers:
                runs.append((first, end - first, numbers))
            first, numbers = offset, [i]
        end = offset + nbytes
    if numbers:
        runs.append((first, end - first, numbers))
    return runs


def cut(spans: Sequence[tuple[int, int]], runs: Sequence[Neighbours], data: Sequence[bytes]) -> list[bytes]:
    """The bytes of each span, from those of its run."""
    out = [b""] * len(spans)
    for (start, _, numbers), body in zip(runs, data, strict=True):
        if len(numbers) == 1:
            out[numbers[0]] = body
            continue
        for i in numbers:
            offset, nbytes = spans[i]
            out[i] = body[offset - start : offset - start + nbytes]
    return out


class Disk(RangeReader, Protocol):
    """A folder, or several stores of which the nearest is one. Errors as those of every store."""

    @property
    def disk(self) -> "Disk | None":
        """Itself, or None where the nearest store is no folder of this machine."""

    def read_each(
        self, key: str, spans: Sequence[tuple[int, int]], *, etag: str | None = None
    ) -> tuple[list[bytes], str]:
        """The bytes of (offset, nbytes) spans in the order given, and the object's etag."""

    def read_into(self, key: str, pieces: Sequence[Piece], *, etag: str | None = None) -> str:
        """Fill the buffers of pieces from one object, and give its etag; sorted by offset is best."""

    def state(self, key: str, etag: str | None = None) -> tuple[str, os.stat_result] | None:
        """The etag and the status of a file; None where the object has to be read elsewhere."""

    def open_same(self, key: str, etag: str) -> BinaryIO | None:
        """The file that had this etag; None where it was replaced."""


def disk_of(store: RangeReader) -> Disk | None:
    """The store, if it can do what a folder of this machine can."""
    return cast(Disk, store).disk if hasattr(type(store), "disk") else None
