"""The memory that batches lie in, given out again when nobody holds an array over it any more.

A batch of photos is thousands of pages. Taken from the system anew for every batch, each page is zeroed, and faults at
its first use, which two threads of one process cannot do at the same time.
"""

import mmap
import weakref
from collections import deque
from contextlib import suppress
from math import prod
from threading import Lock
from typing import Any

import numpy as np

LEAST_BYTES = 2**20
"""Smaller arrays are numpy's own: its allocator keeps their memory by itself."""
KEPT = 4
"""Pieces of memory that are kept although nobody holds an array over them."""
FITS = 2
"""A piece serves an array that is smaller by up to this factor."""

_GRAIN_BYTES = 2**17  # sizes that differ a little have pieces of one size


class Recycled:
    """Makes arrays of any content, as `columns.Allocate` wants them; thread-safe.

    An array's memory is free when the array, the last view of it and whatever else was made over it (a tensor, a
    `jax.Array`, a memoryview) are gone. Of memory that is free, KEPT pieces are kept, those that became free last. A
    child that the process forks has a copy of all, as of any other array.
    """

    def __init__(self) -> None:
        # A finalizer may run in the middle of anything: it does no more than a deque does in one go.
        self._free: deque[mmap.mmap] = deque(maxlen=KEPT)
        self._turn = Lock()

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """An array of any content. Raises: MemoryError."""
        nbytes = prod(shape) * dtype.itemsize
        if nbytes < LEAST_BYTES:
            return np.empty(shape, dtype)
        piece = self._taken(nbytes) or _new(nbytes)
        # Every array over the piece refers to this one, and nothing else does.
        memory = np.frombuffer(piece, np.uint8)
        weakref.finalize(memory, self._free.append, piece).atexit = False
        return np.ndarray(shape, dtype, memory)

    def _taken(self, nbytes: int) -> mmap.mmap | None:
        """A free piece that fits: of several, the one that became free last, which the processor's cache may know."""
        passed = list[mmap.mmap]()
        with self._turn:
            try:
                while not nbytes <= len(piece := self._free.pop()) <= FITS * nbytes + _GRAIN_BYTES:
                    passed.append(piece)
            except IndexError:
                return None
            finally:
                self._free.extendleft(passed)
            return piece


def _new(nbytes: int) -> mmap.mmap:
    """Pages that are not shared with children, large ones where the system has them. Raises: MemoryError."""
    whole = -(-nbytes // _GRAIN_BYTES) * _GRAIN_BYTES
    try:
        piece = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no memory for a batch's array of {nbytes} bytes") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            piece.madvise(mmap.MADV_HUGEPAGE)
    return piece
