"""Shares of waiting for data in the minutes before a run's newest step, by its run log or its intervals."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..train.intervals import IntervalSum
from .conditions import STARVED_S

THIRDS = 3
THIRD_US = round(STARVED_S * 1e6 / THIRDS)
"""Microseconds of a third of the time for which a starved run waits."""


@dataclass(frozen=True, slots=True)
class WaitedTime:
    ended_us: int
    """End of a step or interval, UTC microseconds."""
    wait_s: float
    """Seconds that training waited for data in it."""
    step_s: float
    """Seconds of its steps, the waiting included."""


def recent_waits(times: Iterable[WaitedTime]) -> tuple[float, ...]:
    """Return the share of waiting, from 0 to 1, of each five minutes of the newest fifteen, the newest first.

    () if one of them has no step: then it is unknown whether the run waited all the time.
    """
    known = list(times)
    newest_us = _newest_us(known)
    # Counted back from the newest step, not from now: a run log is a minute late.
    wait_s = [0.0] * THIRDS
    step_s = [0.0] * THIRDS
    for time in known:
        third = (newest_us - time.ended_us) // THIRD_US
        if third < THIRDS:
            wait_s[third] += time.wait_s
            step_s[third] += time.step_s
    if min(step_s) <= 0:
        return ()
    shares = list[float]()
    for third in range(THIRDS):
        # A rank's clock may count more waiting than the time between two steps.
        share = wait_s[third] / step_s[third]
        shares.append(min(1.0, share))
    return tuple(shares)


def newest_wait(times: Iterable[WaitedTime]) -> float | None:
    """Return the share of waiting in the five minutes before the newest step; None if it is unknown."""
    known = list(times)
    newest_us = _newest_us(known)
    begun_us = newest_us - THIRD_US
    wait_s = 0.0
    step_s = 0.0
    for time in known:
        if time.ended_us > begun_us:
            wait_s += time.wait_s
            step_s += time.step_s
    if step_s <= 0:
        return None
    share = wait_s / step_s
    return min(1.0, share)


def interval_waits(intervals: Iterable[IntervalSum]) -> list[WaitedTime]:
    """Return the waiting of a run's intervals."""
    times = list[WaitedTime]()
    for interval in intervals:
        time = WaitedTime(interval.ended_us, interval.wait_s, interval.step_s)
        times.append(time)
    return times


def _newest_us(times: Sequence[WaitedTime]) -> int:
    ends_us = [time.ended_us for time in times]
    return max(ends_us, default=0)
