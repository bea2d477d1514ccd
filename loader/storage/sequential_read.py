"""Read an object sequentially over one connection without read-ahead, when many objects are read at once.

Read-ahead hides latency, but its bytes have left the processor's cache before they are hashed (0.4 s of processor per
GiB). When many objects are read at once, the other reads hide the latency.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, cast
from weakref import WeakSet

from .store import Store

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
        self.stop, self.etag = stop, ""  # etag of the object, after the first response
        self._answer: Answer | None = None
        self._at = self._end = 0

    @property
    def is_under_way(self) -> bool:
        """True while a response has unread bytes."""
        return self._answer is not None

    def begin(self, answer: Answer, at: int, etag: str) -> None:
        """Continue with a response whose body starts at the object's byte `at`."""
        self._answer, self._at, self.etag = answer, at, etag
        self._end = at + (getattr(answer, "remaining", 0))

    def into(self, at: int, view: memoryview) -> Iterator[int]:
        """Fill `view` from `at` on, if a response continues there; yield the size of each read."""
        answer, self._answer = self._answer, None
        if answer is None or self._at != at:
            return
        for count in answer.into(view):
            at += count
            yield count
        # Compare with the state before reading: once the body ends, other threads may use the connection.
        if at < self._end:
            self._answer, self._at = answer, at


class ReadsSeries(Protocol):
    """A store that serves a series of ranges from one response."""

    def fill(self, key: str, offset: int, view: memoryview, etag: str | None, series: RangeSeries) -> str:
        """Fill `view` with bytes from `offset`, and return the object's etag."""


class SequentialRead:
    """One reader of one object, which counts towards `MANY` until closed or collected. Not thread-safe."""

    def __init__(self, store: Store, key: str, nbytes: int) -> None:
        """nbytes: size of the object."""
        self._store, self._key, self._nbytes = store, key, nbytes
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
        """True if the next read costs no request."""
        return self._series.is_under_way

    def fill(self, at: int, view: memoryview, etag: str | None) -> str:
        """Read bytes to fill `view`, and return the object's etag."""
        return cast(ReadsSeries, self._store).fill(self._key, at, view, etag, self._series)

    def close(self) -> None:
        """Drop the current response."""
        _readers.discard(self)
        self._series = RangeSeries(0)


_readers: WeakSet[SequentialRead] = WeakSet()
