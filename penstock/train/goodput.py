"""Split the node-seconds of a run into parts: starting, restoring, steps, waiting, saving, stopping, idle, back-off.

A start's time runs from its allocation to its end by the scheduler's accounting. Events of the first rank cut it into
stretches; the caller gives the share of steps' time that ranks waited. Where the launcher notes when all ranks had
ended, the rest is back-off. Time that nothing explains is unknown. So the parts of a start sum to its time.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise, takewhile
from typing import Any, NamedTuple

from .intervals import IntervalSum
from .launch.launcher import Span
from .launch.run_log import RankStart
from .run_folder import Event

NEW_STEPS = "new steps"
"""The part that counts as goodput."""
PARTS = (
    "starting",
    "restoring",
    NEW_STEPS,
    "repeated steps",
    "waiting for data",
    "saving",
    "stopping",
    "idle",
    "back-off",
    "unknown",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Time that the scheduler gave to a start."""

    attempt: int
    """Number of the start."""
    begun_us: int
    """UTC microseconds of its beginning."""
    ended_us: int
    """UTC microseconds of its end."""
    nodes: int = 1
    """Number of nodes."""
    state: str = ""
    """State at its end, in the scheduler's word."""
    is_followed: bool = False
    """True if another start follows in the same allocation of nodes."""
    is_noted: bool = False
    """True if the launcher noted the start, whether or not a rank came up."""
    ranks_ended_us: int | None = None
    """UTC microseconds at which all of its ranks had ended, by the launcher; None while they run, or if unknown."""


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


class Stretch(NamedTuple):
    """Time up to an event, in one part; `STEPS` is divided later."""

    until_us: int
    """UTC microseconds of its end."""
    part: str
    """Part of `PARTS`, or `STEPS`."""
    begin: int = 0
    """Step that it begins with, if it is of steps."""
    end: int = 0
    """Step after its last one."""


STEPS = "steps"
RECORDED = "RECORDED"
"""State of a start whose time is by the record only, without its queue and launch."""
UNACCOUNTED = "UNACCOUNTED"
"""State of a recorded start for which the scheduler's accounting has no time."""
PREEMPTED = "PREEMPTED"
PLAIN_STATES = ("RUNNING", "COMPLETED", "FAILED", "REQUEUED", RECORDED, UNACCOUNTED)
"""Words of Slurm that are vaguer than the run's last event, and ours."""
STOPS = ("stopped", "ended")
"""Last events of a start that did not fail."""
INTERVAL = "interval"
"""Name of an event that stands for an interval: so many steps were done at its end."""
FAILURES = ("failed", "killed")
"""Events of a start that failed: by the first rank, or by its launcher, which found it killed."""
LAST = {"stopped": "stopping", "ended": "stopping", "failed": "idle", "killed": "idle"}
"""Event that ends the steps of a start -> part of the time after it."""


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
    marked = sorted([*events, *map(_interval_end, intervals)], key=lambda event: event.at_us)
    own: dict[int, list[Event]] = {allocation.attempt: [] for allocation in allocations}
    for event in marked:
        if event.attempt in own:
            own[event.attempt].append(event)
    results = list[AttemptGoodput]()
    done = 0
    for place, allocation in enumerate(allocations):
        own_events = own[allocation.attempt]
        end = max((event.step for event in own_events), default=0)
        later = [_first_step(own[following.attempt]) for following in allocations[place + 1 :]]
        next_begin = next((step for step in later if step is not None), end)
        first = next((event for event in own_events if event.name == "first_batch"), None)
        last = next((event.name for event in reversed(own_events) if event.name != INTERVAL), "")
        stretches = _stretches(own_events, is_noted=allocation.is_noted)
        wait_share = waits.get(allocation.attempt, 0.0)
        results.append(
            AttemptGoodput(
                attempt=allocation.attempt,
                nodes=allocation.nodes,
                parts=_parts(allocation, stretches, done, wait_share, last),
                first_step=_first_step(own_events) or 0,
                end_step=end,
                lost_steps=max(0, end - next_begin),
                seconds_to_first_step=None if first is None else (first.at_us - allocation.begun_us) / 1e6,
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
    ended_us = allocation.ended_us if allocation.ranks_ended_us is None else allocation.ranks_ended_us
    if last in STOPS:
        return None
    is_requeued = allocation.state == "REQUEUED" and allocation.ranks_ended_us is not None
    if last in FAILURES or allocation.is_followed or is_requeued:
        return ended_us
    return None


def _interval_end(interval: IntervalSum) -> Event:
    step = interval.end_step
    return Event(
        attempt=interval.attempt, number=-1, name=INTERVAL, at_us=interval.ended_us, step=step, facts={}
    )


def _wait_shares(intervals: Sequence[IntervalSum]) -> dict[int, float]:
    """Return start -> share of its steps' time that its ranks waited for data, from 0 to 1."""
    wait_s = defaultdict[int, float](float)
    step_s = defaultdict[int, float](float)
    for interval in intervals:
        wait_s[interval.attempt] += interval.wait_s
        step_s[interval.attempt] += interval.step_s
    return {
        attempt: min(1.0, wait_s[attempt] / whole_s) for attempt, whole_s in step_s.items() if whole_s > 0
    }


def match_attempts(
    spans: Sequence[Span], attempts: Mapping[int, Mapping[str, Any]], now_us: int
) -> list[Allocation]:
    """Return the allocations of a launcher with the numbers of their starts; 0 if no rank came up.

    attempts: Start -> what the record has of it. A launcher may begin a run again within a span: then each start has
    the time up to the next one's.
    """
    return [one for span in spans for one in span_allocations(span, attempts, now_us)]


class _Beginning(NamedTuple):
    """Beginning of a start inside a span."""

    begun_us: int
    """UTC microseconds."""
    attempt: int
    """Number of the start; 0 if no rank came up."""
    noted: RankStart | None
    """Note of the launcher; None for a start that only the record has."""


def span_allocations(span: Span, attempts: Mapping[int, Mapping[str, Any]], now_us: int) -> list[Allocation]:
    """Return the allocations of the starts in one span, in order; they sum to it."""
    ended_us = now_us if span.ended_us is None else span.ended_us
    beginnings = _beginnings(span, attempts, now_us)
    # A later start may be on a node whose clock is behind.
    begins_us = [
        min(ended_us, begun_us)
        for begun_us in accumulate((beginning.begun_us for beginning in beginnings), max)
    ]
    ends_us = [*begins_us[1:], ended_us]
    allocations = list[Allocation]()
    for beginning, begun_us, end_us in zip(beginnings, begins_us, ends_us, strict=True):
        is_last = len(allocations) == len(beginnings) - 1
        # The span's state is the scheduler's, of its last start only.
        state = span.state if is_last else ""
        noted = beginning.noted
        ranks_ended_us = None if noted is None else noted.ended_us
        # Slurm's accounting has REQUEUED after a preemption with a grace time, too; the launcher notes it.
        if noted is not None and noted.is_preempted and state in ("", "REQUEUED"):
            state = PREEMPTED
        allocations.append(
            Allocation(
                attempt=beginning.attempt,
                begun_us=begun_us,
                ended_us=end_us,
                nodes=span.nodes,
                state=state,
                is_followed=not is_last,
                is_noted=noted is not None,
                ranks_ended_us=ranks_ended_us,
            )
        )
    return allocations


def _beginnings(span: Span, attempts: Mapping[int, Mapping[str, Any]], now_us: int) -> list[_Beginning]:
    """Return the starts in a span, by the launcher's notes and by the record. The first one begins with the span."""
    inside = span_starts(span, attempts, now_us)
    results = list[_Beginning]()
    for place, noted in enumerate(span.starts):
        end_us = span.starts[place + 1].begun_us if place + 1 < len(span.starts) else None
        # In order: a clock that jumps back may not put a later start before an earlier one.
        own = list(
            takewhile(lambda number: end_us is None or attempts[number]["at_us"] < end_us, inside)  # noqa: B023
        )
        inside = inside[len(own) :]
        results.append(_Beginning(noted.begun_us, own[0] if own else 0, noted))
        results += [_Beginning(attempts[number]["at_us"], number, None) for number in own[1:]]
    results += [_Beginning(attempts[number]["at_us"], number, None) for number in inside]
    first = results[0] if results else _Beginning(span.begun_us, 0, None)
    return [first._replace(begun_us=span.begun_us), *results[1:]]


def with_unaccounted(
    allocations: Sequence[Allocation], attempts: Mapping[int, Mapping[str, Any]]
) -> list[Allocation]:
    """Return the allocations, and one without time for each other start: its steps do not count as new later."""
    counted = {allocation.attempt for allocation in allocations}
    others = [
        Allocation(attempt=number, begun_us=facts["at_us"], ended_us=facts["at_us"], state=UNACCOUNTED)
        for number, facts in attempts.items()
        if number not in counted
    ]
    return sorted([*allocations, *others], key=lambda allocation: allocation.begun_us)


def record_allocations(
    attempts: Mapping[int, Mapping[str, Any]], events: Sequence[Event], intervals: Sequence[IntervalSum]
) -> list[Allocation]:
    """Return each start's time by the record only: from its first event to its last event or interval."""
    times_us = {number: [facts["at_us"]] for number, facts in attempts.items()}
    nodes = dict.fromkeys(attempts, 1)
    for event in events:
        times_us.get(event.attempt, []).append(event.at_us)
    for interval in intervals:
        times_us.get(interval.attempt, []).append(interval.ended_us)
        nodes[interval.attempt] = max(nodes.get(interval.attempt, 1), interval.nodes)
    return [
        Allocation(
            attempt=number, begun_us=min(times), ended_us=max(times), nodes=nodes[number], state=RECORDED
        )
        for number, times in times_us.items()
    ]


def span_starts(span: Span, attempts: Mapping[int, Mapping[str, Any]], now_us: int) -> list[int]:
    """Return the numbers of the starts that began in a span."""
    ended_us = now_us if span.ended_us is None else span.ended_us
    return sorted(
        number for number, facts in attempts.items() if span.begun_us <= facts.get("at_us", 0) <= ended_us
    )


def span_goodput(starts: Sequence[AttemptGoodput]) -> AttemptGoodput:
    """Return the starts of one span as one: the last of them, with the time of all."""
    parts = {part: sum(start.parts[part] for start in starts) for part in PARTS}
    return replace(starts[-1], parts=parts)


def totals(attempts: Sequence[AttemptGoodput]) -> dict[str, float]:
    """Return part -> node-seconds of all starts."""
    return {part: sum(one.parts[part] * one.nodes for one in attempts) for part in PARTS}


def restarts(attempts: Sequence[AttemptGoodput]) -> list[Restarts]:
    """Return what restarts cost by the cause of the end before them, the most frequent first."""
    by_cause: dict[str, list[tuple[AttemptGoodput, AttemptGoodput]]] = {}
    for before, after in pairwise(attempts):
        by_cause.setdefault(_cause(before), []).append((before, after))
    results = []
    for cause, pairs in by_cause.items():
        seconds = [
            after.seconds_to_first_step for _, after in pairs if after.seconds_to_first_step is not None
        ]
        results.append(
            Restarts(
                cause=cause,
                count=len(pairs),
                lost_steps=sum(before.lost_steps for before, _ in pairs),
                seconds_to_first_step=statistics.median(seconds) if seconds else None,
            )
        )
    return sorted(results, key=lambda restart: (-restart.count, restart.cause))


def _cause(attempt: AttemptGoodput) -> str:
    if attempt.state and attempt.state not in PLAIN_STATES:
        return attempt.state.lower()
    if not attempt.attempt:
        return "no rank"
    return attempt.end if attempt.end in LAST else "killed"


def _first_step(events: Sequence[Event]) -> int | None:
    return next((event.step for event in events if event.name in ("restored", "first_batch")), None)


def _stretches(events: Sequence[Event], *, is_noted: bool) -> Iterator[Stretch]:
    """Yield the stretches between events, in order. is_noted: True if the launcher noted the start."""
    part = "starting"
    step = 0
    for event in events:
        took_us = int(event.facts.get("took_us", 0))
        before = step
        step = max(step, event.step)
        if event.name == "restored":
            yield Stretch(event.at_us - took_us, part)
            yield Stretch(event.at_us, "restoring")
        elif event.name == "first_batch":
            yield Stretch(event.at_us - took_us, part)
            yield Stretch(event.at_us, "waiting for data")
            part = STEPS
            step = event.step
        elif event.name == "saved":
            yield Stretch(event.at_us - took_us, part, before, step)
            yield Stretch(event.at_us, "saving")
        elif event.name in FAILURES:  # after its last step it waited for ranks that had died
            yield Stretch(event.at_us - took_us, part, before, step)
            part = LAST[event.name]
            yield Stretch(event.at_us, part)
        else:
            yield Stretch(event.at_us, part, before, step)
            part = LAST.get(event.name, part)
    if not events:
        part = "starting" if is_noted else "unknown"
    elif part == STEPS:
        part = "unknown"
    elif part == "starting":
        part = "idle"
    yield Stretch(2**63, part)


def _parts(
    allocation: Allocation, stretches: Iterable[Stretch], done: int, wait_share: float, last: str
) -> dict[str, float]:
    """Return part -> seconds of a start. done: steps that earlier starts did. last: its last event; "" without one."""
    parts = dict.fromkeys(PARTS, 0.0)
    at_us = allocation.begun_us
    ended_us = allocation.ended_us
    if allocation.ranks_ended_us is not None:
        ended_us = min(ended_us, max(at_us, allocation.ranks_ended_us))
        # After a failure the launcher keeps the nodes, and waits before the next start. Clocks may differ.
        rest = "stopping" if last in STOPS else "back-off"
        parts[rest] += (allocation.ended_us - ended_us) / 1e6
    for stretch in stretches:
        # Clipped to the time after the stretch before it, so that the parts add up.
        until_us = max(at_us, min(stretch.until_us, ended_us))
        seconds = (until_us - at_us) / 1e6
        at_us = until_us
        steps = stretch.end - stretch.begin
        if stretch.part != STEPS:
            parts[stretch.part] += seconds
        elif not steps:  # no step ended in it, so nothing explains the time
            parts["unknown"] += seconds
        else:
            repeated_share = max(0, min(stretch.end, done) - stretch.begin) / steps
            step_s = seconds * (1 - wait_share)
            parts["waiting for data"] += seconds * wait_share
            parts["repeated steps"] += step_s * repeated_share
            parts[NEW_STEPS] += step_s * (1 - repeated_share)
    return parts
