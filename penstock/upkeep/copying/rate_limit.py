"""The speed limit of a migration, shared by all its threads."""

import time
from collections.abc import Callable
from threading import Lock

from loader.errors import InvalidRuntime


class Pace:
    """Limits requests and bytes per second, on average from the first on; None: no limit. Thread-safe.

    Raises: InvalidRuntime for a limit that is not above 0.
    """

    def __init__(
        self,
        requests_per_s: float | None = None,
        bytes_per_s: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        for name, limit in (("requests_per_s", requests_per_s), ("bytes_per_s", bytes_per_s)):
            if limit is not None and not limit > 0:
                raise InvalidRuntime(f"{name} = {limit:g}: a number above 0 is needed, or leave it out")
        self.requests_per_s, self.bytes_per_s = requests_per_s, bytes_per_s
        self._costs = (1 / requests_per_s if requests_per_s else 0.0, 1 / bytes_per_s if bytes_per_s else 0.0)
        self._lock, self._clock, self._sleep = Lock(), clock, sleep
        self._free_s = [clock(), clock()]  # when the next request, the next byte may go

    def take(self, requests: int = 0, nbytes: int = 0) -> None:
        """Wait until so much is allowed."""
        with self._lock:
            now, wait_s = self._clock(), 0.0
            for which, amount in enumerate((requests, nbytes)):
                begin = max(now, self._free_s[which])
                self._free_s[which] = begin + amount * self._costs[which]
                wait_s = max(wait_s, begin - now)
        if wait_s > 0:
            self._sleep(wait_s)
