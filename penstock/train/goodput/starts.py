"""Goodput of each start of a run, and what its restarts cost."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from ..intervals import IntervalSum
from ..run_folder import Event
from .allocations import PREEMPTED, RECORDED, UNACCOUNTED, Allocation
from .stretches import FAILURES, LAST, PARTS, STOPS, start_parts, stretches

PLAIN_STATES = ("RUNNING", "COMPLETED", "FAILED", "REQUEUED", RECORDED, UNACCOUNTED)
"""Words of Slurm that are vaguer than the run's last event, and ours."""
INTERVAL = "interval"
"""Name of an event that stands for an interval: so many steps were done at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptGoodput:
    """Time of one start, in seconds of the clock; times `nodes` are node-seconds."""

    attempt: int
    """Number of the start."""
    nodes: int
    """Number of nodes."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Part of `PARTS` -> seconds."""
    first_step: int = 0
    """Step that it began with."""
    end_step: int = 0
    """Step after its last one, as far as it was saved or recorded."""
    lost_steps: int = 0
    """Steps that the next start had to do again."""
    seconds_to_first_step: float | None = None
    """Seconds from the allocation to the first batch; None without one."""
    end: str = ""
    """Name of its last event."""
    state: str = ""
    """State at its end, in the scheduler's word."""
    failed_us: int | None = None
    """UTC microseconds at which it failed; None if it did not, or runs. A preemption or a lost allocation is none."""

    @property
    def seconds(self) -> float:
        """All of its time."""
        return sum(self.parts.values())

    @property
    def end_words(self) -> str:
        """Last event in words for a person, and whether a preemption caused it."""
        words = self.end.replace("_", " ") or "no rank came up"
        if self.state == PREEMPTED:
            return f"{words}, preempted"
        return words

    @property
    def share(self) -> float:
        """Share of new steps, from 0 to 1."""
        if self.seconds:
            return self.parts["new steps"] / self.seconds
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarts:
    """Starts that followed ends of one cause."""

    cause: str
    """The scheduler's word, such as "preempted", else "stopped", "failed", "killed" or "no rank"."""
    count: int
    """Number of starts."""
    lost_steps: int
    """Steps that they had to do again."""
    seconds_to_first_step: float | None
    """Median seconds from the allocation to the first batch; None if none had one."""


def goodput(
    allocations: Sequence[Allocation],
    events: Sequence[Event],
    intervals: Sequence[IntervalSum] = (),
) -> list[AttemptGoodput]:
    """Return where the time of each start went.

    events: Those of the run, in order.
    intervals: Its intervals: the share of waiting, and the steps of a killed start after its last event.
    """
    waits = _wait_shares(intervals)
    marks = list(events)
    for interval in intervals:
        end_mark = _interval_end(interval)
        marks.append(end_mark)
    marks.sort(key=lambda event: event.at_us)
    own: dict[int, list[Event]] = {allocation.attempt: [] for allocation in allocations}
    for mark in marks:
        if mark.attempt in own:
            own[mark.attempt].append(mark)
    results = list[AttemptGoodput]()
    done = 0
    for place, allocation in enumerate(allocations):
        own_events = own[allocation.attempt]
        end = max((event.step for event in own_events), default=0)
        next_begin = end
        for following in allocations[place + 1 :]:
            step = _first_step(own[following.attempt])
            if step is not None:
                next_begin = step
                break
        first_batch_us = next((event.at_us for event in own_events if event.name == "first_batch"), None)
        seconds_to_first_step = None
        if first_batch_us is not None:
            seconds_to_first_step = (first_batch_us - allocation.begun_us) / 1e6
        last = next((event.name for event in reversed(own_events) if event.name != INTERVAL), "")
        own_stretches = stretches(own_events, is_noted=allocation.is_noted)
        wait_share = waits.get(allocation.attempt, 0.0)
        results.append(
            AttemptGoodput(
                attempt=allocation.attempt,
                nodes=allocation.nodes,
                parts=start_parts(allocation, own_stretches, done, wait_share, last),
                first_step=_first_step(own_events) or 0,
                end_step=end,
                lost_steps=max(0, end - next_begin),
                seconds_to_first_step=seconds_to_first_step,
                end=last,
                state=allocation.state,
                failed_us=_failure_us(allocation, last),
            )
        )
        done = max(done, end)
    return results


def _failure_us(allocation: Allocation, last: str) -> int | None:
    """Return when a start failed; None if it did not.

    It did if its first rank wrote so, or if another start follows in the allocation. So it did if all ranks had ended
    before the job went back to the queue. last: name of its last event.
    """
    if last in STOPS:
        return None
    ranks_ended_us = allocation.ranks_ended_us
    is_requeued = allocation.state == "REQUEUED" and ranks_ended_us is not None
    if last not in FAILURES and not allocation.is_followed and not is_requeued:
        return None
    if ranks_ended_us is None:
        return allocation.ended_us
    return ranks_ended_us


def _interval_end(interval: IntervalSum) -> Event:
    return Event(
        attempt=interval.attempt,
        number=-1,
        name=INTERVAL,
        at_us=interval.ended_us,
        step=interval.end_step,
        facts={},
    )


def _wait_shares(intervals: Sequence[IntervalSum]) -> dict[int, float]:
    """Return start -> share of its steps' time that its ranks waited for data, from 0 to 1."""
    wait_s = defaultdict[int, float](float)
    step_s = defaultdict[int, float](float)
    for interval in intervals:
        attempt = interval.attempt
        wait_s[attempt] += interval.wait_s
        step_s[attempt] += interval.step_s
    shares: dict[int, float] = {}
    for attempt, whole_s in step_s.items():
        if whole_s > 0:
            share = wait_s[attempt] / whole_s
            shares[attempt] = min(1.0, share)
    return shares


def _first_step(events: Sequence[Event]) -> int | None:
    """Return the step that a start began with; None if it got no batch."""
    for event in events:
        if event.name in ("restored", "first_batch"):
            return event.step
    return None


def span_goodput(starts: Sequence[AttemptGoodput]) -> AttemptGoodput:
    """Return the starts of one span as one: the last of them, with the time of all."""
    seconds = dict.fromkeys(PARTS, 0.0)
    for start in starts:
        for part, own_s in start.parts.items():
            seconds[part] += own_s
    return replace(starts[-1], parts=seconds)


def totals(attempts: Sequence[AttemptGoodput]) -> dict[str, float]:
    """Return part -> node-seconds of all starts."""
    node_s = dict.fromkeys(PARTS, 0.0)
    for start in attempts:
        for part, own_s in start.parts.items():
            node_s[part] += own_s * start.nodes
    return node_s


def restarts(attempts: Sequence[AttemptGoodput]) -> list[Restarts]:
    """Return what restarts cost by the cause of the end before them, the most frequent first."""
    counts = Counter[str]()
    lost_steps = Counter[str]()
    seconds: dict[str, list[float]] = {}
    for before, after in pairwise(attempts):
        cause = _cause(before)
        counts[cause] += 1
        lost_steps[cause] += before.lost_steps
        of_cause = seconds.setdefault(cause, [])
        if after.seconds_to_first_step is not None:
            of_cause.append(after.seconds_to_first_step)
    results = list[Restarts]()
    for cause, count in counts.items():
        median_s = None
        if seconds[cause]:
            median_s = statistics.median(seconds[cause])
        restart = Restarts(
            cause=cause,
            count=count,
            lost_steps=lost_steps[cause],
            seconds_to_first_step=median_s,
        )
        results.append(restart)
    results.sort(key=lambda restart: (-restart.count, restart.cause))
    return results


def _cause(attempt: AttemptGoodput) -> str:
    if attempt.state and attempt.state not in PLAIN_STATES:
        return attempt.state.lower()
    if not attempt.attempt:
        return "no rank"
    if attempt.end in LAST:
        return attempt.end
    return "killed"
