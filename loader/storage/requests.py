"""Count requests for the caller, retry them while a store fails, and repeat reads of corrupt bytes.

Stores are shared, so they count into the `Traffic` of the current context; thread pools need `copy_context().run`.
Clients' own retries do not suffice: obstore gives up after 1.6 to 5 s of 503s, and s3fs tries 25 times over 40 s. Here
an operation is retried until its deadline, with exponential backoff and full jitter. Only the caller detects a flipped
bit, so a read's context records which stores served it, and the next try avoids them.
"""

import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Condition, Lock
from typing import TypeVar

from ..errors import Corrupt, InvalidStore, StoreError, Throttled, Transient
from .threads import lock

LATENCIES = 64
"""Newest latencies that `Traffic` holds."""
# From the operating system: a retry in a reading thread must not move the generator that a training script seeded, and
# ranks that seed it alike must not all retry at once.
_jitter = random.SystemRandom()


class Traffic:
    """Counters of requests. Thread-safe.

    requests: tries of operations. retries: tries after a failure. fallbacks: reads not served by the nearest store.
    latencies_s: seconds of the newest requests to a remote store that succeeded.
    """

    def __init__(self) -> None:
        self._lock = lock()
        self.requests = 0
        self.retries = 0
        self.fallbacks = 0
        self.latencies_s = deque[float](maxlen=LATENCIES)

    def add(self, requests: int, *, retry: bool) -> None:
        with self._lock:
            self.requests += requests
            self.retries += retry

    def fell_back(self) -> None:
        with self._lock:
            self.fallbacks += 1


_current: ContextVar[Traffic | None] = ContextVar("penstock_traffic", default=None)


@contextmanager
def count_requests(into: Traffic) -> Iterator[None]:
    token = _current.set(into)
    try:
        yield
    finally:
        _current.reset(token)


def count_request(requests: int = 1, *, retry: bool = False) -> None:
    """Count requests that a store is about to make. Costs 0.2 us."""
    traffic = _current.get()
    if traffic is not None:
        traffic.add(requests, retry=retry)


def count_fallback() -> None:
    traffic = _current.get()
    if traffic is not None:
        traffic.fell_back()


def note_latency(seconds: float) -> None:
    traffic = _current.get()
    if traffic is not None:
        traffic.latencies_s.append(seconds)


T = TypeVar("T")

Worth = Callable[[float], bool]
"""Seconds between the first and the next try -> whether to retry."""

_worth: ContextVar[Worth | None] = ContextVar("penstock_worth", default=None)


@contextmanager
def retry_while(worth: Worth) -> Iterator[None]:
    """Retry operations in this context only while all enclosing `worth` agree and the budget lasts."""
    outer = _worth.get()

    def all_agree(spent_s: float) -> bool:
        return (outer is None or outer(spent_s)) and worth(spent_s)

    token = _worth.set(all_agree)
    try:
        yield
    finally:
        _worth.reset(token)


@contextmanager
def try_once() -> Iterator[None]:
    """Try operations in this context only once, for callers that retry reads themselves."""
    with retry_while(lambda _: False):
        yield


def is_patient() -> bool:
    """Return whether operations in this context have their whole budget."""
    return _worth.get() is None


PATIENCE = 10.0
"""Budgets of a throttled verb within `patient`: thousands of ranks that begin at once are throttled for minutes."""
_patience: ContextVar[float] = ContextVar("penstock_patience", default=1.0)


@contextmanager
def patient() -> Iterator[None]:
    """Give verbs in this context `PATIENCE` times their budget while the store throttles them."""
    token = _patience.set(PATIENCE)
    try:
        yield
    finally:
        _patience.reset(token)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryBudget:
    deadline_s: float = 60.0
    """Seconds after the first try during which a retry may start."""
    base_s: float = 0.05
    """The n-th pause is uniform in [0, min(cap_s, base_s * 2^(n-1))] seconds."""
    cap_s: float = 3.0
    """Longest pause in seconds."""

    def __post_init__(self) -> None:
        if self.deadline_s < 0 or self.base_s < 0 or self.cap_s < self.base_s:
            raise InvalidStore(
                f"retry budget {self} cannot be: deadline, base and cap are seconds, 0 or more, base <= cap: "
                "options retry_deadline_s, retry_base_s, retry_cap_s",
                what="retry budget",
                given=self,
            )

    def pause_s(self, tries: int, fraction: float) -> float:
        """Return the pause after `tries` failures; `fraction` is random in [0, 1)."""
        return fraction * min(self.cap_s, self.base_s * 2.0 ** min(tries - 1, 32))

    def lasts(self, spent_s: float, *, throttled: bool) -> bool:
        return spent_s < self.deadline_s * (_patience.get() if throttled else 1)


class Limiter:
    """Limits requests in flight to `limit`: halved when the store throttles, +1 per `limit` successes, up to `most`.

    Requests in flight at a cut cause no second cut: they belong to the same burst.
    """

    def __init__(self, most: int = 64) -> None:
        """most: most requests in flight, at least 1. Raises: InvalidStore."""
        if most < 1:
            raise InvalidStore(
                f"max_concurrency={most} lets no request through; give 1 or more",
                what="max_concurrency",
                given=most,
                accepted="1 or more",
            )
        self._most = most
        self._limit = float(most)
        self._in_flight = self._waiting = 0
        self._cuts = 0
        self._lock = Lock()  # on every request: a condition's own `with` takes 0.5 us longer
        self._free = Condition(self._lock)

    @property
    def limit(self) -> int:
        """Requests that may be in flight now."""
        return int(self._limit)

    def acquire(self) -> int:
        """Wait until a request may start; return the number of cuts so far, a token for `release`."""
        with self._lock:
            while self._in_flight + 1 > self._limit:
                self._waiting += 1
                self._free.wait()
                self._waiting -= 1
            self._in_flight += 1
            return self._cuts

    def release(self, token: int, *, throttled: bool) -> None:
        """End a request. token: of its `acquire`. throttled: whether the store throttled it."""
        with self._lock:
            self._in_flight -= 1
            # As TCP does: one more request after a window of successes, half of them after throttling.
            if not throttled:
                if self._limit < self._most:
                    self._limit = min(float(self._most), self._limit + 1.0 / self._limit)
            # Requests that were in flight at a cut report the same throttling: only the first one cuts.
            elif token == self._cuts:  # no cut since this request began
                self._limit = max(1.0, self._limit / 2.0)
                self._cuts += 1
            if self._waiting:  # notifying without a waiter also costs time
                self._free.notify()


class Retrier:
    """Runs and retries one operation under a budget and a limiter. `clock`, `sleep`, `rng` are for tests."""

    def __init__(
        self,
        budget: RetryBudget,
        limiter: Limiter,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        rng: Callable[[], float] = _jitter.random,
    ) -> None:
        self.budget = budget
        self.limiter = limiter
        self._clock = clock
        self._sleep = sleep
        self._rng = rng

    def call(self, attempt: Callable[[], T]) -> T:
        """Return the result of `attempt`, retried while it raises Throttled or Transient.

        Raises: Throttled, Transient after the deadline, with tries and time, or unchanged if `retry_while` stops it;
        other errors immediately.
        """
        started_s = self._clock()
        tries = 0
        while True:
            token = self.limiter.acquire()
            throttled = False
            count_request(retry=tries > 0)
            try:
                try:
                    begun_s = time.perf_counter()
                    result = attempt()
                    note_latency(time.perf_counter() - begun_s)
                    return result
                except Throttled:
                    throttled = True
                    raise
                finally:
                    self.limiter.release(token, throttled=throttled)
            except (Throttled, Transient) as error:
                tries += 1
                spent_s = self._clock() - started_s
                worth = _worth.get()
                pause_s = self.budget.pause_s(tries, self._rng())
                # The caller has another source, such as a mirror: it needs the store's own error at once.
                if worth is not None and not worth(spent_s + pause_s):
                    raise
                if not self.budget.lasts(spent_s + pause_s, throttled=throttled):
                    raise _exhausted_error(error, tries, spent_s, self.budget.deadline_s) from error
            self._sleep(pause_s)


def _exhausted_error(error: StoreError, tries: int, spent_s: float, deadline_s: float) -> StoreError:
    return error.with_message(
        f"{error}; gave up after {tries} tries in {spent_s:.1f} s (retry_deadline_s={deadline_s:g}): "
        "check the store and the network, lower max_concurrency, or give it longer"
    )


@dataclass(slots=True)
class _Doubt:
    """Stores that returned corrupt bytes to one read, by their numbers in a mirrored store."""

    wrong: set[int] = field(default_factory=set)
    """Stores that served a corrupt try; the next try avoids them."""
    serving: set[int] = field(default_factory=set)
    """Stores that serve the current try; empty if there is one store only."""
    is_retry: bool = False
    """True from the second try on."""


_doubt: ContextVar[_Doubt | None] = ContextVar("penstock_doubt", default=None)
_serving: ContextVar[set[int] | None] = ContextVar("penstock_serving", default=None)


def retry_corrupt(read: Callable[[], T], *, again: int = 1) -> T:
    """Return the result of `read`, retried while it raises Corrupt.

    It is retried once for each store that has not served it, and at least `again` times.

    Raises: Corrupt from the last try; other errors of `read`.
    """
    doubt = _Doubt()
    token = _doubt.set(doubt)
    try:
        while True:
            doubt.serving.clear()
            try:
                return read()
            except Corrupt:
                # A store that served for the first time costs no retry: another one may have intact bytes.
                if doubt.serving <= doubt.wrong:
                    again -= 1
                if again < 0:
                    raise
                doubt.wrong |= doubt.serving
                doubt.is_retry = True
    finally:
        _doubt.reset(token)


def is_retry() -> bool:
    """Return whether `retry_corrupt` repeats a read in this context, because it got corrupt bytes."""
    doubt = _doubt.get()
    return doubt is not None and doubt.is_retry


def suspect_stores() -> frozenset[int]:
    """Return the numbers of the stores in a mirrored store that gave `retry_corrupt` corrupt bytes: avoid them."""
    doubt = _doubt.get()
    return frozenset(doubt.wrong) if doubt else frozenset()


def record_serving(number: int) -> None:
    """Record that a store of a mirrored store serves the read in this context. number: the store's."""
    doubt = _doubt.get()
    if doubt is not None:
        doubt.serving.add(number)
    serving = _serving.get()
    if serving is not None:
        serving.add(number)


@contextmanager
def record_store_numbers() -> Iterator[set[int]]:
    """Yield a set that receives the number of each store of a mirrored store that serves a read of the block.

    It stays empty without mirrors.
    """
    serving: set[int] = set()
    token = _serving.set(serving)
    try:
        yield serving
    finally:
        _serving.reset(token)
