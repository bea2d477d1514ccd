"""Memory of a batch's large arrays, which serves later batches once no array refers to it."""

import mmap
import weakref
from collections import deque
from contextlib import suppress
from functools import cache
from math import prod
from threading import Lock
from typing import Any

import numpy as np

LEAST_BYTES = 2**20
"""Smaller arrays come from numpy, whose allocator keeps their memory."""
KEPT = 4
"""Free memory blocks that a training process keeps."""
FITS = 2
"""A block serves arrays that are smaller by up to this factor."""

_FREED_BYTES = 2**22
_GRAIN_BYTES = 2**17  # similar sizes share blocks of one size


class ArrayPool:
    """Allocates arrays with arbitrary content; thread-safe.

    Memory is free once the array and all views, tensors, `jax.Array`s and memoryviews over it are gone. The KEPT blocks
    freed last are kept.
    """

    def __init__(self, kept: int = KEPT) -> None:
        _keep_freed_memory()
        # A finalizer may run in the middle of anything: it does only what a deque does atomically.
        self._free: deque[mmap.mmap] = deque(maxlen=kept)
        self._turn = Lock()

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        nbytes = prod(shape) * dtype.itemsize
        if nbytes < LEAST_BYTES:
            return np.empty(shape, dtype)
        piece = self._take(nbytes) or _new(nbytes)
        # Every array over the block refers to this one, and nothing else does.
        memory = np.frombuffer(piece, np.uint8)
        weakref.finalize(memory, self._free.append, piece).atexit = False
        return np.ndarray(shape, dtype, memory)

    def _take(self, nbytes: int) -> mmap.mmap | None:
        misfits = list[mmap.mmap]()
        with self._turn:
            try:
                while not nbytes <= len(piece := self._free.pop()) <= FITS * nbytes + _GRAIN_BYTES:
                    misfits.append(piece)
                return piece
            except IndexError:
                return None
            finally:
                self._free.extendleft(misfits)  # to the old end: blocks that did not fit are dropped first


@cache
def _keep_freed_memory() -> None:
    """Make glibc keep some freed MiB for the arrays of plans and look-ups."""
    # It raises its mmap threshold when a large block is freed. Else planning 8,192 slots took 450 new pages each time.
    np.empty(_FREED_BYTES, np.uint8)


def _new(nbytes: int) -> mmap.mmap:
    whole = -(-nbytes // _GRAIN_BYTES) * _GRAIN_BYTES
    try:
        piece = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no memory for a batch's array of {nbytes} bytes") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages
            piece.madvise(mmap.MADV_HUGEPAGE)
    return piece
