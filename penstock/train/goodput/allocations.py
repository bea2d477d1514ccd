"""Match the allocations that a scheduler or launcher noted with the starts of a run's record."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from typing import Any, NamedTuple

from ..intervals import IntervalSum
from ..launch.launcher import Span
from ..launch.run_log import RankStart
from ..run_folder import Event

Attempts = Mapping[int, Mapping[str, Any]]
"""Number of a start -> what the record has of it, such as `at_us`: its beginning, in UTC microseconds."""
RECORDED = "RECORDED"
"""State of a start whose time is by the record only, without its queue and launch."""
UNACCOUNTED = "UNACCOUNTED"
"""State of a recorded start for which the scheduler's accounting has no time."""
PREEMPTED = "PREEMPTED"


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


def match_attempts(spans: Sequence[Span], attempts: Attempts, now_us: int) -> list[Allocation]:
    """Return the allocations of a launcher with the numbers of their starts; 0 if no rank came up.

    A launcher may begin a run again within a span: then each start has
    the time up to the next one's.
    """
    allocations = list[Allocation]()
    for span in spans:
        of_span = span_allocations(span, attempts, now_us)
        allocations.extend(of_span)
    return allocations


class _Beginning(NamedTuple):
    """Beginning of a start inside a span."""

    begun_us: int
    """UTC microseconds."""
    attempt: int
    """Number of the start; 0 if no rank came up."""
    noted: RankStart | None
    """Note of the launcher; None for a start that only the record has."""


def span_allocations(span: Span, attempts: Attempts, now_us: int) -> list[Allocation]:
    """Return the allocations of the starts in one span, in order; they sum to it."""
    ended_us = _end_us(span, now_us)
    beginnings = _beginnings(span, attempts, now_us)
    # A later start may be on a node whose clock is behind.
    in_order_us = accumulate((beginning.begun_us for beginning in beginnings), max)
    begins_us = [min(ended_us, begun_us) for begun_us in in_order_us]
    ends_us = [*begins_us[1:], ended_us]
    allocations = list[Allocation]()
    for beginning, begun_us, end_us in zip(beginnings, begins_us, ends_us, strict=True):
        is_last = len(allocations) == len(beginnings) - 1
        state = ""
        if is_last:  # the span's state is the scheduler's, of its last start only
            state = span.state
        noted = beginning.noted
        ranks_ended_us = None
        if noted is not None:
            ranks_ended_us = noted.ended_us
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


def _beginnings(span: Span, attempts: Attempts, now_us: int) -> list[_Beginning]:
    """Return the starts in a span, by the launcher's notes and by the record. The first one begins with the span."""
    # In order: a clock that jumps back may not put a later start before an earlier one.
    recorded = deque(span_starts(span, attempts, now_us))
    ends_us = [noted.begun_us for noted in span.starts[1:]]
    beginnings = list[_Beginning]()
    for noted, end_us in zip_longest(span.starts, ends_us):  # None: the last start has no next one
        own = list[int]()  # starts of the record up to the launcher's next one
        while recorded:
            number = recorded[0]
            if end_us is not None and attempts[number]["at_us"] >= end_us:
                break
            own.append(number)
            recorded.popleft()
        first = 0
        if own:
            first = own[0]
        beginning = _Beginning(noted.begun_us, first, noted)
        beginnings.append(beginning)
        _add_unnoted(beginnings, own[1:], attempts)
    _add_unnoted(beginnings, recorded, attempts)
    if not beginnings:
        no_rank = _Beginning(span.begun_us, 0, None)
        return [no_rank]
    first_beginning = beginnings[0]
    beginnings[0] = first_beginning._replace(begun_us=span.begun_us)
    return beginnings


def _add_unnoted(beginnings: list[_Beginning], numbers: Iterable[int], attempts: Attempts) -> None:
    """Append the beginnings of starts that only the record has."""
    for number in numbers:
        begun_us = attempts[number]["at_us"]
        beginning = _Beginning(begun_us, number, None)
        beginnings.append(beginning)


def _end_us(span: Span, now_us: int) -> int:
    """Return when a span ended, or the present if it lasts."""
    if span.ended_us is None:
        return now_us
    return span.ended_us


def with_unaccounted(allocations: Sequence[Allocation], attempts: Attempts) -> list[Allocation]:
    """Return the allocations, and one without time for each other start: its steps do not count as new later."""
    counted = {allocation.attempt for allocation in allocations}
    together = list(allocations)
    for number, facts in attempts.items():
        if number not in counted:
            at_us = facts["at_us"]
            without_time = Allocation(
                attempt=number,
                begun_us=at_us,
                ended_us=at_us,
                state=UNACCOUNTED,
            )
            together.append(without_time)
    together.sort(key=lambda allocation: allocation.begun_us)
    return together


def record_allocations(
    attempts: Attempts, events: Sequence[Event], intervals: Sequence[IntervalSum]
) -> list[Allocation]:
    """Return each start's time by the record only: from its first event to its last event or interval."""
    times_us = {number: [facts["at_us"]] for number, facts in attempts.items()}
    nodes = dict.fromkeys(attempts, 1)
    for event in events:
        if event.attempt in times_us:
            times_us[event.attempt].append(event.at_us)
    for interval in intervals:
        attempt = interval.attempt
        if attempt in times_us:
            times_us[attempt].append(interval.ended_us)
            nodes[attempt] = max(nodes[attempt], interval.nodes)
    allocations = list[Allocation]()
    for number, times in times_us.items():
        allocation = Allocation(
            attempt=number,
            begun_us=min(times),
            ended_us=max(times),
            nodes=nodes[number],
            state=RECORDED,
        )
        allocations.append(allocation)
    return allocations


def span_starts(span: Span, attempts: Attempts, now_us: int) -> list[int]:
    """Return the numbers of the starts that began in a span."""
    ended_us = _end_us(span, now_us)
    numbers = list[int]()
    for number, facts in attempts.items():
        begun_us = facts.get("at_us", 0)
        if span.begun_us <= begun_us <= ended_us:
            numbers.append(number)
    return sorted(numbers)
