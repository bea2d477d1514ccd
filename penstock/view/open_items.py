"""An open version and an open run of the viewer, which look again for changes now and then."""

import time
from copy import copy
from datetime import UTC, datetime
from threading import Lock
from typing import Any

import loader
from loader.dataset.versions.sample_search import forget_searches
from loader.errors import StoreError

from .kinds.kind import Media
from .outage import Outage
from .replays.training import Training

INDEX_BYTES = 64 * 2**20
"""Index rows of a version that stay in memory: a page of a filter may read a row group for each of its samples."""
FRESH_S = 10.0
"""Seconds until a run log is read again, and a version checked for retirement."""


class OpenVersion:
    """An open version. Garbage collection may delete a retired one's data."""

    def __init__(self, version: loader.Version) -> None:
        self.version = version
        self._checked_at = time.monotonic()
        version.index_bytes = INDEX_BYTES

    def __del__(self) -> None:
        # A version and its open indexes name each other: without this its lease would wait for a garbage collection.
        forget_searches(self.version)

    def is_due(self) -> bool:
        """Return whether the caller should check for retirement; other threads then get False for a while."""
        if time.monotonic() - self._checked_at <= FRESH_S:
            return False
        self._checked_at = time.monotonic()
        return True


class OpenRun:
    """A run's trail. `fresh` reads it again at most every `FRESH_S` seconds."""

    def __init__(self, training: Training, outage: Outage) -> None:
        self.training = training
        self._outage = outage
        self._tried_at_s = time.monotonic()  # when the trail was read last, or could not be read
        self._last_read_at = datetime.now(UTC)  # when it was read last
        self._lock = Lock()

    def fresh(self) -> Training:
        """Return the run, refreshed if due; marked stale during an outage."""
        if time.monotonic() - self._tried_at_s > FRESH_S and self._lock.acquire(blocking=False):
            try:
                self._read_again()
            finally:
                self._tried_at_s = time.monotonic()
                self._lock.release()
        return self.training

    def _read_again(self) -> None:
        stale = ""
        try:
            self.training = self._outage.ask(self.training.refresh)
            self._last_read_at = datetime.now(UTC)
        except StoreError as error:
            stale = f"the trail is as it was read at {self._last_read_at:%Y-%m-%d %H:%M:%S} UTC: {error}"
        if stale != self.training.stale:
            self.training = copy(self.training)
            self.training.stale = stale


def nbytes(value: Any) -> int:
    """Return a value's approximate bytes."""
    if isinstance(value, bytes | str):
        return len(value)
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    if isinstance(value, Media):
        return len(value.data)
    if isinstance(value, dict):
        return sum(map(nbytes, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(nbytes, value))
    return 64
