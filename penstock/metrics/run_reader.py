"""Read one run for metrics, scrape by scrape: the first reading reads its figures, later ones what is new.

A later reading makes two requests. It reads what an earlier one listed, else it lists the run log, then the record. So
a scrape each 15 to 60 s keeps up with a run, which writes an object of its log and an interval a minute.
"""

import logging
import math
from collections.abc import Callable

from loader.errors import StoreError
from loader.storage import Store

from ..checkpoints.ranks import map_in_order
from .conditions import TrainingFacts, run_state, silent_state
from .recent_waits import WaitedTime, interval_waits, newest_wait, recent_waits
from .record_facts import RecordFacts
from .run_sources import RecordSource, RunObjects, TrailSource, read_next
from .trail_facts import TrailFacts

_log = logging.getLogger("penstock.metrics")
MOST_DAMAGED = 100
"""Most damaged objects of a run that are logged."""
MOST_FAILED = 4
"""Failed runs after which a scrape reads no more: each may have taken all time that requests are repeated."""
REQUESTS = 2
"""Requests of a reading after the first."""


class RunReader:
    """Figures of one run. Not thread-safe."""

    def __init__(self, store: Store, run: str) -> None:
        self.run = run
        self.trail = TrailFacts()
        self.record = RecordFacts(run)
        self._damage: dict[str, str] = {}  # key of an object -> what is wrong with it
        self._trail_source = TrailSource(store, run, self.trail)
        self._record_source = RecordSource(store, run, self.record)
        self.is_read = False
        """True after the first reading."""
        self._next = 0  # counts requests, so that sources take turns

    @property
    def newest_us(self) -> int:
        """Time of the newest object, UTC microseconds; 0 without one."""
        newest_us = (
            self._trail_source.newest_us,
            self._record_source.newest_us,
            # For stores without times of objects.
            self.trail.last_us,
            self.record.begun_us,
        )
        return max(newest_us)

    def read(self, now_s: float) -> None:
        """Read what is new. Raises: StoreError."""
        if not self.is_read:
            self._read_all(now_s)
            self.is_read = True
            return
        for _ in range(REQUESTS):
            self._request(now_s)

    def _read_all(self, now_s: float) -> None:
        """Read everything that the run has, for the first reading."""
        for source in self._sources():
            source.refresh(now_s)
            while source.unread:
                self._read_next(source)
        self._trail_source.relists = False

    def _request(self, now_s: float) -> None:
        """Make one request: read an object that is listed, or list."""
        n_starts = self._record_source.n_starts
        unread = [source for source in self._sources() if source.unread]
        if unread:
            # In turn: intervals may not keep steps waiting, nor the other way round.
            source = unread[self._next % len(unread)]
            self._next += 1
            self._read_next(source)
            return
        # Nothing is unread: look for new objects, in both sources in turn.
        source = self._sources()[self._next % 2]
        self._next += 1
        source.refresh(now_s)
        if self._record_source.n_starts > n_starts:
            # The next listing of the run log has all folders: a new start may write to another one.
            self._trail_source.relists = True

    def _sources(self) -> tuple[RunObjects, RunObjects]:
        return self._trail_source, self._record_source

    def _read_next(self, source: RunObjects) -> None:
        key = source.unread[0].key
        problem = read_next(source)
        # An object that was restored is listed as new, and read again.
        self._damage.pop(key, None)
        if problem and len(self._damage) < MOST_DAMAGED:
            _log.warning("%s", problem)
            self._damage[key] = problem

    @property
    def error(self) -> str:
        """Damage of the run's objects; "" for none."""
        return next(iter(self._damage.values()), "")

    @property
    def last_us(self) -> int:
        """Delivery of the last step, UTC microseconds; without a run log its newest interval, else 0."""
        if self.trail.last_us:
            return self.trail.last_us
        ends_us = [interval.ended_us for interval in self.record.intervals]
        return max(ends_us, default=0)

    @property
    def waited(self) -> list[WaitedTime]:
        """Waiting by the run log; by intervals without one."""
        if self.trail.waited:
            return self.trail.waited
        return interval_waits(self.record.intervals)

    @property
    def waiting(self) -> float:
        """Share of waiting in the newest five minutes of steps; NaN if unknown."""
        share = newest_wait(self.waited)
        if share is None:
            return math.nan
        return share

    def facts(self, now_s: float) -> TrainingFacts:
        """Return the facts by which conditions, such as a run without progress, are found."""
        not_finite = self.trail.not_finite
        _, checkpoint_us = self.record.checkpoint
        return TrainingFacts(
            run=self.run,
            state=self.state(now_s),
            last_us=self.last_us or self.record.begun_us,  # before its first step, when it began
            median_step_s=self.trail.median_step_s,
            metric=self.trail.metric,
            n_not_finite=len(not_finite),
            first_not_finite=min(not_finite, default=-1),
            is_whole=self._trail_source.is_whole,
            waits=recent_waits(self.waited),
            starts_us=self.record.starts_us,
            checkpoint_us=checkpoint_us,
            substituted=self.trail.substituted,
            failure=self.record.failure,
            error=self.error,
        )

    def state(self, now_s: float) -> str:
        """Return the state at a Unix time, one of `RUN_STATES`."""
        if self.error:
            return "damaged"
        state = run_state(self.record.newest_event, has_failed=bool(self.record.failure))
        last_us = self.last_us or self.record.begun_us
        quiet_s = now_s - last_us / 1e6
        is_recorded = bool(self.record.attempts)
        return silent_state(state, quiet_s, self.trail.median_step_s, is_recorded=is_recorded)


def read_runs(
    readers: list[RunReader],
    now_s: float,
    on_error: Callable[[str], None],
) -> None:
    """Read what is new of each run. A store that fails often ends the reading; figures stay until the next scrape."""

    def read(reader: RunReader) -> str:
        try:
            reader.read(now_s)
        except StoreError as error:
            return str(error)
        return ""

    n_failed = 0
    for problem in map_in_order(read, readers):
        if problem:
            on_error(problem)
            n_failed += 1
        if n_failed == MOST_FAILED:
            return
