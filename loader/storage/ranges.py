"""Plan the requests for a set of byte ranges, for every backend.

Reading a little too much is cheaper than another round trip, so close spans share a read, up to a limit.
"""

from bisect import bisect_right
from collections.abc import Sequence

from ..errors import InvalidStore
from .store import ByteRange


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
    """Return the bytes of each span, in order, cut from the reads of `plan_reads`. A whole read is not copied.

    data: bytes returned by each read.
    """
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
