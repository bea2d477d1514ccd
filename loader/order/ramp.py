"""Batch-size ramps: the global batch as a schedule. Each change begins a segment, as a change of weights does."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from ..errors import InvalidPlan
from .whole import MAX_GLOBAL_BATCH, whole

T = TypeVar("T")

GlobalBatch = int | Sequence[tuple[int, int]]
"""Slots per optimizer step over all ranks: one number, or [(step, number), ...] from each step on."""


def ramp_of(given: object) -> list[tuple[int, int]]:
    """(start step, slots) from step 0 on, entries that change nothing left out. Raises InvalidPlan."""
    if not isinstance(given, Sequence) or isinstance(given, str):
        return [(0, whole("global_batch", given, 1, MAX_GLOBAL_BATCH))]
    ramp: list[tuple[int, int]] = []
    low = high = 0  # the first entry is at step 0
    for number, entry in enumerate(given):
        try:
            start, slots = entry
        except (TypeError, ValueError):
            raise InvalidPlan(f"global_batch entry {entry!r}: (step, samples) is needed") from None
        start = whole(f"global_batch entry {number}: step", start, low, high)
        slots = whole(f"global_batch from step {start}", slots, 1, MAX_GLOBAL_BATCH)
        low, high = start + 1, 2**53
        if not ramp or ramp[-1][1] != slots:
            ramp.append((start, slots))
    if not ramp:
        raise InvalidPlan(
            f"global_batch = {given!r}: a number, or [(0, number), (step, number), ...], is needed"
        )
    return ramp


def joined(
    starts: Sequence[tuple[int, Mapping[str, int]]], ramp: Sequence[tuple[int, int]]
) -> tuple[list[tuple[int, Mapping[str, int]]], dict[int, int]]:
    """A schedule of weights and one of batches as one: (start step, weights) wherever either changes, and the batch of
    each of these starts. Both ascend and begin at step 0."""
    return cut_at(starts, dict(ramp)), dict(cut_at(ramp, dict(starts)))


def cut_at(starts: Sequence[tuple[int, T]], steps: Iterable[int]) -> list[tuple[int, T]]:
    """A schedule, (start step, what is in force), with an entry at these steps too. It ascends and begins at step 0."""
    given, now = dict(starts), starts[0][1]
    out: list[tuple[int, T]] = []
    for start in sorted({*given, *steps}):
        now = given.get(start, now)
        out.append((start, now))
    return out
