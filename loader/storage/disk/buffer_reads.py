"""Plan reads of one file: neighbouring spans or buffers share a read."""

from collections.abc import Sequence
from typing import NamedTuple

from ..store import Buffer, Piece

_MAX_GAP_BYTES = 4096
"""Largest gap, in bytes, within a read: reading it costs less than another call."""
_MAX_BUFFERS = 512
"""Most buffers of one read; the kernel allows 1,024."""
_GAP = bytearray(_MAX_GAP_BYTES)  # receives the bytes between pieces: every thread writes here, none reads


class BufferedRange(NamedTuple):
    """A byte range of a file, and the buffers that it fills."""

    offset: int
    """First byte."""
    nbytes: int
    """Number of bytes."""
    buffers: list[Buffer]
    """Buffers in byte order, `nbytes` in total."""


def runs_of(pieces: Sequence[Piece]) -> list[BufferedRange]:
    """Return the pieces merged into runs if each starts at most `_MAX_GAP_BYTES` after the one before."""
    runs: list[BufferedRange] = []
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
                runs.append(BufferedRange(start, end - start, buffers))
            start, buffers = offset, list(filled)
        end = offset + nbytes
    if buffers:
        runs.append(BufferedRange(start, end - start, buffers))
    return runs


Neighbours = tuple[int, int, list[int]]
"""(offset, nbytes, numbers of the spans in it, ascending by offset)."""


def neighbours(spans: Sequence[tuple[int, int]]) -> list[Neighbours]:
    """Return (offset, nbytes) spans in groups; each span starts at most `_MAX_GAP_BYTES` after the one before."""
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
    """Return the bytes of each span, cut from its run."""
    out = [b""] * len(spans)
    for (start, _, numbers), body in zip(runs, data, strict=True):
        if len(numbers) == 1:
            out[numbers[0]] = body
            continue
        for i in numbers:
            offset, nbytes = spans[i]
            out[i] = body[offset - start : offset - start + nbytes]
    return out
