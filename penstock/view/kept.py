"""Values that are made once and kept, up to a limit."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock, RLock
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """The last made values, up to a limit. Thread-safe.

    Two requests for one key make its value once, and do not hold up those for another.
    """

    def __init__(self, limit: int, size: Callable[[T], int] = lambda _: 1) -> None:
        """limit: of all sizes; without `size` of the number of values."""
        self._limit, self._size = limit, size
        self._kept: OrderedDict[Hashable, tuple[T, int, float]] = OrderedDict()
        self._total = 0
        self._lock, self._making = Lock(), dict[Hashable, RLock]()

    def get(self, key: Hashable, make: Callable[[], T], holds: Callable[[T], bool] = lambda _: True) -> T:
        """Return the value of a key, made where it is not kept. holds: False for a kept one that is made again."""
        with self._lock:
            if key in self._kept and holds(self._kept[key][0]):
                return self._used(key)
            mine = self._making.setdefault(key, RLock())
        with mine:
            with self._lock:
                if key in self._kept and holds(self._kept[key][0]):
                    return self._used(key)
            try:
                made = make()
                self._keep(key, made)
            finally:
                with self._lock:
                    self._making.pop(key, None)
            return made

    def drop_idle(self, seconds: float) -> None:
        """Forget the values that nobody asked for in so many seconds."""
        with self._lock:
            since = time.monotonic() - seconds
            while self._kept and next(iter(self._kept.values()))[2] < since:
                self._total -= self._kept.popitem(last=False)[1][1]

    def values(self) -> list[T]:
        """Return all values, those last that were asked for last."""
        with self._lock:
            return [value for value, _, _ in self._kept.values()]

    def forget(self, key: Hashable) -> None:
        """Forget the value of a key."""
        with self._lock:
            if key in self._kept:
                self._total -= self._kept.pop(key)[1]

    def clear(self) -> None:
        """Forget every value."""
        with self._lock:
            self._kept.clear()
            self._total = 0

    def _used(self, key: Hashable) -> T:
        value, n, _ = self._kept.pop(key)
        self._kept[key] = value, n, time.monotonic()
        return value

    def _keep(self, key: Hashable, made: T) -> None:
        n = self._size(made)
        with self._lock:
            if key in self._kept:
                self._total -= self._kept.pop(key)[1]
            self._kept[key] = made, n, time.monotonic()
            self._total += n
            while self._total > self._limit and self._kept:
                self._total -= self._kept.popitem(last=False)[1][1]
