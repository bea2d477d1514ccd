"""One store of a mirrored root: its health, its next probe after a failure, and its objects' change tokens."""

import time
from collections.abc import Callable

from ...errors import Changed
from ..shared.threads import lock
from ..store import Store

PASSED_OVER_S = 5.0
"""Seconds that a failed store is skipped; doubled after each further failure."""
PASSED_OVER_MAX_S = 60.0
STRIKES = 3
"""Failures of single tries that count as one failure of a retried read."""


class Member:
    """A store and its health: a circuit breaker. Thread-safe. number: 0 is the primary."""

    def __init__(self, store: Store, number: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.store, self.number = store, number
        self.url = store.url
        self.reads = 0
        self.identity: str | None = None
        """Identity of the store's root, once known."""
        self.warned: set[str] = set()
        """Warnings given so far."""
        self._clock, self._lock = clock, lock()
        self._strikes, self._pause_s = 0, PASSED_OVER_S
        self._until_s: float | None = None  # time until which the store is skipped; None if it is up
        self._back_s = float("-inf")
        self._asking = False

    @property
    def is_up(self) -> bool:
        return self._until_s is None

    def served(self) -> None:
        """Record a successful read."""
        self.reads += 1
        self._strikes = 0

    def failed(self, *, for_good: bool) -> float | None:
        """Record a failed read; return the seconds to skip the store, None if already skipped.

        for_good: True after all retries, False after a single try.
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
        """Return whether to probe the store now. If True, the caller probes it and calls `asked`."""
        with self._lock:
            due = self._until_s is not None and not self._asking and self._clock() >= self._until_s
            self._asking = self._asking or due
            return due

    def asked(self, *, answers: bool) -> None:
        """Record the result of a probe."""
        with self._lock:
            self._asking = False
            if answers:
                self._until_s, self._back_s = None, self._clock()
            else:
                self._pause_s = min(2 * self._pause_s, PASSED_OVER_MAX_S)
                self._until_s = self._clock() + self._pause_s


FIRST = 1


class Pins:
    """Maps each object's first ETag in each store to one token. Thread-safe; about 200 bytes per object read.

    The token is "m1", then "m2" and so on after replacements; the same in every process.
    """

    def __init__(self, n_stores: int) -> None:
        self._lock = lock()
        self._etags: list[dict[str, str]] = [{} for _ in range(n_stores)]
        self._numbers: dict[str, int] = {}  # token numbers of replaced objects

    def etag(self, store: int, key: str, token: str | None) -> str | None:
        """Return a store's ETag for a pinned `token`; None if any ETag is valid."""
        if token is None:
            return None
        with self._lock:
            self._check(key, token)
            return self._etags[store].get(key)

    def token(self, store: int, key: str, etag: str, pinned: str | None = None) -> str:
        """Return the token of a store's object. Raises: Changed if it differs from `pinned`."""
        with self._lock:
            if pinned is not None:
                self._check(key, pinned)
            held = self._etags[store].setdefault(key, etag)
            if held != etag:
                if pinned is not None:
                    raise self._changed(key, pinned)
                for etags in self._etags:
                    etags.pop(key, None)
                self._etags[store][key] = etag
                self._numbers[key] = self._numbers.get(key, FIRST) + 1
            return self._token(key)

    def listed(self, store: int, key: str, etag: str) -> str:
        """Return the token that an object would have, without pinning."""
        with self._lock:
            if self._etags[store].get(key, etag) == etag:
                return self._token(key)
            return f"m{self._numbers.get(key, FIRST) + 1}"

    def _token(self, key: str) -> str:
        return f"m{self._numbers.get(key, FIRST)}"

    def _check(self, key: str, token: str) -> None:
        if token != self._token(key):
            raise self._changed(key, token)

    def _changed(self, key: str, token: str) -> Changed:
        return Changed(
            f"{key}: the object was replaced since it was first read (etag {token}, now another); open the version "
            "again"
        )
