"""L2: the source of a stream position, the position in that source's own stream, and schedules by step (ramps).

Integer weights q_k with sum W make a table of W entries, repeated for ever. In any prefix of the stream, each source is
within one sample of its exact share. A change of weights appends a segment that starts from the counts already used, so
nothing repeats. With `boundary="mask"` an epoch is ceil(N/B) whole batches.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from heapq import heapify, heappop, heappush
from math import gcd, lcm
from typing import Any, TypeVar

import numpy as np

from ..errors import InvalidPlan
from .random.keyed_permutation import I64
from .random.plan_hash import MAX_GLOBAL_BATCH, whole

FILL = "fill"
MASK = "mask"


def check_boundary(boundary: object, sources: Mapping[str, object], segments: int, bucketed: bool) -> None:
    """Raise InvalidPlan for an unknown value, or for "mask" if the sources' epochs have no common end."""
    if boundary not in (FILL, MASK):
        raise InvalidPlan(f'boundary = {boundary!r}: "fill" or "mask" is needed')
    if boundary == FILL:
        return
    for there, what in (
        (len(sources) > 1 and not bucketed, f"{len(sources)} sources, whose epochs end at different steps"),
        (bucketed, "buckets, whose epochs end at different steps"),
        (segments > 1, "a schedule or a ramp, whose segments begin in the middle of an epoch"),
    ):
        if there:
            raise InvalidPlan(
                f'boundary = "mask" with {what}: it needs a single source. With "fill" nothing is lost, and a batch '
                "across an epoch's end goes on into the next epoch"
            )


def epoch_steps(n: int, batch: int) -> int:
    """Return the number of steps in an epoch of n samples under "mask": ceil(n / batch)."""
    return -(-n // batch)


def whole_epochs(n: int, batch: int, step: int) -> tuple[I64, I64]:
    """Return (epoch, position in it) for each slot of a step in stream order under "mask", int64 [batch] each.

    Positions from n on are padding. O(batch).
    """
    epoch, step_in_epoch = divmod(step, epoch_steps(n, batch))
    first = step_in_epoch * batch
    return np.full(batch, epoch, np.int64), np.arange(first, first + batch, dtype=np.int64)


MAX_TOTAL_WEIGHT = 2**16

Weight = int | float | str | Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureSegment:
    """Weights in force from a step on."""

    start_step: int
    """First step of the segment."""
    weights: Mapping[str, int]
    """Source name -> positive integer, reduced by their gcd, sum <= 2^16, zeros left out."""
    base: Mapping[str, int]
    """Source name -> samples used before start_step, zeros left out."""
    batch: int | None = None
    """Slots per step, or None for the stream's batch."""

    def to_json(self) -> dict[str, object]:
        out: dict[str, object] = {
            "start_step": self.start_step,
            "weights": dict(self.weights),
            "base": dict(self.base),
        }
        if self.batch is not None:
            out["batch"] = self.batch
        return out


def integer_weights(weights: Mapping[str, Weight]) -> dict[str, int]:
    """Return the weights as the order uses them: integers, reduced by their gcd, zeros left out, sorted by name.

    A float, a Fraction or a decimal string ("0.7", "1/3") is read as its printed decimal, and rounded to the nearest
    fraction with a denominator of at most 2^16.

    Raises InvalidPlan if a weight is not a number, is negative, or rounds to 0; if all are zero; if the sum exceeds
    2^16.
    """
    exact = {name: _fraction(name, weights[name]) for name in sorted(weights)}
    exact = {name: value for name, value in exact.items() if value}
    if not exact:
        raise InvalidPlan(f"weights {dict(weights)!r}: at least one source needs a weight above 0")
    scale = lcm(*(value.denominator for value in exact.values()))
    whole = {name: int(value * scale) for name, value in exact.items()}
    divisor = gcd(*whole.values())
    whole = {name: value // divisor for name, value in whole.items()}
    total = sum(whole.values())
    if total > MAX_TOTAL_WEIGHT:
        near = {name: value * MAX_TOTAL_WEIGHT // total for name, value in whole.items()}
        hint = ""
        if all(near.values()) and len(near) <= 8:
            hint = f"; close to yours: {near}"
        raise InvalidPlan(
            f"weights {_brief(whole)} sum to {total} after division by their gcd: at most "
            f"{MAX_TOTAL_WEIGHT} is accepted; round them to coarser numbers{hint}"
        )
    return whole


def _fraction(name: str, weight: Weight) -> Fraction:
    try:
        if isinstance(weight, bool):
            raise TypeError
        if isinstance(weight, int | Fraction):
            exact = Fraction(weight)
        else:
            exact = Fraction(str(weight))  # 0.1 means 1/10, not the double next to it
    except (TypeError, ValueError, ZeroDivisionError):
        raise InvalidPlan(
            f"source {name!r}: weight {weight!r} is not a finite number; "
            "an int, a Fraction, a float or a decimal string is accepted"
        ) from None
    if exact < 0:
        raise InvalidPlan(f"source {name!r}: weight {weight!r} is negative; 0 leaves the source out")
    near = exact.limit_denominator(MAX_TOTAL_WEIGHT)
    if exact and not near:
        raise InvalidPlan(
            f"source {name!r}: weight {weight!r} rounds to 0 at a resolution of 1/{MAX_TOTAL_WEIGHT}; "
            "give whole-number weights, or 0 to leave the source out"
        )
    return near


def _brief(weights: Mapping[str, int]) -> str:
    shown = ", ".join(f"{name}: {value}" for name, value in list(weights.items())[:8])
    return "{" + shown + (", ..." if len(weights) > 8 else "") + "}"


@lru_cache(maxsize=64)
def quota_table(quotas: tuple[int, ...]) -> tuple[I64, I64]:
    """Return the repeating table of a mixture: (T, rank), int64 [W] each, read-only.

    quotas: a weight per source in order of source name, 0 for sources left out; W is their sum.

    T[r] is the index of the source at r; rank[r] is the number of that source's earlier entries. In the quota method
    (docs/order.md), (count + 1)/q is compared as floor(2^64 (count + 1)/q).
    """
    total = sum(quotas)
    table = np.empty(total, dtype=np.int64)
    rank = np.empty(total, dtype=np.int64)
    # The candidate with the smallest (count + 1)/q is due. Two heaps make it O(W log sources): a source waits until its
    # exact share exceeds its count, so that none runs ahead.
    counts = [0] * len(quotas)
    waiting = [(1, k) for k, q in enumerate(quotas) if q]  # (first t at which k is a candidate, k)
    heapify(waiting)
    ready: list[tuple[int, int]] = []  # ((count + 1)/q scaled, k)
    for t in range(1, total + 1):
        while waiting and waiting[0][0] <= t:
            _, k = heappop(waiting)
            heappush(ready, (((counts[k] + 1) << 64) // quotas[k], k))
        _, k = heappop(ready)
        table[t - 1] = k
        rank[t - 1] = counts[k]
        counts[k] += 1
        next_turn = counts[k] * total // quotas[k] + 1
        heappush(waiting, (next_turn, k))
    table.flags.writeable = False  # the cache returns the same arrays to every caller
    rank.flags.writeable = False
    return table, rank


def stream_slots(
    segment: MixtureSegment, names: Sequence[str], step: int, global_batch: int, steps: int = 1
) -> tuple[I64, I64]:
    """Return a step's stream positions in stream order: (source index into names, i_k), int64 [B] each.

    With `steps`, covers that many consecutive steps of the segment: int64 [steps * B]. The first must not be before
    segment.start_step. i_k counts the source's samples since step 0, over all segments.
    """
    quotas = tuple(segment.weights.get(name, 0) for name in names)
    table, rank = quota_table(quotas)
    # Whole cycles of the table before the step are counted as Python integers, which cannot overflow.
    cycle, first = divmod((step - segment.start_step) * global_batch, len(table))
    offset = np.arange(first, first + steps * global_batch, dtype=np.int64)
    turn = offset // len(table)  # [B]: further cycles since `first`'s
    r = offset - turn * len(table)  # [B]: index into the table
    k = table[r]
    quota = np.array(quotas, dtype=np.int64)
    used = [segment.base.get(name, 0) + cycle * q for name, q in zip(names, quotas, strict=True)]
    before = np.array(used, dtype=np.int64)  # [sources]: samples used before this cycle
    return k, before[k] + turn * quota[k] + rank[r]


def used_before(
    segment: MixtureSegment, names: Sequence[str], step: int, global_batch: int
) -> dict[str, int]:
    quotas = tuple(segment.weights.get(name, 0) for name in names)
    table, _ = quota_table(quotas)
    cycle, rest = divmod((step - segment.start_step) * global_batch, len(table))
    begun = np.bincount(table[:rest], minlength=len(quotas))
    used: dict[str, int] = {}
    for name, q, extra in zip(names, quotas, begun, strict=True):
        count = segment.base.get(name, 0) + cycle * q + int(extra)
        if count:
            used[name] = count
    return used


def step_of(
    segment: MixtureSegment, names: Sequence[str], name: str, position: int, global_batch: int
) -> int | None:
    """Return the step that uses a source's position, as if this segment had no end; the inverse of `stream_slots`.

    None if the source has no weight here, or used that position earlier. Costs one pass over the table.
    """
    position_in_stream = position - segment.base.get(name, 0)
    if name not in segment.weights or position_in_stream < 0:
        return None
    quotas = tuple(segment.weights.get(entry, 0) for entry in names)
    table, _ = quota_table(quotas)
    cycle, rank = divmod(position_in_stream, segment.weights[name])
    p = cycle * len(table) + int(np.flatnonzero(table == names.index(name))[rank])
    return segment.start_step + p // global_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Named sources mixed into batches. Steps are the stream's own: 0, 1, 2, ..."""

    names: tuple[str, ...]
    """Source names, ascending."""
    batch: int
    """Slots per step, unless a segment has its own."""
    segments: tuple[MixtureSegment, ...]
    """One or more segments, the first from step 0."""

    def segment_at(self, step: int) -> MixtureSegment:
        """Return the segment in force at a step; the last one if several begin there."""
        return self.segments[bisect_right(self.segments, step, key=lambda segment: segment.start_step) - 1]

    def batch_in(self, segment: MixtureSegment) -> int:
        if segment.batch is None:
            return self.batch
        return segment.batch

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        return tuple(self.batch_in(segment) for segment in self.segments)

    def used_before(self, step: int) -> dict[str, int]:
        segment = self.segment_at(step)
        return used_before(segment, self.names, step, self.batch_in(segment))

    def step_of(self, name: str, position: int) -> int | None:
        for segment in reversed(self.segments):
            step = step_of(segment, self.names, name, position, self.batch_in(segment))
            if step is not None and self.segment_at(step) is segment:
                return step
        return None


def chain_segments(
    starts: Sequence[tuple[int, Mapping[str, int]]],
    names: Sequence[str],
    global_batch: int,
    batches: Mapping[int, int] | None = None,
) -> tuple[MixtureSegment, ...]:
    """Return segments with base counts from (start step, integer weights) pairs, ascending, the first at step 0.

    batches: start step -> slots per step of that segment; other segments use `global_batch`.
    """
    segments = [MixtureSegment(start_step=0, weights=starts[0][1], base={})]
    for start, weights in starts[1:]:
        before = segments[-1]
        base = used_before(before, names, start, before.batch or global_batch)
        batch = (batches or {}).get(start, global_batch)
        segment = MixtureSegment(start_step=start, weights=weights, base=base)
        if batch != global_batch:
            segment = replace(segment, batch=batch)
        segments.append(segment)
    return tuple(segments)


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
    low = 0
    high = 0  # the first entry is at step 0
    for number, entry in enumerate(changes):
        try:
            start, value = entry
        except (TypeError, ValueError):
            raise InvalidPlan(f"{name} entry {entry!r}: (step, number) is needed") from None
        start = whole(f"{name} entry {number}: step", start, low, high)
        value = checked(f"{name} from step {start}", value)
        low = start + 1
        high = 2**53
        if not ramp or ramp[-1][1] != value:
            ramp.append((start, value))
    if not ramp:
        raise InvalidPlan(f"{name} = {changes!r}: a number, or [(0, number), (step, number), ...], is needed")
    return ramp


def in_force(steps: Sequence[tuple[int, T]], step: int) -> T:
    """Return the value at a step, from an ascending schedule that starts at step 0."""
    return steps[bisect_right(steps, step, key=lambda entry: entry[0]) - 1][1]


def cut_at(steps: Sequence[tuple[int, T]], starts: Iterable[int]) -> list[tuple[int, T]]:
    """Return the schedule with an entry at each of its own starts and at `starts`, in order."""
    all_starts = {start for start, _ in steps}
    all_starts.update(starts)
    return [(start, in_force(steps, start)) for start in sorted(all_starts)]
