"""Plan the reads for a set of byte ranges; read an object from front to back through bounded ranges.

A native response stream breaks if it is read slowly, because its timeout covers the whole body. Bounded ranges can be
retried, and two ranges are read ahead.

If many objects are read at once, each is read over one connection instead (`SequentialRead`). Bytes that were read
ahead leave the processor's cache before they are hashed (0.8 s of processor per GiB).
"""

import io
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from typing import BinaryIO, NamedTuple, Protocol, cast
from weakref import WeakSet

from ..errors import InvalidStore
from .store import Buffer, ByteRange, ObjectInfo, Piece, Store, as_disk
from .threads import DaemonPool, check_fork, fork_token


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
        start = max(offset, end)  # bytes before `end` are in the reads above
        end = stop
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
        if high - low == len(body):
            pieces.append(body)
        else:
            pieces.append(memoryview(body)[low:high])
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


def merge_pieces(pieces: Sequence[Piece]) -> list[BufferedRange]:
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
            start = offset
            buffers = list(filled)
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
            first = offset
            numbers = [i]
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


MANY = 4  # read-ahead stops above this many objects at once, in this process
BODY_BYTES = 64 * 2**20  # size of one response; no data arrives between two responses
LOOK_BYTES = 2**19  # bytes read at once: they stay in one processor's cache


class Answer(Protocol):
    """An object store's response to a read; its body can be read once."""

    etag: str
    """Change token of the object."""
    size: int
    """Size of the object in bytes."""

    def all(self) -> bytes:
        """Return the body. Raises: as obstore; Broken."""

    def into(self, view: memoryview) -> Iterator[int]:
        """Fill `view` with the next bytes, and yield the size of each read. Body or view may end first."""


class RangeSeries:
    """Consecutive reads of one object, up to `stop`. Not thread-safe.

    One response may serve several reads. If the server closes a slow reader's connection, the next read requests the
    rest.
    """

    def __init__(self, stop: int) -> None:
        self.stop = stop
        self.etag = ""
        """Etag of the object, after the first response."""
        self._answer: Answer | None = None
        self._at = 0  # [_at, _end): bytes of the object that the response still has
        self._end = 0

    @property
    def is_under_way(self) -> bool:
        return self._answer is not None

    def begin(self, answer: Answer, at: int, etag: str) -> None:
        self._answer = answer
        self._at = at
        self.etag = etag
        self._end = at + getattr(answer, "remaining", 0)  # obstore's responses serve one read

    def into(self, at: int, view: memoryview) -> Iterator[int]:
        """Fill `view` from `at` on, if a response continues there; yield the size of each read."""
        answer = self._answer
        self._answer = None
        if answer is None or self._at != at:
            return
        for count in answer.into(view):
            at += count
            yield count
        # Compare with the state before reading: once the body ends, other threads may use the connection.
        if at < self._end:
            self._answer = answer
            self._at = at


class ReadsSeries(Protocol):
    """A store that serves a series of ranges from one response."""

    def fill(self, key: str, offset: int, view: memoryview, etag: str | None, series: RangeSeries) -> str:
        """Fill `view` with bytes from `offset`, and return the object's etag."""


class SequentialRead:
    """One reader of one object, which counts towards `MANY` until closed or collected. Not thread-safe."""

    def __init__(self, store: Store, key: str, nbytes: int) -> None:
        self._store = store
        self._key = key
        self._nbytes = nbytes
        self._series = RangeSeries(0)
        _readers.add(self)

    def next_bytes(self, at: int) -> int:
        """Return how many bytes `fill` should read from `at`; 0 if the object must be read another way."""
        if not self._series.is_under_way and not getattr(self._store, "follows", False):
            return 0
        if at >= self._series.stop:
            if len(_readers) <= MANY:
                return 0
            self._series = RangeSeries(min(at + BODY_BYTES, self._nbytes))
        return min(LOOK_BYTES, self._series.stop - at)

    @property
    def is_under_way(self) -> bool:
        return self._series.is_under_way

    def fill(self, at: int, view: memoryview, etag: str | None) -> str:
        return cast(ReadsSeries, self._store).fill(self._key, at, view, etag, self._series)

    def close(self) -> None:
        _readers.discard(self)
        self._series = RangeSeries(0)


_readers: WeakSet[SequentialRead] = WeakSet()


FIRST_BYTES = 2**20  # readers of only a header fetch at most this much
# Then each range doubles, up to this size: larger ones cost more in memory than they save in requests.
MAX_BYTES = 4 * 2**20
AHEAD = 2  # ranges being fetched while one is used; a reader holds (AHEAD + 1) * MAX_BYTES, 12 MiB


class Filling(Protocol):
    """A store that reads into the caller's memory, without an extra copy or allocation."""

    def fill(self, key: str, offset: int, view: memoryview, etag: str | None = None) -> str:
        """Fill `view` (bytes) from `offset`, and return the object's etag."""


class PieceReader:
    """Reads one object in pieces of at most MAX_BYTES, front to back, pinned to its first etag. Not thread-safe.

    Memory is reused: a piece is valid until the next call to `next`. Costs one request per MAX_BYTES and at most two
    more.
    """

    def __init__(self, store: Store, key: str, info: ObjectInfo | None = None) -> None:
        """info: the object's recent `ObjectInfo`; None requests it."""
        self._born = fork_token()
        self._store = store
        self._key = key
        if info is None:
            info = store.head(key)
        self.info = info
        self._n_requested = 0  # bytes requested so far
        self._size = FIRST_BYTES  # of the next range
        # Ranges being read, front to back: (offset, bytes).
        self._reads: deque[tuple[int, Future[memoryview]]] = deque()
        self._spare: list[bytearray] = []  # memory of earlier pieces, for later ones
        self._piece_out = memoryview(b"")  # the caller's piece
        self._pool: DaemonPool | None = None
        self.requests = 0  # range requests so far
        self._sequential = SequentialRead(store, key, self.info.nbytes)

    def next(self) -> memoryview:
        """Return the next piece; empty at the end. After an error the next call repeats the read.

        Raises: Changed; Corrupt; ForkedStore; as a read of a range.
        """
        check_fork(self._born, self._store.url)
        if self._piece_out:
            self._spare.append(cast(bytearray, self._piece_out.obj))
        self._piece_out = memoryview(b"")
        if (
            self._n_requested
            and not self._reads
            and (nbytes := self._sequential.next_bytes(self._n_requested))
        ):
            piece = self._read_sequentially(nbytes)
        elif not self._reads and not 0 < self._n_requested < self.info.nbytes - self._size:
            piece = self._read_single()  # the first piece, or the only remaining one
        else:
            piece = self._read_ahead()
        self._piece_out = piece
        return piece

    def close(self) -> None:
        self._sequential.close()
        if self._pool is not None:
            self._pool.dismiss()

    def _read_sequentially(self, nbytes: int) -> memoryview:
        """Return the next piece, from a response that continues over several pieces."""
        piece = self._memory(nbytes)
        self.requests += not self._sequential.is_under_way
        self._sequential.fill(self._n_requested, piece, self.info.etag)
        self._n_requested += nbytes
        return piece

    def _read_single(self) -> memoryview:
        """Return the next piece, by one request in this thread; empty at the end."""
        if self._n_requested == self.info.nbytes:
            return memoryview(b"")
        offset = self._n_requested
        piece = self._fetch(offset, self._memory(self._next_bytes()))
        self._count_request(piece)
        return piece

    def _read_ahead(self) -> memoryview:
        """Return the next piece, while threads read the `AHEAD` ranges after it."""
        if self._pool is None:
            self._pool = DaemonPool(AHEAD + 1, "penstock-stream")
        # Ranges grow: memory of the first ones is too small for later ones.
        self._spare = [one for one in self._spare if len(one) >= self._next_bytes()]
        while len(self._reads) <= AHEAD and self._n_requested < self.info.nbytes:
            memory = self._memory(self._next_bytes())
            offset = self._n_requested
            future = self._pool.submit(copy_context().run, self._fetch, offset, memory)
            self._reads.append((offset, future))
            self._count_request(memory)
        offset, first = self._reads.popleft()
        try:
            return first.result()
        except BaseException:
            for _, future in self._reads:
                future.cancel()
            # The next call reads this piece again. Memory of reads in progress is not reused.
            self._reads.clear()
            self._spare.clear()
            self._n_requested = offset
            raise

    def _next_bytes(self) -> int:
        return min(self._size, self.info.nbytes - self._n_requested)

    def _memory(self, nbytes: int) -> memoryview:
        for number, spare in enumerate(self._spare):
            if len(spare) >= nbytes:
                return memoryview(self._spare.pop(number))[:nbytes]
        return memoryview(bytearray(nbytes))

    def _count_request(self, piece: memoryview) -> None:
        self.requests += 1
        self._n_requested += len(piece)
        self._size = min(self._size * 2, MAX_BYTES)

    def _fetch(self, offset: int, view: memoryview) -> memoryview:
        fill_from(self._store, self._key, offset, view, self.info.etag)
        return view


class SequentialReader(io.RawIOBase):
    def __init__(self, pieces: PieceReader) -> None:
        self._pieces = pieces
        self._piece = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        target = memoryview(cast(bytearray, buffer)).cast("B")
        if not self._piece:
            self._piece = self._pieces.next()
        count = min(len(target), len(self._piece))
        target[:count] = self._piece[:count]
        self._piece = self._piece[count:]
        return count

    def close(self) -> None:
        if not self.closed:
            self._pieces.close()
        super().close()


def open_reader(store: Store, key: str) -> BinaryIO:
    return cast(
        BinaryIO, io.BufferedReader(SequentialReader(PieceReader(store, key)), buffer_size=128 * 2**10)
    )


def fill_from(store: Store, key: str, offset: int, view: memoryview, etag: str | None) -> str:
    if hasattr(type(store), "fill"):
        return cast(Filling, store).fill(key, offset, view, etag)
    if (disk := as_disk(store)) is not None:
        return disk.read_into(key, [(offset, len(view), [view])], etag=etag)
    blob = store.get_range(key, offset, len(view), etag)
    view[:] = blob.data
    return blob.etag
