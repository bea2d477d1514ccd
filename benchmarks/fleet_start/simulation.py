"""Ranks that begin at once, in virtual time: the loader's `RetryBudget` and `Limiter` and a store that throttles.

A rank makes its requests wave by wave, as counted of a real one. An answer takes 15 to 40 ms. A prefix of the store is
a token bucket with a second of burst, which answers 503 above it. No request and no second is real.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

from loader.storage.requests import Limiter, RetryBudget, patient
from penstock.train.start_requests import STARTS_S

LATENCY_S = (0.015, 0.040)
BURST_S = 1.0
"""Seconds of its rate that a prefix has saved up."""
IN_FLIGHT = 64
"""Requests that a store's client has in flight, as `max_concurrency`."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """How a fleet begins."""

    name: str
    """Row of the table."""
    opens: str
    """"each" rank or the "first" rank opens the root; the others wait for it."""
    is_patient: bool = True
    """True if requests up to the first batch have `PATIENCE` budgets."""
    partitions: int = 1
    """Prefixes of the store, each with the whole rate."""


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """The ranks, the store, and what a rank asks for."""

    ranks: int
    """Number of ranks."""
    reads_per_s: float
    """Requests that a prefix answers in a second."""
    opening: Sequence[int]
    """Requests at once to open the root, wave by wave."""
    rest: Sequence[int]
    """Requests at once from the plan to the first batch, wave by wave."""
    starts_s: float = STARTS_S
    """Ranks start within so many seconds."""


@dataclass(slots=True)
class Outcome:
    """What became of the ranks."""

    ranks: int
    """Number of ranks."""
    first_s: list[float] = field(default_factory=list)
    """Seconds from the first start to each rank's first batch."""
    lost: int = 0
    """Ranks that spent a budget before their first batch."""
    answered: int = 0
    """Requests with an answer."""
    throttled: int = 0
    """Requests answered 503."""

    @property
    def everywhere_s(self) -> float | None:
        """Seconds until the last rank has its first batch; None if one never has it."""
        return max(self.first_s) if len(self.first_s) == self.ranks else None


class Prefix:
    """A token bucket: requests that a prefix answers."""

    def __init__(self, per_s: float) -> None:
        self._per_s, self._most = per_s, per_s * BURST_S
        self._tokens, self._at_s = self._most, 0.0

    def admits(self, at_s: float) -> bool:
        """Take a token if there is one. Times ascend."""
        self._tokens = min(self._most, self._tokens + (at_s - self._at_s) * self._per_s)
        self._at_s = at_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class Simulation:
    """Virtual time: events in order, a store, and its answers."""

    def __init__(self, fleet: Fleet, case: Case, seed: int) -> None:
        self.now_s, self.random = 0.0, random.Random(seed)
        self.fleet, self.case, self.outcome = fleet, case, Outcome(fleet.ranks)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._prefixes = [Prefix(fleet.reads_per_s) for _ in range(case.partitions)]

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call so many seconds from now."""
        self._number += 1
        heapq.heappush(self._events, (self.now_s + seconds, self._number, call))

    def admits(self) -> bool:
        """Return whether the store answers a request of now."""
        return self.random.choice(self._prefixes).admits(self.now_s)

    def latency_s(self) -> float:
        """Return the seconds of an answer."""
        return self.random.uniform(*LATENCY_S)

    def run(self) -> Outcome:
        """Return the outcome, once each rank has its first batch or is lost."""
        each = {"each": 1, "first": self.fleet.ranks}[self.case.opens]
        for first in range(0, self.fleet.ranks, each):
            group = [Rank(self) for _ in range(min(each, self.fleet.ranks - first))]
            starts = [self.random.uniform(0, self.fleet.starts_s) for _ in group]
            group[0].begin(starts[0], self.fleet.opening, self._opened(group, starts))
        while self._events and len(self.outcome.first_s) + self.outcome.lost < self.fleet.ranks:
            self.now_s, _, call = heapq.heappop(self._events)
            call()
        return self.outcome

    def _opened(self, group: Sequence["Rank"], starts: Sequence[float]) -> Callable[[], None]:
        def opened() -> None:
            for rank, start_s in zip(group, starts, strict=True):
                rank.begin(max(0.0, start_s - self.now_s), self.fleet.rest, rank.has_first_batch)

        return opened


@dataclass(slots=True)
class Request:
    """A request and its tries."""

    at_s: float
    """Time of its first try."""
    tries: int = 0
    """Failures so far."""


class Rank:
    """A rank's client: waves of requests under the loader's limiter and budget."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._budget, self._limiter = RetryBudget(), Limiter(IN_FLIGHT)
        self._in_flight = self._unanswered = 0
        self._waiting: deque[Request] = deque()
        self._waves: deque[int] = deque()
        self._lost = False

    def begin(self, in_s: float, waves: Sequence[int], end: Callable[[], None]) -> None:
        """Make the waves of requests from then on; call `end` after the last answer."""
        self._waves, self._end = deque(waves), end
        self._simulation.after(in_s, self._next_wave)

    def has_first_batch(self) -> None:
        """Note the first batch."""
        self._simulation.outcome.first_s.append(self._simulation.now_s)

    def _next_wave(self) -> None:
        if not self._waves:
            self._end()
            return
        self._unanswered = self._waves.popleft()
        now_s = self._simulation.now_s
        self._waiting.extend(Request(now_s) for _ in range(self._unanswered))
        self._send()

    def _send(self) -> None:
        while self._waiting and self._in_flight < self._limiter.limit:
            request, token = self._waiting.popleft(), self._limiter.acquire()  # never waits: a slot is free
            self._in_flight += 1
            admitted = self._simulation.admits()
            self._simulation.after(
                self._simulation.latency_s(),
                lambda request=request, token=token, admitted=admitted: self._answered(
                    request, token, admitted
                ),
            )

    def _answered(self, request: Request, token: int, admitted: bool) -> None:
        self._limiter.release(token, throttled=not admitted)
        self._in_flight -= 1
        outcome = self._simulation.outcome
        outcome.answered += 1
        outcome.throttled += not admitted
        if not admitted:
            self._try_again(request)
        else:
            self._unanswered -= 1
            if not self._unanswered:
                self._next_wave()
        if not self._lost:
            self._send()

    def _try_again(self, request: Request) -> None:
        """Decide as `Retrier.call` does, by the same parts."""
        simulation = self._simulation
        request.tries += 1
        pause_s = self._budget.pause_s(request.tries, simulation.random.random())
        spent_s = simulation.now_s - request.at_s + pause_s
        with patient() if simulation.case.is_patient else nullcontext():
            lasts = self._budget.lasts(spent_s, throttled=True)
        if lasts:
            simulation.after(pause_s, lambda: self._resume(request))
        elif not self._lost:
            self._lost = True
            self._waiting.clear()
            simulation.outcome.lost += 1

    def _resume(self, request: Request) -> None:
        if not self._lost:
            self._waiting.append(request)
            self._send()
