"""One batch in one segment: the worker writes it, the trainer takes it out without copying an array.

    [array] [array] ...  [offset and nbytes of each][pickle]

Arrays of a batch that were allocated by `Slot.allocate` lie there already. Others are copied once; those below
SMALL_BYTES, strings and all else are in the pickle. A batch that does not fit goes to a segment of its own, which takes
the old one's place.
"""

import io
import pickle
import sys
from math import prod
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from ...errors import Unpicklable
from .shared_memory import Segment, new_segment

ALIGN = 64
"""Bytes: a line of cache, and what JAX asks of memory that it does not copy."""
SMALL_BYTES = 16 * 2**10
"""Arrays below are cheaper to copy than to look after; a batch of nothing else leaves its segment at once."""

_SPAN_BYTES = 16

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Written(NamedTuple):
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

    def write(self, outcome: object) -> tuple[Segment, Written]:
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
        return self._segment, Written(at=at, nbytes=len(stream), arrays=len(buffers))

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


def read(memory: Bytes, written: Written) -> Any:
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
