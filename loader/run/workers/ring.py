"""The memory that batches come in. A segment is given out again when nobody holds an array over it any more."""

import weakref
from collections import deque

import numpy as np

from .batch_memory import Bytes, bytes_of
from .shared_memory import Segment

MAX_SEGMENTS = 128
"""Segments at most that batches are handed over in, or four per worker if those are more: each takes two descriptors
and a mapping of the process. A user who keeps more batches gets copies."""

_mapped: "weakref.WeakValueDictionary[int, Segment]" = (
    weakref.WeakValueDictionary()
)  # by address, of all rings


def segment_at(address: int) -> Segment | None:
    """Return the segment of batches that lies at an address of this process; None where other memory does."""
    for ref in _mapped.valuerefs():  # a list: another thread may add one
        segment = ref()
        if segment is not None and 0 <= address - segment.address < segment.nbytes:
            return segment
    return None


class Ring:
    """Not thread-safe, but for what arrays do when they go, which may be in any thread at any moment."""

    def __init__(self, bound_bytes: int, workers: int) -> None:
        """Set the bounds.

        bound_bytes: of segments that are kept though nobody uses them, one per worker and two whatever they take.
        """
        self._bound, self._spare, self._most = bound_bytes, workers + 2, max(MAX_SEGMENTS, 4 * workers)
        self._segments: dict[int, Segment] = {}
        self._free: deque[Segment] = deque()
        self._next = 0

    @property
    def nbytes(self) -> int:
        """The bytes of all segments, free ones and those that batches lie in."""
        return sum(segment.nbytes for segment in self._segments.values())

    def __len__(self) -> int:
        return len(self._segments)

    def take(self) -> Segment | None:
        """Return the segment that was used last of those that are free."""
        try:
            return self._free.pop()
        except IndexError:
            return None

    def add(self, fd: int, nbytes: int) -> Segment:
        """Return a segment that a worker made. Takes the descriptor over."""
        segment = Segment(self._next, fd, nbytes)
        self._segments[segment.number] = segment
        _mapped[segment.address] = segment
        self._next += 1
        return segment

    def lend(self, segment: Segment, used_bytes: int) -> Bytes:
        """Return its memory, for a batch: free again when the last array over it is gone."""
        if len(self._segments) > self._most:
            memory = np.array(bytes_of(segment)[:used_bytes])
            self._free.append(segment)
            return memory
        memory = bytes_of(segment)
        # A finalizer may run in the middle of anything: it does no more than a deque does in one go.
        weakref.finalize(memory, self._free.append, segment).atexit = False
        return memory

    def give_back(self, segment: Segment) -> None:
        """Return the segment of a batch that was not made."""
        self._free.append(segment)

    def drop(self, segment: Segment) -> None:
        """Use a segment no more; arrays over it stay."""
        del self._segments[segment.number]
        segment.close()

    def trim(self) -> list[Segment]:
        """Return the free segments beyond the bound, to be dropped; those first that nobody has used for longest."""
        beyond, nbytes = [], self.nbytes
        while len(self._free) > self._spare and nbytes > self._bound:
            beyond.append(self._free.popleft())
            nbytes -= beyond[-1].nbytes
        return beyond

    def close(self) -> None:
        """Drop all segments. Batches that the user holds stay what they are."""
        for segment in list(self._segments.values()):
            self.drop(segment)
        self._free.clear()
