"""L2: the source of a stream position, and the position in that source's own stream.

Integer weights q_k with sum W make a table of W entries, repeated for ever. In any prefix of the stream, each source is
within one sample of its exact share. A change of weights appends a segment that starts from the counts already used, so
nothing repeats. With `boundary="mask"` an epoch is ceil(N/B) whole batches.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import heapify, heappop, heappush

import numpy as np

from ..errors import InvalidPlan
from .random.keyed_permutation import I64

FILL = "fill"
MASK = "mask"


def check_boundary(
    boundary: object,
    sources: Mapping[str, object],
    segments: int,
    bucketed: bool,
) -> None:
    """Raise InvalidPlan for an unknown value, or for "mask" if the sources' epochs have no common end."""
    if boundary not in (FILL, MASK):
        raise InvalidPlan(
            f'boundary = {boundary!r}: "fill" or "mask" is needed',
            what="boundary",
            given=boundary,
            accepted=[FILL, MASK],
        )
    if boundary == FILL:
        return
    if bucketed:
        obstacle = "buckets, whose epochs end at different steps"
    elif len(sources) > 1:
        obstacle = f"{len(sources)} sources, whose epochs end at different steps"
    elif segments > 1:
        obstacle = "a schedule or a ramp, whose segments begin in the middle of an epoch"
    else:
        return
    raise InvalidPlan(
        f'boundary = "mask" with {obstacle}: it needs a single source. With "fill" nothing is lost, and a batch '
        "across an epoch's end goes on into the next epoch",
        what="boundary",
        given=obstacle.partition(",")[0],
        accepted="a single source",
    )


def epoch_steps(n: int, batch: int) -> int:
    """Return the number of steps in an epoch of n samples under "mask": ceil(n / batch)."""
    return -(-n // batch)


def mask_positions(
    n: int,
    batch: int,
    step: int,
) -> tuple[int, I64]:
    """Return a step's epoch under "mask", and its slots' positions in it in stream order, int64 [batch].

    Positions from n on are padding. O(batch).
    """
    steps = epoch_steps(n, batch)
    epoch, step_in_epoch = divmod(step, steps)
    first = step_in_epoch * batch
    stop = first + batch
    return epoch, np.arange(first, stop, dtype=np.int64)


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


@lru_cache(maxsize=64)
def quota_table(quotas: tuple[int, ...]) -> tuple[I64, I64]:
    """Return the repeating table of a mixture: (T, rank), int64 [W] each, read-only.

    quotas: a weight q_k per source in order of source name, 0 for sources left out; W is their sum.

    T[r] is the index of the source at r; rank[r] is the number of that source's earlier entries. In the quota method
    (docs/order.md), (count + 1)/q is compared as floor(2^64 (count + 1)/q): an integer is the same on any machine.
    """
    total = sum(quotas)
    table = np.empty(total, dtype=np.int64)
    rank = np.empty(total, dtype=np.int64)
    counts = [0] * len(quotas)  # entries of each source so far

    # After t entries, source k's exact share of them is t * q_k / W. A source waits until its exact share exceeds its
    # count, so that none runs ahead; then it is a candidate. The candidate with the smallest (count + 1)/q is next, so
    # that none falls behind. Two heaps make it O(W log sources).
    waiting = []  # (first t at which k is a candidate, k)
    for k, quota in enumerate(quotas):
        if quota:
            waiting.append((1, k))
    heapify(waiting)
    candidates: list[tuple[int, int]] = []  # ((count + 1)/q scaled, k)
    for t in range(1, total + 1):  # t: entries including this one
        while waiting and waiting[0][0] <= t:
            _, k = heappop(waiting)
            due = ((counts[k] + 1) << 64) // quotas[k]
            heappush(candidates, (due, k))
        _, k = heappop(candidates)
        row = t - 1
        table[row] = k
        rank[row] = counts[k]
        counts[k] += 1
        share_end = counts[k] * total // quotas[k]  # last t at which its exact share is at most its count
        candidate_from = share_end + 1
        heappush(waiting, (candidate_from, k))

    table.flags.writeable = False  # the cache returns the same arrays to every caller
    rank.flags.writeable = False
    return table, rank


def _quotas(segment: MixtureSegment, names: Sequence[str]) -> tuple[int, ...]:
    """Return the weight of each source, 0 for those left out: the key of `quota_table`."""
    quotas = [segment.weights.get(name, 0) for name in names]
    return tuple(quotas)


def stream_slots(
    segment: MixtureSegment,
    names: Sequence[str],
    step: int,
    global_batch: int,
    steps: int = 1,
) -> tuple[I64, I64]:
    """Return a step's stream positions in stream order: (source index into names, i_k), int64 [B] each.

    With `steps`, covers that many consecutive steps of the segment: int64 [steps * B]. The first must not be before
    segment.start_step. i_k counts the source's samples since step 0, over all segments.
    """
    quotas = _quotas(segment, names)
    table, rank = quota_table(quotas)
    table_length = len(table)

    # Whole cycles of the table before the step are counted as Python integers, which cannot overflow.
    first_slot = (step - segment.start_step) * global_batch
    cycle, first_row = divmod(first_slot, table_length)
    used = []  # samples of each source before this cycle
    for name, quota in zip(names, quotas, strict=True):
        base = segment.base.get(name, 0)
        used.append(base + cycle * quota)

    # i_k = samples used before this cycle + samples of the cycles since + earlier entries of the slot's own cycle.
    n_slots = steps * global_batch
    stop_row = first_row + n_slots
    row = np.arange(first_row, stop_row, dtype=np.int64)  # [B]: counted over this cycle and those after it
    n_cycles = row // table_length  # [B]: cycles completed since this one began
    table_row = row - n_cycles * table_length  # `row % table_length` would divide a second time
    source = table[table_row]
    used_before_cycle = np.array(used, dtype=np.int64)  # [sources]
    per_cycle = np.array(quotas, dtype=np.int64)  # [sources]
    position = used_before_cycle[source]  # [B]: a copy
    position += n_cycles * per_cycle[source]
    position += rank[table_row]
    return source, position


def segment_usage(
    segment: MixtureSegment,
    names: Sequence[str],
    step: int,
    global_batch: int,
) -> dict[str, int]:
    """Return source name -> samples used before a step of the segment, zeros left out."""
    quotas = _quotas(segment, names)
    table, _ = quota_table(quotas)
    slots = (step - segment.start_step) * global_batch
    n_cycles, rest = divmod(slots, len(table))
    counts = np.bincount(table[:rest], minlength=len(quotas))  # [sources]: of the cycle that has begun
    in_begun_cycle = counts.tolist()
    used: dict[str, int] = {}
    for k, name in enumerate(names):
        base = segment.base.get(name, 0)
        in_full_cycles = n_cycles * quotas[k]
        count = base + in_full_cycles + in_begun_cycle[k]
        if count:
            used[name] = count
    return used


def position_step(
    segment: MixtureSegment,
    names: Sequence[str],
    name: str,
    position: int,
    global_batch: int,
) -> int | None:
    """Return the step that uses a source's position, as if this segment had no end; the inverse of `stream_slots`.

    None if the source has no weight here, or an earlier segment used the position. Costs one pass over the table.
    """
    weight = segment.weights.get(name, 0)
    base = segment.base.get(name, 0)
    position_in_segment = position - base
    if not weight or position_in_segment < 0:
        return None

    quotas = _quotas(segment, names)
    table, _ = quota_table(quotas)
    cycle, rank = divmod(position_in_segment, weight)
    is_source = table == names.index(name)
    rows = np.flatnonzero(is_source)  # [q]: the source's rows of the table, in order
    row = int(rows[rank])
    slot = cycle * len(table) + row  # number of the slot since the segment's start
    return segment.start_step + slot // global_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Named sources mixed into batches. Steps are the stream's own: 0, 1, 2, ..."""

    names: tuple[str, ...]
    """Source names, ascending."""
    batch: int
    """Slots per step, unless a segment has its own."""
    segments: tuple[MixtureSegment, ...]
    """One or more segments, the first from step 0."""

    def current_segment(self, step: int) -> MixtureSegment:
        """Return the segment in force at a step; the last one if several begin there."""
        begun = bisect_right(
            self.segments,
            step,
            key=lambda segment: segment.start_step,
        )
        return self.segments[begun - 1]

    def segment_batch(self, segment: MixtureSegment) -> int:
        if segment.batch is None:
            return self.batch
        return segment.batch

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Slots per step, for each segment."""
        sizes = [self.segment_batch(segment) for segment in self.segments]
        return tuple(sizes)

    def used_before(self, step: int) -> dict[str, int]:
        segment = self.current_segment(step)
        batch = self.segment_batch(segment)
        return segment_usage(segment, self.names, step, batch)

    def step_of(self, name: str, position: int) -> int | None:
        """Return the step that uses a source's position; None if no step does."""
        for segment in reversed(self.segments):
            batch = self.segment_batch(segment)
            step = position_step(
                segment,
                self.names,
                name,
                position,
                batch,
            )
            # A later segment may begin before this step, and use other positions there.
            if step is not None and self.current_segment(step) is segment:
                return step
        return None


def chain_segments(
    weight_schedule: Sequence[tuple[int, Mapping[str, int]]],
    names: Sequence[str],
    global_batch: int,
    batches: Mapping[int, int] | None = None,
) -> tuple[MixtureSegment, ...]:
    """Return a stream's segments: each starts from the counts that the ones before it have used.

    weight_schedule: (start step, integer weights) of each segment, ascending, the first at step 0.
    names: sources of the stream, ascending.
    batches: start step -> slots per step of that segment; other segments, and the first, use `global_batch`.
    """
    if batches is None:
        batches = {}
    _, first_weights = weight_schedule[0]
    first = MixtureSegment(
        start_step=0,
        weights=first_weights,
        base={},
    )
    segments = [first]
    for start, weights in weight_schedule[1:]:
        before = segments[-1]
        batch_before = before.batch or global_batch
        base = segment_usage(before, names, start, batch_before)
        segment = MixtureSegment(
            start_step=start,
            weights=weights,
            base=base,
        )
        batch = batches.get(start, global_batch)
        if batch != global_batch:
            segment = replace(segment, batch=batch)
        segments.append(segment)
    return tuple(segments)
