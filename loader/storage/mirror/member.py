"""One store of a mirrored root: its health, and its next probe after a failure."""

import time
from collections.abc import Callable

from ..shared.threads import lock
from ..store import Store

PASSED_OVER_S = 5.0
"""Seconds that a failed store is skipped, doubled after each relapse."""
PASSED_OVER_MAX_S = 60.0
STRIKES = 3
"""Failures of single tries that count as one of a retried read."""


class Member:
    """A store and its health: a circuit breaker. Thread-safe. number: 0 is the primary."""

    def __init__(self, store: Store, number: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.store, self.number = store, number
        self.url = store.url
        self.reads = 0
        """Reads that it served."""
        self.identity: str | None = None
        """Identity of the root, once asked."""
        self.warned: set[str] = set()
        """Warnings given so far."""
        self._clock, self._lock = clock, lock()
        self._strikes, self._pause_s = 0, PASSED_OVER_S
        self._until_s: float | None = None  # the end of its being passed over; None: it is up
        self._back_s = float("-inf")
        self._asking = False

    @property
    def is_up(self) -> bool:
        return self._until_s is None

    def served(self) -> None:
        """Note a read that succeeded."""
        self.reads += 1
        self._strikes = 0

    def failed(self, *, for_good: bool) -> float | None:
        """Note a failed read; return the seconds to skip the store, None if already skipped.

        for_good: True after all tries of the read, False after the only one.
        """
        with self._lock:
            self._strikes += STRIKES if for_good else 1
            if self._strikes < STRIKES or self._until_s is not None:
                return None
            now, self._strikes = self._clock(), 0
            again = now - self._back_s < PASSED_OVER_MAX_S
            self._pause_s = min(2 * self._pause_s, PASSED_OVER_MAX_S) if again else PASSED_OVER_S
            self._until_s = now + self._pause_s
            return self._pause_s

    def shall_be_asked(self) -> bool:
        """Return whether to probe it now; the caller then reports to `asked`."""
        with self._lock:
            due = self._until_s is not None and not self._asking and self._clock() >= self._until_s
            self._asking = self._asking or due
            return due

    def asked(self, *, answers: bool) -> None:
        """Take the outcome of asking it again."""
        with self._lock:
            self._asking = False
            if answers:
                self._until_s, self._back_s = None, self._clock()
            else:
                self._pause_s = min(2 * self._pause_s, PASSED_OVER_MAX_S)
                self._until_s = self._clock() + self._pause_s
