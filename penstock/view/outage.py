"""Store outages: one request waits for the store; for a few seconds after, others fail at once."""

import time
from collections.abc import Callable
from copy import copy
from typing import TypeVar

from loader.errors import StoreError, Throttled, Transient

OUTAGE_S = 5
"""Seconds for which requests fail at once."""
DOWN = (Transient, Throttled)
"""Errors of a store that exceeds its retry budget."""

T = TypeVar("T")


class Outage:
    """A store's last failure. Thread-safe."""

    def __init__(self) -> None:
        self._failure: tuple[StoreError, float] | None = None

    @property
    def is_known(self) -> bool:
        return self._recent() is not None

    def note(self, error: StoreError) -> None:
        """Record a failure, unless a recent one is recorded."""
        if self._recent() is None:
            self._failure = error, time.monotonic() + OUTAGE_S

    def ask(self, make: Callable[[], T]) -> T:
        """Return `make`'s result, which uses the store. Raises: as `make`; during an outage, the recent error."""
        recent = self._recent()
        if recent is not None:
            raise copy(recent) from recent
        try:
            result = make()
        except DOWN as error:
            self.note(error)
            raise
        self._failure = None
        return result

    def _recent(self) -> StoreError | None:
        failure = self._failure
        if failure is not None and time.monotonic() < failure[1]:
            return failure[0]
        return None
