"""Least-recently-used cache, bounded in entries or bytes."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock, RLock
from typing import Generic, TypeVar

T = TypeVar("T")


class LruCache(Generic[T]):
    """The most recently used values, up to a limit. Thread-safe.

    Concurrent requests for one key compute its value once, and do not delay requests for other keys. The loader's
    `SizedLru` computes nothing, checks no validity and has no times of use: it is on the batch path.
    """

    def __init__(self, limit: int, size: Callable[[T], int] = lambda _: 1) -> None:
        """Limit the total of all sizes, each 1 by default."""
        self._limit = limit
        self._size = size
        self._values: OrderedDict[Hashable, tuple[T, int, float]] = OrderedDict()
        self._total = 0
        self._lock = Lock()
        self._key_locks = dict[Hashable, RLock]()

    def get(self, key: Hashable, make: Callable[[], T], is_valid: Callable[[T], bool] = lambda _: True) -> T:
        """Return the cached value, or compute it, also if `is_valid` returns False."""
        with self._lock:
            if key in self._values and is_valid(self._values[key][0]):
                return self._touch(key)
            key_lock = self._key_locks.setdefault(key, RLock())
        with key_lock:
            with self._lock:
                if key in self._values and is_valid(self._values[key][0]):
                    return self._touch(key)
            try:
                value = make()
                self._store(key, value)
            finally:
                with self._lock:
                    # Also after an error: the next caller makes the value itself.
                    self._key_locks.pop(key, None)
            return value

    def put(self, key: Hashable, value: T) -> None:
        self._store(key, value)

    def __contains__(self, key: Hashable) -> bool:
        with self._lock:
            return key in self._values

    def drop_idle(self, seconds: float) -> None:
        """Drop values unused for this many seconds."""
        with self._lock:
            since = time.monotonic() - seconds
            while self._values and next(iter(self._values.values()))[2] < since:
                self._total -= self._values.popitem(last=False)[1][1]

    def values(self) -> list[T]:
        """Return values, most recently used last."""
        with self._lock:
            return [value for value, _, _ in self._values.values()]

    def forget(self, key: Hashable) -> None:
        with self._lock:
            if key in self._values:
                self._total -= self._values.pop(key)[1]

    def clear(self) -> None:
        with self._lock:
            self._values.clear()
            self._total = 0

    def _touch(self, key: Hashable) -> T:
        value, n, _ = self._values.pop(key)
        self._values[key] = value, n, time.monotonic()
        return value

    def _store(self, key: Hashable, value: T) -> None:
        n = self._size(value)
        with self._lock:
            if key in self._values:
                self._total -= self._values.pop(key)[1]
            self._values[key] = value, n, time.monotonic()
            self._total += n
            # A value above the limit drops everything, itself included; its caller still has it.
            while self._total > self._limit and self._values:
                self._total -= self._values.popitem(last=False)[1][1]
