"""Batches in shared memory: a worker writes one into a segment, the trainer reads it without copying an array.

    [array] [array] ...  [offset and nbytes of each][pickle]

Arrays from `BatchSlot.allocate` are already in the segment; others are copied once. The pickle holds arrays below
SMALL_BYTES and everything else.
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


class MemorySegment:
    """`nbytes` of anonymous shared memory, mapped here. Arrays over it keep the mapping after `close`."""

    def __init__(self, number: int, fd: int, nbytes: int) -> None:
        """Map the memory and own the descriptor. number: its name for trainer and workers."""
        self.number = number
        self.fd = fd
        self.nbytes = nbytes
        self._close_fd = weakref.finalize(self, os.close, fd)
        self._close_fd.atexit = False
        self.memory = mmap.mmap(fd, nbytes)

    @property
    def address(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    @property
    def is_dropped(self) -> bool:
        """True after `close`: no batch will use this memory again."""
        return not self._close_fd.alive

    def close(self) -> None:
        self._close_fd()


def new_segment(nbytes: int) -> MemorySegment:
    whole = max(1, -(-nbytes // mmap.PAGESIZE)) * mmap.PAGESIZE
    fd = os.memfd_create("penstock-batch", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, whole)
    except OSError:
        os.close(fd)
        raise
    return MemorySegment(-1, fd, whole)


ALIGN = 64
"""Alignment in bytes: a cache line, and JAX's condition for sharing memory."""
SMALL_BYTES = 16 * 2**10
"""Smaller arrays are cheaper to copy than to track."""

_SPAN_BYTES = 16

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class OutcomePlace(NamedTuple):
    """Position of an outcome in its segment."""

    at: int
    """Offset of the table of arrays."""
    nbytes: int
    """Size of the pickle in bytes."""
    arrays: int
    """Number of arrays outside the pickle."""

    @property
    def end(self) -> int:
        return self.at + _SPAN_BYTES * self.arrays + self.nbytes


class BatchSlot:
    """Memory of the batch being made. Not thread-safe: a worker makes one at a time."""

    def __init__(self) -> None:
        self._segment: MemorySegment | None = None
        self._memory = np.empty(0, np.uint8)
        # (memory used instead of a full segment, offset in the segment)
        self._outside: list[tuple[Bytes, int]] = []
        self._top = self._most = 0

    def begin(self, segment: MemorySegment | None) -> None:
        self._segment = segment
        self._top = 0
        self._outside = []
        if segment:
            self._memory = bytes_of(segment)
        else:
            self._memory = np.empty(0, np.uint8)

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        nbytes = prod(shape) * dtype.itemsize
        at = self._reserve(nbytes)
        if self._top <= len(self._memory):
            return np.ndarray(shape, dtype, self._memory.data, at)
        memory = np.empty(nbytes, np.uint8)
        self._outside.append((memory, at))
        return np.ndarray(shape, dtype, memory.data)

    def write(self, outcome: object) -> tuple[MemorySegment, OutcomePlace]:
        """Write an outcome; return its position and its segment, which may be new and replaces the one from `begin`."""
        stream, buffers = _dump(outcome)
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
        for memory, at in [(self._memory, 0), *self._outside]:
            offset = raw.ctypes.data - memory.ctypes.data
            if offset >= 0 and offset + len(raw) <= len(memory):
                return at + offset
        return self._reserve(len(raw))

    def _reserve(self, nbytes: int) -> int:
        at = -(-self._top // ALIGN) * ALIGN
        self._top = at + nbytes
        return at


def read(memory: Bytes, written: OutcomePlace) -> Any:
    at = written.at + _SPAN_BYTES * written.arrays
    spans = memory[written.at : at].view(np.int64).reshape(-1, 2).tolist()
    buffers = [memory[place : place + nbytes] for place, nbytes in spans]
    # (written by our own worker, in memory that only the two share)
    return pickle.loads(memory[at : at + written.nbytes].data, buffers=buffers)  # noqa: S301


def bytes_of(segment: MemorySegment) -> Bytes:
    """Return the segment's memory; it is in use while arrays over it exist."""
    return np.frombuffer(segment.memory, np.uint8)


class _TensorPickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type | FunctionType) and value.__module__ == "__main__":
            return _of_script, (value.__qualname__,)
        tensor = getattr(sys.modules.get("torch"), "Tensor", None)  # also None while torch is being imported
        if tensor is None or type(value) is not tensor or value.requires_grad:
            return NotImplemented
        try:
            return _tensor, (value.numpy(),)
        except (TypeError, RuntimeError):  # not on the CPU, or no numpy dtype: pickled as torch does
            return NotImplemented


def _tensor(array: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(array)


def _of_script(name: str) -> Any:
    target: Any = sys.modules["__main__"]
    try:
        for part in name.split("."):
            target = getattr(target, part)
    except AttributeError:
        raise Unpicklable(
            f"a worker process made an instance of {name}, which is not at the top level of the script; put the class "
            "there or into a module, or use executor='threads'",
            what=name,
            accepted="a class at the top level of a module",
        ) from None
    return target


def can_be_sent(value: object) -> bool:
    try:
        _dump(value)
    except Exception:  # noqa: BLE001 - a user's class may raise anything
        return False
    return True


def dumps(value: object) -> bytes:
    stream = io.BytesIO()
    _TensorPickler(stream, 5).dump(value)
    return stream.getvalue()


def _dump(value: object) -> tuple[bytes, list[Bytes]]:
    aside: list[Bytes] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        raw = np.frombuffer(buffer.raw(), np.uint8)
        if len(raw) >= SMALL_BYTES:
            aside.append(raw)
        return len(raw) < SMALL_BYTES

    stream = io.BytesIO()
    _TensorPickler(stream, 5, buffer_callback=keep).dump(value)
    return stream.getvalue(), aside


MAX_SEGMENTS = 128
"""Most segments, unless four per worker are more: each takes two descriptors. A user who keeps more batches gets
copies.
"""

# By address, of all rings.
_mapped: "weakref.WeakValueDictionary[int, MemorySegment]" = weakref.WeakValueDictionary()


def find_segment(address: int) -> MemorySegment | None:
    for ref in _mapped.valuerefs():  # a list: another thread may add one
        segment = ref()
        if segment is not None and 0 <= address - segment.address < segment.nbytes:
            return segment
    return None


class Ring:
    """The trainer's segments. Not thread-safe, except that any thread may free arrays at any time."""

    def __init__(self, bound_bytes: int, workers: int) -> None:
        self._bound = bound_bytes
        self._spare = workers + 2
        self._most = max(MAX_SEGMENTS, 4 * workers)
        self._segments: dict[int, MemorySegment] = {}
        self._free: deque[MemorySegment] = deque()
        self._next = 0

    @property
    def nbytes(self) -> int:
        return sum(segment.nbytes for segment in self._segments.values())

    def __len__(self) -> int:
        return len(self._segments)

    def take(self) -> MemorySegment | None:
        try:
            return self._free.pop()
        except IndexError:
            return None

    def add(self, fd: int, nbytes: int) -> MemorySegment:
        segment = MemorySegment(self._next, fd, nbytes)
        self._segments[segment.number] = segment
        _mapped[segment.address] = segment
        self._next += 1
        return segment

    def lend(self, segment: MemorySegment, used_bytes: int) -> Bytes:
        """Return a segment's memory for a batch; it is free again when the last array over it is gone."""
        if len(self._segments) > self._most:
            memory = np.array(bytes_of(segment)[:used_bytes])
            self._free.append(segment)
            return memory
        memory = bytes_of(segment)
        # A finalizer may run in the middle of anything: it does only what a deque does atomically.
        weakref.finalize(memory, self._free.append, segment).atexit = False
        return memory

    def give_back(self, segment: MemorySegment) -> None:
        self._free.append(segment)

    def drop(self, segment: MemorySegment) -> None:
        del self._segments[segment.number]
        segment.close()

    def trim(self) -> list[MemorySegment]:
        beyond = []
        nbytes = self.nbytes
        while len(self._free) > self._spare and nbytes > self._bound:
            beyond.append(self._free.popleft())
            nbytes -= beyond[-1].nbytes
        return beyond

    def close(self) -> None:
        for segment in list(self._segments.values()):
            self.drop(segment)
        self._free.clear()
