"""Memory for decoding, shared by all of a viewer's threads in order of arrival.

A thread reserves after reading a file's header, and takes no other lock meanwhile, so every thread gets its turn.
"""

import ctypes
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, local

DECODED_BYTES = 2**30
"""Bytes decoded at the same time. A larger value is decoded on its own."""
RELEASED_FROM_BYTES = 64 * 2**20
"""Smallest reservation, in bytes, after which freed memory returns to the system."""


def release_memory() -> None:
    """Return freed memory to the system, if the C library can; takes milliseconds."""
    # 256 photos and their tensors take 300 MiB, which glibc would keep in growing per-thread heaps.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it
    if trim is not None:
        trim(0)


class DecodeBudget:
    """Reservations of memory. Thread-safe. A thread with one gets more without waiting."""

    def __init__(self, limit: int = DECODED_BYTES) -> None:
        self._limit, self._used = limit, 0
        self._turn, self._waiting = Condition(), deque[object]()
        self._thread = local()

    # Freed canvases stay in their thread's heap: decoding eight images in turn kept 2.4 GiB.
    @contextmanager
    def reserve(self, nbytes: int) -> Iterator[None]:
        """Wait for this many bytes, and reserve them in the block."""
        held = getattr(self._thread, "held", 0)
        more = max(0, min(nbytes, self._limit) - held)
        self._take(more, waits=not held)
        self._thread.held = held + more
        try:
            yield
        finally:
            self._thread.held = held
            if more >= RELEASED_FROM_BYTES:
                release_memory()
            with self._turn:
                self._used -= more
                self._turn.notify_all()

    def _take(self, nbytes: int, *, waits: bool) -> None:
        ticket = object()
        with self._turn:
            if waits:
                self._waiting.append(ticket)
                try:
                    self._turn.wait_for(
                        lambda: self._waiting[0] is ticket and self._used + nbytes <= self._limit
                    )
                finally:
                    self._waiting.remove(ticket)
                    self._turn.notify_all()
            self._used += nbytes


BUDGET = DecodeBudget()
"""The process's."""
