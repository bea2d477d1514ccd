"""Micro batches: a rank's part of a step in pieces, for gradient accumulation. See `Batch.micro_batches`."""

from collections import Counter
from itertools import pairwise

from ..errors import InvalidRuntime
from ..order.plan import Plan
from .world import World


def micro_count(global_batch: int, world_size: int, micro_batch: int) -> int:
    """Pieces of a rank's part, of at most micro_batch slots each: as many as the largest part needs, on every rank, so
    that ranks stay in step."""
    largest = -(-global_batch // world_size)
    return -(-largest // micro_batch)


def checked_micro_batch(plan: Plan, world: World, micro_batch: object) -> int:
    """micro_batch as an int. Raises: InvalidRuntime where it is no whole number from 1 on, or a rank would get an empty
    piece (only at 1, where ranks' parts are unequal)."""
    number = micro_batch.__index__() if hasattr(micro_batch, "__index__") else 0
    if isinstance(micro_batch, bool) or number < 1:
        raise InvalidRuntime(f"micro_batch = {micro_batch!r}; a whole number of at least 1 is needed")
    for size in {size for stream in plan.streams.values() for size in stream.batch_sizes}:
        if size // world.world_size < micro_count(size, world.world_size, number):
            raise InvalidRuntime(
                f"micro_batch = {number} with a global batch of {size} on {world.world_size} ranks: some would have a "
                f"micro batch less; use {number + 1}, or a batch that the ranks divide"
            )
    return number


def micros_before(plan: Plan, end: int, world_size: int, micro_batch: int) -> int:
    """Micro batches of a rank in all steps before `end`. Costs the plan's segments, or its buckets."""
    steps: Counter[int] = Counter()
    ends = {None: end} if plan.buckets is None else dict(plan.buckets.turns.used_before(end).items())
    for label, own in ends.items():
        stream = plan.streams[label]
        starts = [min(segment.start_step, own) for segment in stream.segments]
        for size, (first, last) in zip(stream.batch_sizes, pairwise([*starts, own]), strict=True):
            steps[size] += last - first
    return sum(count * micro_count(size, world_size, micro_batch) for size, count in steps.items())
