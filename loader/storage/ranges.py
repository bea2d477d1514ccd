"""Plan the reads for a set of byte ranges: requests to a store, and reads of one file."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import InvalidStore
from .store import Buffer, ByteRange, Piece


def plan_reads(
    spans: Sequence[ByteRange], max_gap: int = 64 * 2**10, max_span: int = 16 * 2**20
) -> list[ByteRange]:
    """Return disjoint, ascending reads of 1 to `max_span` bytes that cover every span.

    Spans at most `max_gap` bytes apart share a read within `max_span`; a larger span is cut. Raises: InvalidStore for a
    negative span or limit.
    """
    if max_gap < 0 or max_span < 1:
        raise InvalidStore(f"max_gap={max_gap} must be 0 or more and max_span={max_span} 1 or more, in bytes")
    reads: list[ByteRange] = []
    start = end = 0
    for offset, nbytes in sorted(spans):
        if offset < 0 or nbytes < 0:
            raise InvalidStore(f"range [{offset}, +{nbytes}) is negative; offset and nbytes are 0 or more")
        stop = offset + nbytes
        if nbytes == 0 or (end > start and stop <= end):
            continue
        if end > start and offset - end <= max_gap and stop - start <= max_span:
            end = stop
            continue
        _emit(reads, start, end, max_span)
        start, end = max(offset, end), stop
    _emit(reads, start, end, max_span)
    return reads


def slice_reads(spans: Sequence[ByteRange], reads: Sequence[ByteRange], data: Sequence[bytes]) -> list[bytes]:
    """Return the bytes of each span, in order, cut from the reads of `plan_reads`. A whole read is not copied."""
    starts = [read.offset for read in reads]
    return [_cut(span, bisect_right(starts, span.offset) - 1, reads, data) for span in spans]


def _emit(reads: list[ByteRange], start: int, end: int, max_span: int) -> None:
    reads.extend(ByteRange(offset, min(max_span, end - offset)) for offset in range(start, end, max_span))


def _cut(span: ByteRange, first: int, reads: Sequence[ByteRange], data: Sequence[bytes]) -> bytes:
    if span.nbytes == 0:
        return b""
    stop = span.offset + span.nbytes
    pieces: list[bytes | memoryview] = []
    for read, body in zip(reads[first:], data[first:], strict=True):
        if read.offset >= stop:
            break
        low = max(span.offset - read.offset, 0)
        high = min(stop - read.offset, read.nbytes)
        pieces.append(body if high - low == len(body) else memoryview(body)[low:high])
    if len(pieces) == 1 and isinstance(pieces[0], bytes):
        return pieces[0]
    return b"".join(pieces)


_MAX_GAP_BYTES = 4096
"""Largest gap, in bytes, within a read: reading it costs less than another call."""
_MAX_BUFFERS = 512
"""Most buffers of one read; the kernel allows 1,024."""
_GAP = bytearray(_MAX_GAP_BYTES)  # receives the bytes between pieces: every thread writes here, none reads


class BufferedRange(NamedTuple):
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
    out = [b""] * len(spans)
    for (start, _, numbers), body in zip(runs, data, strict=True):
        if len(numbers) == 1:
            out[numbers[0]] = body
            continue
        for i in numbers:
            offset, nbytes = spans[i]
            out[i] = body[offset - start : offset - start + nbytes]
    return out
