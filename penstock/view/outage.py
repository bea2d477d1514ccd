"""A store that does not answer: one question waits for it, and for a few seconds its error is the answer to others."""

import time
from collections.abc import Callable
from copy import copy
from typing import TypeVar

from loader.errors import StoreError, Throttled, Transient

OUTAGE_S = 5
"""Seconds in which nobody else waits for a store that did not answer within its own budget."""
DOWN = (Transient, Throttled)
"""Errors of a store that does not answer, past its budget."""

T = TypeVar("T")


class Outage:
    """The last failure of a store. Thread-safe."""

    def __init__(self) -> None:
        self._told: tuple[StoreError, float] | None = None

    @property
    def is_known(self) -> bool:
        """True in the seconds after the store did not answer."""
        return self._recent() is not None

    def note(self, error: StoreError) -> None:
        """Remember that the store did not answer. The error of a moment ago stays: it may be told again by this one."""
        if self._recent() is None:
            self._told = error, time.monotonic() + OUTAGE_S

    def ask(self, make: Callable[[], T]) -> T:
        """Return the result of `make`, which needs the store. Raises: as `make`; its error of a moment ago, unasked."""
        recent = self._recent()
        if recent is not None:
            raise copy(recent) from recent
        try:
            found = make()
        except DOWN as error:
            self.note(error)
            raise
        self._told = None
        return found

    def _recent(self) -> StoreError | None:
        told = self._told
        return told[0] if told is not None and time.monotonic() < told[1] else None
