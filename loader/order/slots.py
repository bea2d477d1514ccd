"""L3, L4: compute the slots of one or several steps, in canonical order. Start reading at `stack_slots`.

The mixture (L2) lists the slots of a step in stream order, each with a source and a position in its stream. A slot's
lane is d = (position in the epoch) mod D. A batch is sorted by bit-reversed lane (L3), and each rank reads one stretch
of it (L4). The lanes' permutation (L1) then turns the positions of that stretch, and no others, into samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidRuntime
from .content import PlanContent
from .planned_source import PlannedSource
from .random.keyed_permutation import I64
from .random.lanes import locate_each
from .stream_order import StreamSlots, epoch_lengths, slots_in_stream_order


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """One step's global batch in canonical order. Arrays have length B."""

    source: NDArray[np.int32]
    """int32 [B]: index into plan.source_names."""
    position: I64
    """int64 [B]: i_k in the source's endless stream; -1 at padding."""
    epoch: I64
    """int64 [B]: position // N, unless the source grew."""
    ordinal: I64
    """int64 [B]: version ordinal; -1 at padding."""
    view_ordinal: I64
    """int64 [B]: view ordinal in [0, N); -1 at padding."""
    valid: NDArray[np.bool_]
    """bool [B]: False at padding."""
    attempt: NDArray[np.int8]
    """int8 [B]: 0 for the slot's own sample, else the substitute's number."""

    def __len__(self) -> int:
        return len(self.source)

    def part(self, rows: slice) -> "Slots":
        parts = {}
        for field in fields(self):
            column = getattr(self, field.name)
            parts[field.name] = column[rows]
        return Slots(**parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacked:
    """One rank's part of the slots of several steps, step after step."""

    slots: Slots
    """Slots of all steps."""
    number: I64
    """int64 [r]: each slot's number in the canonical order of its step."""
    starts: Sequence[int]
    """Index in `slots` of each step's first slot, then the number of all slots."""
    batches: Sequence[int]
    """Size of each step's global batch."""


def step_slots(plan: PlanContent, step: int) -> Slots:
    """Return all slots of a step, each with its own sample.

    Raises InvalidRuntime if the step is negative, not a whole number, or beyond int64 positions.
    """
    step = plan.checked_step(step)
    stacked = stack_slots(plan, (step,))
    return stacked.slots


def stack_slots(
    plan: PlanContent,
    steps: Sequence[int],
    rank: int = 0,
    world_size: int = 1,
) -> Stacked:
    """Return one rank's slots in ascending steps, each with its own sample.

    Costs O(B) arithmetic per step, and permutations, which cost most, for B / world_size slots. Raises InvalidRuntime:
    as `step_slots`; if world_size exceeds a batch.
    """
    planned = list(plan.sources.values())
    # L2, L3: the whole batches. Which slots are the rank's depends on all of them.
    stream = slots_in_stream_order(plan, steps)
    # L4: the rank's part, in canonical order. From here on everything has its length, [r].
    numbers_by_step = _rank_numbers(stream.batches, rank, world_size)
    number = np.concatenate(numbers_by_step)
    counts = [len(numbers) for numbers in numbers_by_step]  # [steps]: the rank's slots of each step
    row = _rank_rows(planned, stream, number, counts)
    source = stream.source[row]
    position = stream.position[row]
    epoch = stream.epoch[row]
    position_in_epoch = stream.position_in_epoch[row]
    lengths = epoch_lengths(planned)  # [sources]
    # With "mask" the last batch of an epoch is filled with positions from N on: padding.
    valid = position_in_epoch < lengths[source]

    # L1: the samples.
    n_slots = len(row)
    view_ordinal = np.full(n_slots, -1, np.int64)
    ordinal = np.full(n_slots, -1, np.int64)
    sample_rows = np.flatnonzero(valid)  # the others are padding
    if len(sample_rows):
        sample_source = source[sample_rows]
        sample_ordinals = locate_samples(
            plan.seed,
            planned,
            sample_source,
            epoch[sample_rows],
            position_in_epoch[sample_rows],
        )
        view_ordinal[sample_rows] = sample_ordinals
        ordinal[sample_rows] = _version_ordinals(planned, sample_source, sample_ordinals)

    slots = Slots(
        source=source.astype(np.int32),
        position=np.where(valid, position, -1),
        epoch=epoch,
        ordinal=ordinal,
        view_ordinal=view_ordinal,
        valid=valid,
        attempt=np.zeros(n_slots, dtype=np.int8),
    )
    return Stacked(
        slots=slots,
        number=number,
        starts=[0, *accumulate(counts)],
        batches=stream.batches,
    )


def _rank_numbers(
    batches: Sequence[int],
    rank: int,
    world_size: int,
) -> list[I64]:
    """Return the canonical numbers of a rank's slots in each step (int64)."""
    # Almost all steps have the same size: the numbers are computed once per size, not once per step.
    numbers_by_size = {}
    for size in dict.fromkeys(batches):  # in order: an error names the first size that is too small
        numbers = rank_slice(size, rank, world_size)
        numbers_by_size[size] = np.arange(numbers.start, numbers.stop)
    return [numbers_by_size[size] for size in batches]


def _rank_rows(
    planned: Sequence[PlannedSource],
    stream: StreamSlots,
    number: I64,
    counts: Sequence[int],
) -> I64:
    """Return the rows of `stream` (int64 [r]) of a rank's slots.

    number: int64 [r], canonical number of each slot in its step. counts: the rank's slots in each step.
    """
    batches = stream.batches
    n_steps = len(batches)
    batch_number = None  # not needed for a single batch
    if n_steps > 1:
        steps = np.arange(n_steps)
        batch_number = np.repeat(steps, batches)  # [m]: number of each slot's step
    # [m]: rows, step after step
    order = canonical_order(
        stream.source,
        stream.position_in_epoch,
        _lane_counts(planned),
        batch_number,
    )
    if len(number) == len(order):  # all slots are the rank's
        return order

    step_offsets = [0, *accumulate(batches[:-1])]  # [steps]: index in `order` of each step's first slot
    step_offset = np.repeat(step_offsets, counts)  # [r]
    return order[step_offset + number]


def _lane_counts(planned: Sequence[PlannedSource]) -> I64:
    lanes = [source.shape.lanes for source in planned]
    return np.array(lanes, np.int64)


def canonical_order(
    source: I64,
    position_in_epoch: I64,
    lanes: I64,
    batch: I64 | None = None,
) -> I64:
    """Return the indices, int64 [B], that stably sort a batch in stream order by bitrev(d)/D.

    source: int64 [B] index into lanes.
    position_in_epoch: int64 [B].
    lanes: int64 [sources], D of each source, powers of two.
    batch: int64 [B], ascending from 0: number of each slot's batch if there are several; each is sorted by itself.
    """
    most_lanes = int(lanes.max())
    if most_lanes == 1:
        return np.arange(len(source))  # already in order

    # The sort key is bitrev(d)/D in units of 1/most_lanes: a whole number below `most_lanes`, exact for every D.
    lane_key = np.zeros(len(source), dtype=np.int64)
    slot_lanes = lanes[source]  # [B]: D of each slot's source
    for lane_count in set(lanes.tolist()):
        has_count = slot_lanes == lane_count  # bool [B]: slots of sources with this D
        lane = position_in_epoch[has_count] & (lane_count - 1)  # d: position mod D, a power of two
        lane_bits = lane_count.bit_length() - 1
        units = most_lanes // lane_count
        lane_key[has_count] = bit_reversed(lane, lane_bits) * units
    if batch is not None:
        lane_key += batch * most_lanes  # batch after batch
    order = np.argsort(lane_key, kind="stable")
    return order.astype(np.int64, copy=False)


def bit_reversed(value: I64, bits: int) -> I64:
    """Return the lowest `bits` bits of each value (int64, 0 <= value < 2^bits) in reverse order."""
    out = np.zeros_like(value)
    highest_bit = bits - 1
    for bit in range(bits):
        is_set = (value >> bit) & 1
        mirror_bit = highest_bit - bit
        out |= is_set << mirror_bit
    return out


def rank_slice(
    global_batch: int,
    rank: int,
    world_size: int,
) -> slice:
    """Return the canonical slots of one rank: [r*B//R, (r+1)*B//R). All ranks' slots, in order, are the batch.

    Raises InvalidRuntime if world_size is outside [1, global_batch], or rank outside [0, world_size).
    """
    if world_size < 1:
        raise InvalidRuntime(
            f"world_size = {world_size}: at least 1 is needed",
            what="world_size",
            given=world_size,
            accepted="at least 1",
        )
    if world_size > global_batch:
        raise InvalidRuntime(
            f"world_size = {world_size} is more than global_batch = {global_batch}: some ranks would get no "
            "slot; use a larger global batch or fewer data-parallel ranks",
            what="world_size",
            given=world_size,
            accepted=f"at most {global_batch}",
        )
    if not 0 <= rank < world_size:
        raise InvalidRuntime(
            f"rank = {rank}: 0 <= rank < world_size = {world_size} is needed",
            what="rank",
            given=rank,
            accepted=f"0 to {world_size - 1}",
        )
    next_rank = rank + 1
    start = rank * global_batch // world_size
    stop = next_rank * global_batch // world_size
    return slice(start, stop)


def locate_samples(
    seed: int,
    planned: Sequence[PlannedSource],
    source: I64,
    epoch: I64,
    position_in_epoch: I64,
) -> I64:
    """Return the view ordinals, int64 [m], of the samples at positions in epochs. m > 0.

    source: int64 [m], index into planned. epoch, position_in_epoch: int64 [m].
    """
    # A batch has few distinct pairs of source and epoch. Number them from 0 to p - 1.
    epochs, epoch_index = _distinct(epoch)
    n_epochs = len(epochs)
    pair_code = source * n_epochs + epoch_index  # [m]: equal for slots of the same source and epoch
    pair_codes, pair_index = _distinct(pair_code)  # [p]; [m]: each slot's pair
    source_index, pair_epoch_index = np.divmod(pair_codes, n_epochs)  # [p] each
    pair_sources = [planned[index] for index in source_index.tolist()]  # [p]
    pair_epochs = epochs[pair_epoch_index].tolist()  # [p]

    # One call for all pairs: numpy's cost per call would otherwise arise once for each of them.
    shuffles = []
    for pair_source, pair_epoch in zip(pair_sources, pair_epochs, strict=True):
        shuffle = (pair_source.shape, pair_source.name, pair_epoch)
        shuffles.append(shuffle)
    ordinals = locate_each(seed, shuffles, pair_index, position_in_epoch)

    # In epoch 0 a list (`ListedView`) has its own order, in place of the shuffle.
    for pair, pair_source in enumerate(pair_sources):
        if pair_epochs[pair] != 0:
            continue
        list_order = getattr(pair_source.view, "first_epoch", None)
        if list_order is not None:
            is_of_pair = pair_index == pair
            ordinals[is_of_pair] = list_order[position_in_epoch[is_of_pair]]
    return ordinals


def _version_ordinals(
    planned: Sequence[PlannedSource],
    source: I64,
    view_ordinals: I64,
) -> I64:
    """Return the version ordinals, int64 [m], of view ordinals. source: int64 [m], index into planned; m > 0.

    Calls each view once: a call may read a table.
    """
    if (source == source[0]).all():
        only_source = planned[int(source[0])]
        return only_source.view.version_ordinals(view_ordinals)

    order = np.argsort(source, kind="stable")  # [m]: rows, source after source
    sources, first_rows = np.unique(source[order], return_index=True)  # [s]; [s]: index in `order`
    ordinals_by_view = np.split(view_ordinals[order], first_rows[1:])  # [s] arrays
    ordinals_by_source = []
    for index, own_view_ordinals in zip(sources.tolist(), ordinals_by_view, strict=True):
        view = planned[index].view
        ordinals = view.version_ordinals(own_view_ordinals)
        ordinals_by_source.append(ordinals)
    out = np.empty_like(view_ordinals)
    out[order] = np.concatenate(ordinals_by_source)
    return out


def _distinct(values: I64) -> tuple[I64, I64]:
    """Return the distinct values, ascending, and each value's index among them (int64 [m]). values: int64 [m], m > 0.

    The same as `numpy.unique`. If all values are equal, the usual case, it costs a tenth.
    """
    if (values == values[0]).all():
        only_value = values[:1]
        return only_value, np.zeros(len(values), np.int64)
    distinct, index = np.unique(values, return_inverse=True)
    return distinct, index


def find_slot(
    plan: PlanContent,
    step: int,
    source: int,
    position: int,
) -> int:
    """Return the number, in canonical order, of the slot with this position of a source's stream. O(B).

    source: index into plan.source_names. The step must use the position.
    """
    planned = list(plan.sources.values())
    stream = slots_in_stream_order(plan, (step,))
    order = canonical_order(
        stream.source,
        stream.position_in_epoch,
        _lane_counts(planned),
    )
    has_source = stream.source[order] == source
    has_position = stream.position[order] == position
    (slot,) = np.flatnonzero(has_source & has_position).tolist()
    return int(slot)
