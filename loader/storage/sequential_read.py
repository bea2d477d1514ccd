"""Sequential reads: one of many objects by one connection, without read-ahead.

Read-ahead hides latency, but its bytes have left the processor's cache when they are hashed (0.4 s of processor per
GiB). When many objects are read at once, the other reads hide it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, cast
from weakref import WeakSet

from .store import Store

MANY = 4  # more objects than that at once, in this process
BODY_BYTES = 64 * 2**20  # one answer; between two of them nothing comes
LOOK_BYTES = 2**19  # what is read of it at once: it stays in the cache of one processor


class Answer(Protocol):
    """An object store's answer to a read, which is read once."""

    etag: str
    """Change token of the object."""
    size: int
    """Size of the object in bytes."""

    def all(self) -> bytes:
        """Return the body. Raises: as obstore; Broken."""

    def into(self, view: memoryview) -> Iterator[int]:
        """Fill `view` with the next bytes, and yield each number that came. Either may end first."""


class RangeSeries:
    """Reads of one object that follow each other, up to `stop`. Not thread-safe.

    One answer may serve several reads. If the server closes a slow reader's connection, the next read requests the
    rest.
    """

    def __init__(self, stop: int) -> None:
        self.stop, self.etag = stop, ""  # of the object, once there was an answer
        self._answer: Answer | None = None
        self._at = self._end = 0

    @property
    def is_under_way(self) -> bool:
        """True while an answer goes on."""
        return self._answer is not None

    def begin(self, answer: Answer, at: int, etag: str) -> None:
        """Begin with an answer whose body starts at the object's byte `at`."""
        self._answer, self._at, self.etag = answer, at, etag
        self._end = at + (getattr(answer, "remaining", 0))

    def into(self, at: int, view: memoryview) -> Iterator[int]:
        """Fill `view` from `at` on, if an answer continues there; yield each number of bytes."""
        answer, self._answer = self._answer, None
        if answer is None or self._at != at:
            return
        for count in answer.into(view):
            at += count
            yield count
        # By what it had to begin with: from the end of its body on others may ask its connection.
        if at < self._end:
            self._answer, self._at = answer, at


class ReadsSeries(Protocol):
    """A store that reads a series of ranges by one answer."""

    def fill(self, key: str, offset: int, view: memoryview, etag: str | None, series: RangeSeries) -> str:
        """Fill `view` with bytes from `offset`, and return the object's etag."""


class SequentialRead:
    """One reader of one object, which counts as one of many until it is closed, or gone. Not thread-safe."""

    def __init__(self, store: Store, key: str, nbytes: int, *, whole: bool = False) -> None:
        """nbytes: of the object; whole: read it by one answer, and no other way."""
        self._store, self._key, self._nbytes, self._whole = store, key, nbytes, whole
        self._series = RangeSeries(0)
        _readers.add(self)

    def next_bytes(self, at: int) -> int:
        """Return the bytes from `at` for `fill` to read; 0: read another way."""
        if not self._series.is_under_way and not getattr(self._store, "follows", False):
            return 0
        if at >= self._series.stop:
            if not self._whole and len(_readers) <= MANY:
                return 0
            most = self._nbytes if self._whole else at + BODY_BYTES
            self._series = RangeSeries(min(most, self._nbytes))
        return min(LOOK_BYTES, self._series.stop - at)

    @property
    def is_under_way(self) -> bool:
        """True if the next read costs no request."""
        return self._series.is_under_way

    def fill(self, at: int, view: memoryview, etag: str | None) -> str:
        """Read bytes to fill `view`, and return the object's etag."""
        return cast(ReadsSeries, self._store).fill(self._key, at, view, etag, self._series)

    def close(self) -> None:
        """Drop the current answer."""
        _readers.discard(self)
        self._series = RangeSeries(0)


_readers: WeakSet[SequentialRead] = WeakSet()
