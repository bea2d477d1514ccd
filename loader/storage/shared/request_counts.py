"""Requests and retries, counted for whoever asked.

A store is shared by loaders, threads and tools, and each wants its own numbers. So stores count into what the current
context names, and nowhere without one: no verb has an argument more, and a store around another need not pass it on. A
thread pool has contexts of its own: work is given to it as `copy_context().run`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from .threads import lock


class Traffic:
    """requests: tries of a verb, each read of a file on a disk being one; retries: tries after one that failed;
    fallbacks: reads that another store than the nearest served. Thread-safe."""

    def __init__(self) -> None:
        self._lock = lock()
        self.requests = 0
        self.retries = 0
        self.fallbacks = 0

    def add(self, requests: int, *, retry: bool) -> None:
        with self._lock:
            self.requests += requests
            self.retries += retry

    def fell_back(self) -> None:
        with self._lock:
            self.fallbacks += 1


_current: ContextVar[Traffic | None] = ContextVar("penstock_traffic", default=None)


@contextmanager
def counted(into: Traffic) -> Iterator[None]:
    """What stores do in this context is counted into `into`."""
    token = _current.set(into)
    try:
        yield
    finally:
        _current.reset(token)


def count_request(requests: int = 1, *, retry: bool = False) -> None:
    """A store tells of a request, or of several, that it is about to make. Costs 0.2 us."""
    traffic = _current.get()
    if traffic is not None:
        traffic.add(requests, retry=retry)


def count_fallback() -> None:
    """A read was served by another store than the nearest."""
    traffic = _current.get()
    if traffic is not None:
        traffic.fell_back()
