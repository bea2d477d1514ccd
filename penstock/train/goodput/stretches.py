"""Split the time of a start into parts: starting, restoring, steps, waiting, saving, stopping, idle, back-off.

A start's time runs from its allocation to its end by the scheduler's accounting. Events of the first rank cut it into
stretches; the caller gives the share of steps' time that ranks waited. Where the launcher notes when all ranks had
ended, the rest is back-off. Time that nothing explains is unknown. So the parts of a start sum to its time.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ..run_folder import Event
from .allocations import Allocation

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
STEPS = "steps"
STOPS = ("stopped", "ended")
"""Last events of a start that did not fail."""
FAILURES = ("failed", "killed")
"""Events of a start that failed: by the first rank, or by its launcher, which found it killed."""
LAST = {"stopped": "stopping", "ended": "stopping", "failed": "idle", "killed": "idle"}
"""Event that ends the steps of a start -> part of the time after it."""


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


def stretches(events: Sequence[Event], *, is_noted: bool) -> Iterator[Stretch]:
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


def start_parts(
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
