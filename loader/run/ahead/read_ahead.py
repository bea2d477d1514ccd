"""Fetch the next steps' data in order, many requests at once.

One thread plans, several fetch. A batch whose bytes are missing reads them itself, with its own retries.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from enum import Enum
from threading import Condition
from typing import Generic, Protocol, TypeVar

from ...errors import PenstockError
from ...storage.requests import Traffic, count_requests, try_once
from .thread_pools import ThreadPool

logger = logging.getLogger(__name__)

U = TypeVar("U")

NEAR = 128
"""Largest distance, in steps, between consecutive batches of one run; a larger one is a seek."""

Count = Callable[[str, int], None]


class Claim(Enum):
    GRANTED = "it is the caller's to fetch"
    NEEDLESS = "it is there, or another reader fetches it, or it is not read ahead"
    NO_ROOM = "there is no room until a step has passed"


class UnitSource(Protocol[U]):
    """A source of units that can be fetched ahead, each by one call."""

    def units(self, step: int) -> Sequence[U] | None:
        """Return the units that a step needs; None after the last step."""

    def expect(self, step: int, units: Sequence[U]) -> None:
        """Announce the order in which a step's units are needed."""

    def claim(self, unit: U) -> Claim:
        """Reserve room for a unit."""

    def fetch(self, unit: U) -> int:
        """Fetch a claimed unit. Return the number of bytes read."""

    def give_back(self, unit: U) -> None:
        """Release the claim on a unit that is not fetched."""

    def passed(self, step: int) -> None:
        """Note that all steps before this one have their units."""

    def forget(self) -> None:
        """Forget the expected units: the order continues at another step."""


class ReadAhead(Generic[U]):
    """Keeps `in_flight` fetches running, at most `horizon` steps ahead.

    After a start or a seek only the first batch is read; later ones wait for it.

    on_plan: called by the planning thread with the current step. on_reads: called with the seconds of each read's
    requests. count: receives `ahead_bytes`, `ahead_failed`, `requests` and `fallbacks`.
    """

    def __init__(
        self,
        source: UnitSource[U],
        *,
        in_flight: int,
        horizon: int,
        count: Count,
        on_plan: Callable[[int], None] = lambda _: None,
        on_reads: Callable[[Collection[float]], None] = lambda _: None,
        waits: bool = False,
    ) -> None:
        self._source = source
        self._in_flight = in_flight
        self._horizon = horizon
        self._count = count
        self._on_plan = on_plan
        self._on_reads = on_reads
        self._lock = Condition()
        self._run = 0  # number of the seek: fetches for an earlier one are outdated
        self._begun: set[int] = set()
        self._last: int | None = None  # the last step that has begun
        self._next = 0  # the step to plan next
        self._queue: deque[U] = deque()
        self._busy = 0
        self._first: int | None = None  # first step after a start or a seek; None once its data is read
        self._waits = waits  # until the second steps begin: see `Prefetch`
        self._resting = False  # True after a failed read, until a batch has its data
        self._ended = False
        self._stopped = False
        self._warned = False
        self._planning = self._again = False
        # Started after the first batch, which starting dozens of threads would delay.
        self._planner: ThreadPool[None, None] | None = None
        self._fetchers: ThreadPool[tuple[int, U], None] | None = None

    def begin(self, steps: Sequence[int]) -> bool:
        """Record that these ascending steps are being made; return whether they are the first after a start or seek."""
        with self._lock:
            if self._last is None or abs(steps[0] - self._last) > NEAR:
                self._start(steps[0])
            else:
                self._waits = False
            first = steps[0] == self._first
            self._begun.update(steps)
            if not first:
                self._lock.wait_for(lambda: self._first is None or self._stopped)
            self._last = max(self._last or 0, steps[-1])
        self._wake()
        return first

    def done(self, step: int) -> None:
        """Note that a batch has its data, or failed. Repeated calls are harmless."""
        with self._lock:
            self._begun.discard(step)
            self._resting = False
            if self._first == step:
                self._first = None
                self._lock.notify_all()
            if self._last is not None:
                self._source.passed(min(self._begun, default=self._last + 1))
        self._wake()

    def dismiss(self) -> None:
        self._stopped = True
        with self._lock:
            self._lock.notify_all()
        for pool in (self._planner, self._fetchers):
            if pool is not None:
                pool.dismiss()

    def close(self) -> None:
        self.dismiss()
        if self._planner is not None:
            self._planner.join()
        if self._fetchers is not None:  # started by the planner
            self._fetchers.join()

    def _start(self, step: int) -> None:
        """Begin anew at a step, after a start or a seek. The caller has the lock."""
        self._run += 1
        self._queue.clear()
        self._begun.clear()
        self._first = self._last = step
        self._next = step + 1
        self._ended = False
        self._source.forget()

    def _wake(self) -> None:
        """Let the planning thread look again: a step has begun or ended, or a fetch has ended."""
        with self._lock:
            self._again = True
            if self._planning or not self._may_plan():
                return
            self._planning = True
        # Not under the lock: a starting thread may collect a loader, whose finalizer takes it (`dismiss`).
        if self._planner is None:
            self._planner = ThreadPool(lambda _: self._plan(), 1, name="penstock-plan")
            if self._stopped:  # before there was a pool to dismiss
                self._planner.dismiss()
        self._planner.submit(None)

    def _plan(self) -> None:
        """Plan steps and submit units until nothing can be done; the planning thread's task."""
        if self._fetchers is None:
            self._fetchers = ThreadPool(self._fetch, self._in_flight, name="penstock-ahead")
            if self._stopped:  # before there was a pool to dismiss
                self._fetchers.dismiss()
        while True:
            with self._lock:
                self._again = False
                step = self._last or 0
            try:
                if self._may_plan():
                    self._on_plan(step)
                while self._may_plan() and self._plan_one():
                    pass
            except PenstockError as error:  # the batch for that step raises it
                self._note_failure(error)
            with self._lock:
                if not self._again:  # else `_wake` was called meanwhile, and started no task
                    self._planning = False
                    return

    def _may_plan(self) -> bool:
        return self._first is None and not self._waits and not self._stopped

    def _plan_one(self) -> bool:
        """Plan the next step, or submit the next unit. Returns False if nothing can be done until a fetch ends."""
        with self._lock:
            run = self._run
            last = self._last or 0
            if self._resting or self._busy >= self._in_flight:
                return False
            has_unit = bool(self._queue)
            self._next = step = max(self._next, last + 1)
            if not has_unit and (self._ended or step > last + self._horizon):
                return False
        if has_unit:
            return self._submit_next(run)
        self._queue_step(run, step)
        return True

    def _queue_step(self, run: int, step: int) -> None:
        """Put a step's units into the queue, unless another run began while they were found."""
        units = self._source.units(step)
        with self._lock:
            if run != self._run:
                return
            self._ended = units is None
            if units is not None:
                self._source.expect(step, units)
                self._queue.extend(units)
                self._next = step + 1

    def _submit_next(self, run: int) -> bool:
        """Submit the first unit of the queue that is still needed. Returns False if it has no room."""
        with self._lock:
            if run != self._run:
                return True
            claimed = Claim.NEEDLESS
            # Most units are needless once the first steps are read.
            while claimed is Claim.NEEDLESS:
                if not self._queue:
                    return True
                unit = self._queue[0]
                claimed = self._source.claim(unit)
                if claimed is Claim.NO_ROOM:
                    return False
                self._queue.popleft()
            self._busy += 1
        assert self._fetchers is not None  # started by `_plan`
        fetched = self._fetchers.submit((run, unit))
        # A pending batch may wait for a read that was cancelled.
        fetched.add_done_callback(lambda done: self._source.give_back(unit) if done.cancelled() else None)
        if self._stopped:  # the threads may have ended before they could see the task
            fetched.cancel()
        return True

    def _fetch(self, task: tuple[int, U]) -> None:
        """Fetch a unit, unless its run is outdated. task: (number of the run, unit)."""
        run, unit = task
        traffic = Traffic()
        try:
            if run != self._run or self._stopped:
                self._source.give_back(unit)
                return
            with count_requests(traffic), try_once():
                self._count("ahead_bytes", self._source.fetch(unit))
        except PenstockError as error:
            self._note_failure(error)
        finally:
            self._count("requests", traffic.requests)
            self._count("fallbacks", traffic.fallbacks)
            self._on_reads(traffic.latencies_s)
            with self._lock:
                self._busy -= 1
            self._wake()

    def _note_failure(self, error: PenstockError) -> None:
        """Count a failed read and rest until a batch has its data. Logs the first one."""
        self._count("ahead_failed", 1)
        with self._lock:
            self._resting = True
            warned = self._warned
            self._warned = True
        if not warned:
            logger.info("a read ahead failed (%s); a batch that needs it reads it again", error)
