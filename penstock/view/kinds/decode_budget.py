"""One budget of decoded bytes over all threads of a viewer: who does not fit waits for the others, in order.

A reservation is made of a file's header, before anything is decoded, and held while the value is drawn. No lock is
taken inside of one, so that those who wait always come to their turn.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, local

from ..freed_memory import give_back

DECODED_BYTES = 2**30
"""Bytes that all threads may decode at once; a larger value is decoded while no other is."""

GIVEN_BACK_BYTES = 64 * 2**20
"""A reservation from which on freed memory is returned to the system at its end, which takes milliseconds."""


class DecodeBudget:
    """Reservations of bytes. Thread-safe; a thread that holds one gets more without waiting."""

    def __init__(self, limit: int = DECODED_BYTES) -> None:
        self._limit, self._used = limit, 0
        self._turn, self._waiting = Condition(), deque[object]()
        self._mine = local()

    # Freed canvases stay in the heap of their thread: eight pictures one after the other held 2.4 GiB.
    @contextmanager
    def reserve(self, nbytes: int) -> Iterator[None]:
        """Hold so many bytes inside the block; wait for them before it."""
        held = getattr(self._mine, "held", 0)
        more = max(0, min(nbytes, self._limit) - held)
        self._take(more, waits=not held)
        self._mine.held = held + more
        try:
            yield
        finally:
            self._mine.held = held
            if more >= GIVEN_BACK_BYTES:
                give_back()
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
"""The budget of this process."""
