"""How fast a migration may go, and how much it may hold: one limit for all its threads."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition, Lock

from loader.errors import InvalidRuntime


class Pace:
    """At most so many requests and bytes per second, on average from the first on; None: no limit. Thread-safe.

    Raises: InvalidRuntime for a limit of 0 or less."""

    def __init__(
        self,
        requests_per_s: float | None = None,
        bytes_per_s: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        for name, limit in (("requests_per_s", requests_per_s), ("bytes_per_s", bytes_per_s)):
            if limit is not None and limit <= 0:
                raise InvalidRuntime(f"{name} = {limit:g}: a number above 0 is needed, or leave it out")
        self._costs = (1 / requests_per_s if requests_per_s else 0.0, 1 / bytes_per_s if bytes_per_s else 0.0)
        self._lock, self._clock, self._sleep = Lock(), clock, sleep
        self._free_s = [clock(), clock()]  # when the next request, the next byte may go

    def take(self, requests: int = 0, nbytes: int = 0) -> None:
        """Wait until that much may go."""
        with self._lock:
            now, wait_s = self._clock(), 0.0
            for which, amount in enumerate((requests, nbytes)):
                begin = max(now, self._free_s[which])
                self._free_s[which] = begin + amount * self._costs[which]
                wait_s = max(wait_s, begin - now)
        if wait_s > 0:
            self._sleep(wait_s)


class Room:
    """Bytes that all threads may hold together; what is larger than all of it has it alone."""

    def __init__(self, nbytes: int) -> None:
        self._all = self._left = nbytes
        self._changed = Condition()

    @contextmanager
    def for_bytes(self, nbytes: int) -> Iterator[None]:
        taken = min(nbytes, self._all)
        with self._changed:
            self._changed.wait_for(lambda: self._left >= taken)
            self._left -= taken
        try:
            yield
        finally:
            with self._changed:
                self._left += taken
                self._changed.notify_all()
