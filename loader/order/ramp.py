"""Batch-size ramps: the global batch as a schedule. Each change begins a segment, as a change of weights does."""

from collections.abc import Mapping, Sequence

from ..errors import InvalidPlan
from .whole import MAX_GLOBAL_BATCH, whole

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
    weights, slots = dict(starts), dict(ramp)
    mixture, batch = starts[0][1], ramp[0][1]
    out: list[tuple[int, Mapping[str, int]]] = []
    batches: dict[int, int] = {}
    for start in sorted(weights.keys() | slots.keys()):
        mixture, batch = weights.get(start, mixture), slots.get(start, batch)
        out.append((start, mixture))
        batches[start] = batch
    return out, batches
