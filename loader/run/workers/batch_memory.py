"""One batch in one segment: the worker writes it, the trainer takes it out without copying an array.

    [array] [array] ...  [offset and nbytes of each][pickle]

Arrays of a batch that were allocated by `Slot.allocate` lie there already. Others are copied once; those below
SMALL_BYTES, strings and all else are in the pickle. A batch that does not fit goes to a segment of its own, which takes
the old one's place.
"""

import ctypes
import io
import mmap
import os
import pickle
import sys
import weakref
from collections import deque
from math import prod
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from ...errors import Unpicklable


class Segment:
    """`nbytes` of memory behind a file descriptor, mapped here. Arrays over it keep the mapping after `close`."""

    def __init__(self, number: int, fd: int, nbytes: int) -> None:
        """Map the memory, and take the descriptor over. number: its name for trainer and workers. Raises: OSError."""
        self.number, self.fd, self.nbytes = number, fd, nbytes
        self._close_fd = weakref.finalize(self, os.close, fd)
        self._close_fd.atexit = False
        self.memory = mmap.mmap(fd, nbytes)

    @property
    def address(self) -> int:
        """Address of the first byte in this process."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    @property
    def is_dropped(self) -> bool:
        """True after `close`: no batch will come in this memory any more."""
        return not self._close_fd.alive

    def close(self) -> None:
        """Close the descriptor: it will not be sent to anybody any more."""
        self._close_fd()


def new_segment(nbytes: int) -> Segment:
    """Return a segment of at least so many bytes, without a number yet. Raises: OSError."""
    whole = max(1, -(-nbytes // mmap.PAGESIZE)) * mmap.PAGESIZE
    fd = os.memfd_create("penstock-batch", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, whole)
    except OSError:
        os.close(fd)
        raise
    return Segment(-1, fd, whole)


ALIGN = 64
"""Bytes: a line of cache, and what JAX asks of memory that it does not copy."""
SMALL_BYTES = 16 * 2**10
"""Arrays below are cheaper to copy than to look after; a batch of nothing else leaves its segment at once."""

_SPAN_BYTES = 16

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class OutcomePlace(NamedTuple):
    """The place of an outcome in its segment."""

    at: int
    """Offset of the spans."""
    nbytes: int
    """Bytes of the pickle."""
    arrays: int
    """Number of arrays beside the pickle."""

    @property
    def end(self) -> int:
        """The offset from which the segment is unused."""
        return self.at + _SPAN_BYTES * self.arrays + self.nbytes


class Slot:
    """The memory of the batch that is being made. Not thread-safe: a worker makes one at a time."""

    def __init__(self) -> None:
        self._segment: Segment | None = None
        self._memory = np.empty(0, np.uint8)
        # Memory that stands in for a part of the segment, and where that part begins.
        self._outside: list[tuple[Bytes, int]] = []
        self._top = self._most = 0

    def begin(self, segment: Segment | None) -> None:
        """Begin the next batch in this segment; None: nothing is free."""
        self._segment, self._top, self._outside = segment, 0, []
        self._memory = bytes_of(segment) if segment else np.empty(0, np.uint8)

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Return an array in the segment, or, where it is full, in memory of this process until `write`."""
        nbytes = prod(shape) * dtype.itemsize
        at = self._reserve(nbytes)
        if self._top <= len(self._memory):
            return np.ndarray(shape, dtype, self._memory.data, at)
        memory = np.empty(nbytes, np.uint8)
        self._outside.append((memory, at))
        return np.ndarray(shape, dtype, memory.data)

    def write(self, outcome: object) -> tuple[Segment, OutcomePlace]:
        """Write an outcome; return its place. A segment that is not the one of `begin` is new, and takes its place.

        Raises: errors of pickling; OSError without memory.
        """
        stream, buffers = _dumped(outcome)
        places = [self._place(raw) for raw in buffers]
        at = self._reserve(_SPAN_BYTES * len(buffers) + len(stream))
        self._most = max(self._most, self._top)
        if self._segment is None or self._top > len(self._memory):
            self._segment = new_segment(self._most)
            self._memory = bytes_of(self._segment)
        start = self._memory.ctypes.data
        for place, raw in zip(places, buffers, strict=True):
            if raw.ctypes.data != start + place:
                self._memory[place : place + len(raw)] = raw
        spans = np.array([(place, len(raw)) for place, raw in zip(places, buffers, strict=True)], np.int64)
        pickled = at + spans.nbytes
        self._memory[at:pickled] = spans.reshape(-1).view(np.uint8)
        self._memory[pickled : pickled + len(stream)] = np.frombuffer(stream, np.uint8)
        return self._segment, OutcomePlace(at=at, nbytes=len(stream), arrays=len(buffers))

    def _place(self, raw: Bytes) -> int:
        """Return the offset in the segment where an array lies or will lie."""
        for memory, at in [(self._memory, 0), *self._outside]:
            offset = raw.ctypes.data - memory.ctypes.data
            if offset >= 0 and offset + len(raw) <= len(memory):
                return at + offset
        return self._reserve(len(raw))

    def _reserve(self, nbytes: int) -> int:
        """Return the offset where so many bytes begin; beyond the segment's end where it is full."""
        at = -(-self._top // ALIGN) * ALIGN
        self._top = at + nbytes
        return at


def read(memory: Bytes, written: OutcomePlace) -> Any:
    """Return the outcome that was written; arrays lie in `memory` and keep it alive. Raises: errors of unpickling."""
    at = written.at + _SPAN_BYTES * written.arrays
    spans = memory[written.at : at].view(np.int64).reshape(-1, 2).tolist()
    buffers = [memory[place : place + nbytes] for place, nbytes in spans]
    # A worker of ours wrote it, into memory that nobody else has.
    return pickle.loads(memory[at : at + written.nbytes].data, buffers=buffers)  # noqa: S301


def bytes_of(segment: Segment) -> Bytes:
    """Return the segment's memory; while this array or one over it lives, somebody uses it."""
    return np.frombuffer(segment.memory, np.uint8)


class _Pickler(pickle.Pickler):
    """Tensors, which only a transform that imported torch can have made, go as the arrays that they lie over.

    Classes of the trainer's script came by value, and go back by name: the trainer has them already.
    """

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type | FunctionType) and value.__module__ == "__main__":
            return _of_script, (value.__qualname__,)
        tensor = getattr(sys.modules.get("torch"), "Tensor", None)  # None too while it is being imported
        if tensor is None or type(value) is not tensor or value.requires_grad:
            return NotImplemented
        try:
            return _tensor, (value.numpy(),)
        except (TypeError, RuntimeError):  # not on the CPU, or no dtype of numpy's: as torch pickles it
            return NotImplemented


def _tensor(array: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(array)


def _of_script(name: str) -> Any:
    """Return the class or function that the script has by this name. Raises: Unpicklable."""
    target: Any = sys.modules["__main__"]
    try:
        for part in name.split("."):
            target = getattr(target, part)
    except AttributeError:
        raise Unpicklable(
            f"a worker process made an instance of {name}, which is not at the top level of the script; put the class "
            "there or into a module, or use executor='threads'"
        ) from None
    return target


def can_be_sent(value: object) -> bool:
    """Return whether a value can be pickled."""
    try:
        _dumped(value)
    except Exception:  # noqa: BLE001 - a class of the user's may raise anything
        return False
    return True


def dumps(value: object) -> bytes:
    """Return a pickle for the trainer, arrays included. Raises: errors of pickling."""
    stream = io.BytesIO()
    _Pickler(stream, 5).dump(value)
    return stream.getvalue()


def _dumped(value: object) -> tuple[bytes, list[Bytes]]:
    """Return (pickle, memory of the arrays that are not in it)."""
    aside: list[Bytes] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        """Return whether an array stays in the pickle."""
        raw = np.frombuffer(buffer.raw(), np.uint8)
        if len(raw) >= SMALL_BYTES:
            aside.append(raw)
        return len(raw) < SMALL_BYTES

    stream = io.BytesIO()
    _Pickler(stream, 5, buffer_callback=keep).dump(value)
    return stream.getvalue(), aside


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
