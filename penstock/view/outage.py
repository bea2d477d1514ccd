"""Outage of a store: one request waits for it; for a few seconds, others get its error at once."""

import time
from collections.abc import Callable
from copy import copy
from typing import TypeVar

from loader.errors import StoreError, Throttled, Transient

OUTAGE_S = 5
"""Seconds in which no other request waits for a store that did not respond."""
DOWN = (Transient, Throttled)
"""Errors of a store that does not respond within its retry budget."""

T = TypeVar("T")


class Outage:
    """The last failure of a store. Thread-safe."""

    def __init__(self) -> None:
        self._failure: tuple[StoreError, float] | None = None

    @property
    def is_known(self) -> bool:
        """True in the seconds after the store did not respond."""
        return self._recent() is not None

    def note(self, error: StoreError) -> None:
        """Record that the store did not respond, unless a recent error is known."""
        if self._recent() is None:
            self._failure = error, time.monotonic() + OUTAGE_S

    def ask(self, make: Callable[[], T]) -> T:
        """Return the result of `make`, which needs the store. Raises: as `make`; a recent error at once."""
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
        return failure[0] if failure is not None and time.monotonic() < failure[1] else None
