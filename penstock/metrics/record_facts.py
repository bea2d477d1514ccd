"""Figures of a run's record for metrics: starts, failures, goodput, checkpoints, and signs against nodes."""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from ..nodes.suspects import RECENT_US, Attempt, NodeFault, NodeInterval, is_node
from ..train.goodput.allocations import record_allocations
from ..train.goodput.run_usage import goodput_share
from ..train.goodput.starts import AttemptGoodput, goodput
from ..train.goodput.stretches import FAILURES, STOPS
from ..train.intervals import IntervalSum
from ..train.record_objects.failed_starts import FailedStart
from ..train.run_folder import Event
from ..train.submitting import has_resumed

MOST_EVENTS = 2000
"""Most events in memory: the newest."""
MOST_INTERVALS = 1500
MOST_SIGNS = 2000
"""Most wrong reads, and intervals of nodes, in memory."""
LAST_EVENTS = (*STOPS, *FAILURES)


class RecordFacts:
    """Figures of one run's record, from its objects in any order."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.attempts: dict[int, Mapping[str, Any]] = {}
        """Number of each start -> its facts."""
        self.failed: FailedStart | None = None
        """Newest failed start."""
        self.n_failed = 0
        self.faults: deque[NodeFault] = deque(maxlen=MOST_SIGNS)
        self.node_intervals: deque[NodeInterval] = deque(maxlen=MOST_SIGNS)
        # By the numbers of the start and of the event, as their keys have them.
        self._events: dict[tuple[int, int], Event] = {}
        self._intervals: dict[tuple[int, int], IntervalSum] = {}
        self._goodput: list[AttemptGoodput] | None = None

    def add_event(self, event: Event) -> None:
        numbers = event.attempt, event.number
        self._events[numbers] = event
        if len(self._events) > MOST_EVENTS:
            oldest = min(self._events)
            del self._events[oldest]
        self._goodput = None

    def add_interval(
        self,
        interval: IntervalSum,
        rows: list[NodeInterval],
    ) -> None:
        """Add an interval. rows: of its nodes."""
        numbers = interval.attempt, interval.end_step
        self._intervals[numbers] = interval
        if len(self._intervals) > MOST_INTERVALS:
            oldest = min(self._intervals)
            del self._intervals[oldest]
        self.node_intervals.extend(rows)
        self._goodput = None

    def add_attempt(
        self,
        number: int,
        facts: Mapping[str, Any],
    ) -> None:
        self.attempts[number] = facts
        self._goodput = None

    def add_failed(self, failed: FailedStart) -> None:
        if self.failed is None or failed.at_us > self.failed.at_us:
            self.failed = failed

    @property
    def events(self) -> list[Event]:
        """Events in order."""
        ordered = sorted(self._events)
        return [self._events[numbers] for numbers in ordered]

    @property
    def intervals(self) -> list[IntervalSum]:
        """Intervals in order."""
        ordered = sorted(self._intervals)
        return [self._intervals[numbers] for numbers in ordered]

    @property
    def newest_event(self) -> str:
        """Name of the newest event; "" without one."""
        if not self._events:
            return ""
        newest = max(self._events)
        return self._events[newest].name

    @property
    def failure(self) -> str:
        """Reason why the last start failed; "" if it did not, or has gone on since."""
        if self.failed is None or has_resumed(self.failed, self.events):
            return ""
        return self.failed.summary()

    @property
    def begun_us(self) -> int:
        """Time of the newest start, UTC microseconds; 0 without one."""
        return max(self.starts_us, default=0)

    @property
    def starts_us(self) -> tuple[int, ...]:
        """Times of the starts, UTC microseconds."""
        return tuple(facts["at_us"] for facts in self.attempts.values())

    @property
    def step(self) -> int:
        """Last step of any event or interval; -1 without one."""
        # Events and intervals count steps that are done.
        done = 0
        for event in self._events.values():
            done = max(done, event.step)
        for interval in self._intervals.values():
            done = max(done, interval.end_step)
        return done - 1

    @property
    def checkpoint(self) -> tuple[int, int]:
        """(step, time in UTC microseconds) of the newest checkpoint; (-1, 0) without one."""
        newest: Event | None = None
        for event in self._events.values():
            if event.name != "saved":
                continue
            if newest is None or newest.at_us < event.at_us:
                newest = event
        if newest is None:
            return -1, 0
        step = newest.facts.get("checkpoint")
        # Facts of an event may hold any JSON.
        if type(step) is not int:
            step = newest.step
        return step, newest.at_us

    def goodput(self) -> float:
        """Return the share of the run's time that made new steps, by its record; NaN if it is unknown."""
        return goodput_share(self._starts())

    def failures(self) -> int:
        """Return the number of failed starts: by the launcher's notes, or by events if those tell of more."""
        by_events = sum(start.failed_us is not None for start in self._starts())
        return max(self.n_failed, by_events)

    def _starts(self) -> list[AttemptGoodput]:
        # Computed again only after something new was recorded.
        if self._goodput is None:
            events = self.events
            intervals = self.intervals
            allocations = record_allocations(
                self.attempts,
                events,
                intervals,
            )
            self._goodput = goodput(
                allocations,
                events,
                intervals,
            )
        return self._goodput

    def recent_intervals(self, now_us: int) -> Iterator[NodeInterval]:
        """Yield the intervals of nodes that count as signs."""
        since_us = now_us - RECENT_US
        for interval in self.node_intervals:
            if interval.ended_us > since_us:
                yield interval

    def ended_starts(self) -> Iterator[Attempt]:
        """Yield the starts that ended: by their last event, or because a later one began."""
        by_start: dict[int, list[Event]] = {}
        for event in self.events:
            own_events = by_start.setdefault(
                event.attempt,
                [],
            )
            own_events.append(event)
        for number in self.attempts:
            own = by_start.get(number, [])
            ends = [event for event in own if event.name in LAST_EVENTS]
            following = self.attempts.get(number + 1)
            last = ""
            ended_us = 0
            if ends:
                last = ends[-1].name
                ended_us = ends[-1].at_us
            elif following is not None:
                # Nothing wrote its end: its ranks were killed.
                ended_us = following["at_us"]
            else:
                continue
            steps = [event.step for event in own]
            saved = [event.step for event in own if event.name == "saved"]
            yield Attempt(
                run=self.run,
                number=number,
                nodes=self._nodes(number),
                ended_us=ended_us,
                failed=last not in STOPS,
                end_step=max(steps, default=0),
                saved_step=max(saved, default=0),
            )

    def _nodes(self, attempt: int) -> tuple[str, ...]:
        """Return the nodes of a start: of its intervals, and of its first rank."""
        nodes = {row.node for row in self.node_intervals if row.attempt == attempt}
        first = self.attempts[attempt].get("node")
        if is_node(first):
            nodes.add(str(first))
        ordered = sorted(nodes)
        return tuple(ordered)


def is_known(figure: float) -> bool:
    """Return whether a figure is a number that can be exported."""
    return math.isfinite(figure)
