"""Schedules of numbers, such as batch-size ramps: each change begins a segment, like a change of weights."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from ..errors import InvalidPlan
from .random.plan_hash import MAX_GLOBAL_BATCH, whole

T = TypeVar("T")

GlobalBatch = int | Sequence[tuple[int, int]]
"""Slots per optimizer step over all ranks: a number, or [(first step, number), ...]."""


def ramp_of(value: object) -> list[tuple[int, int]]:
    return steps_of("global_batch", value, lambda name, slots: whole(name, slots, 1, MAX_GLOBAL_BATCH))


def steps_of(name: str, changes: object, checked: Callable[[str, Any], T]) -> list[tuple[int, T]]:
    """Return (start step, value) pairs from step 0 on, without entries that change nothing.

    changes: one value, or [(step, value), ...]. checked: (name for messages, value) -> the validated value.
    """
    if not isinstance(changes, Sequence) or isinstance(changes, str):
        return [(0, checked(name, changes))]
    ramp: list[tuple[int, T]] = []
    low = high = 0  # the first entry is at step 0
    for number, entry in enumerate(changes):
        try:
            start, value = entry
        except (TypeError, ValueError):
            raise InvalidPlan(f"{name} entry {entry!r}: (step, number) is needed") from None
        start = whole(f"{name} entry {number}: step", start, low, high)
        value = checked(f"{name} from step {start}", value)
        low, high = start + 1, 2**53
        if not ramp or ramp[-1][1] != value:
            ramp.append((start, value))
    if not ramp:
        raise InvalidPlan(f"{name} = {changes!r}: a number, or [(0, number), (step, number), ...], is needed")
    return ramp


def in_force(steps: Sequence[tuple[int, T]], step: int) -> T:
    """Return the value at a step, from an ascending schedule that starts at step 0."""
    return steps[bisect_right(steps, step, key=lambda entry: entry[0]) - 1][1]


def cut_at(steps: Sequence[tuple[int, T]], starts: Iterable[int]) -> list[tuple[int, T]]:
    """Return an ascending schedule from step 0, with additional entries at these steps."""
    return [(start, in_force(steps, start)) for start in sorted({*(start for start, _ in steps), *starts})]
