"""Read an object from front to back through bounded ranges.

A native response stream breaks if it is read slowly, because its timeout covers the whole body. Bounded ranges are
fetched at full speed, and each can be retried. Two ranges are read ahead. If many objects are read at once, each is
read over one connection instead (`sequential_read.py`).
"""

import io
from collections import deque
from concurrent.futures import Future
from contextvars import copy_context
from typing import BinaryIO, Protocol, cast

from .sequential_read import SequentialRead
from .shared import fork
from .shared.threads import DaemonPool
from .store import ObjectInfo, Store, disk_of

FIRST_BYTES = 2**20  # readers of only a header fetch at most this much
MAX_BYTES = (
    4 * 2**20
)  # then each range doubles, up to this size: larger ones cost more in memory than they save in requests
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
        self._born = fork.token()
        self._store, self._key = store, key
        self.info = store.head(key) if info is None else info
        self._asked, self._size = 0, FIRST_BYTES  # bytes requested so far; size of the next range
        self._coming: deque[tuple[int, Future[memoryview]]] = deque()
        self._spare: list[bytearray] = []
        self._piece_out = memoryview(b"")
        self._pool: DaemonPool | None = None
        self.requests = 0  # range requests so far
        self._sequential = SequentialRead(store, key, self.info.nbytes)

    def next(self) -> memoryview:
        """Return the next piece; empty at the end. After an error the next call repeats the read.

        Raises: Changed; Corrupt; ForkedStore; as a read of a range.
        """
        fork.check(self._born, self._store.url)
        if self._piece_out:
            self._spare.append(cast(bytearray, self._piece_out.obj))
        self._piece_out = memoryview(b"")
        if self._asked and not self._coming and (nbytes := self._sequential.next_bytes(self._asked)):
            piece = self._as_it_comes(nbytes)
        elif not self._coming and not 0 < self._asked < self.info.nbytes - self._size:
            piece = self._alone()  # the first piece, or the only remaining one
        else:
            piece = self._of_several()
        self._piece_out = piece
        return piece

    def close(self) -> None:
        """Cancel the reads in progress."""
        self._sequential.close()
        if self._pool is not None:
            self._pool.dismiss()

    def _as_it_comes(self, nbytes: int) -> memoryview:
        piece = self._memory(nbytes)
        self.requests += not self._sequential.is_under_way
        self._sequential.fill(self._asked, piece, self.info.etag)
        self._asked += nbytes
        return piece

    def _alone(self) -> memoryview:
        if self._asked == self.info.nbytes:
            return memoryview(b"")
        offset = self._asked
        piece = self._fetch(offset, self._memory(self._next_bytes()))
        self._took(piece)
        return piece

    def _of_several(self) -> memoryview:
        if self._pool is None:
            self._pool = DaemonPool(AHEAD + 1, "penstock-stream")
        # (the first ranges' memory is too small for later ones)
        self._spare = [one for one in self._spare if len(one) >= self._next_bytes()]
        while len(self._coming) <= AHEAD and self._asked < self.info.nbytes:
            memory, offset = self._memory(self._next_bytes()), self._asked
            future = self._pool.submit(copy_context().run, self._fetch, offset, memory)
            self._coming.append((offset, future))
            self._took(memory)
        offset, first = self._coming.popleft()
        try:
            return first.result()
        except BaseException:
            for _, future in self._coming:
                future.cancel()
            self._coming.clear()
            self._spare.clear()
            self._asked = offset  # memory of reads in progress is not reused
            raise

    def _next_bytes(self) -> int:
        return min(self._size, self.info.nbytes - self._asked)

    def _memory(self, nbytes: int) -> memoryview:
        for number, spare in enumerate(self._spare):
            if len(spare) >= nbytes:
                return memoryview(self._spare.pop(number))[:nbytes]
        return memoryview(bytearray(nbytes))

    def _took(self, piece: memoryview) -> None:
        self.requests += 1
        self._asked += len(piece)
        self._size = min(self._size * 2, MAX_BYTES)

    def _fetch(self, offset: int, view: memoryview) -> memoryview:
        fill_from(self._store, self._key, offset, view, self.info.etag)
        return view


class SequentialReader(io.RawIOBase):
    """A sequential raw reader of one object, pinned to its first etag."""

    def __init__(self, pieces: PieceReader) -> None:
        self._pieces = pieces
        self._piece = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        """Fill `buffer` from the current piece."""
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
    """Return a buffered sequential reader of `key`."""
    return cast(
        BinaryIO, io.BufferedReader(SequentialReader(PieceReader(store, key)), buffer_size=128 * 2**10)
    )


def fill_from(store: Store, key: str, offset: int, view: memoryview, etag: str | None) -> str:
    """Fill `view` with the store's cheapest call, and return the etag."""
    if hasattr(type(store), "fill"):
        return cast(Filling, store).fill(key, offset, view, etag)
    if (disk := disk_of(store)) is not None:
        return disk.read_into(key, [(offset, len(view), [view])], etag=etag)
    blob = store.get_range(key, offset, len(view), etag)
    view[:] = blob.data
    return blob.etag
