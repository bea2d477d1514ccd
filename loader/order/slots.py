"""L3, L4: the slots of one or several steps, from the mixture and each source's lanes, in canonical order.

A slot's group is its lane, d = (in-epoch position) mod D. A batch is sorted by bit-reversed group.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidRuntime
from .content import PlanContent, PlannedSource
from .mixture import MASK, MixtureSegment, Stream, stream_slots, whole_epochs
from .random.keyed_permutation import I64, U64, hash_fields, sub_array
from .random.lanes import locate_each


def bit_reversed(value: I64, bits: int) -> I64:
    """Return the lowest `bits` bits of each value (int64, 0 <= value < 2^bits) in reverse order."""
    out = np.zeros_like(value)
    for bit in range(bits):
        is_set = (value >> bit) & 1
        out |= is_set << (bits - 1 - bit)
    return out


def canonical_order(source: I64, position_in_epoch: I64, lanes: I64, batch: I64 | None = None) -> I64:
    """Return the indices, int64 [B], that stably sort a batch in stream order by bitrev(d)/D.

    source: int64 [B] index into lanes.
    position_in_epoch: int64 [B].
    lanes: int64 [sources], D of each source, powers of two.
    batch: int64 [B], ascending from 0: number of each slot's batch if there are several; each is sorted by itself.
    """
    widest = int(lanes.max())
    if widest == 1:
        return np.arange(len(source))  # already in order
    # bitrev(d)/D in units of 1/widest: whole numbers below `widest`, exact for every D.
    rank = np.zeros(len(source), dtype=np.int64)
    for count in set(lanes.tolist()):
        slots = lanes[source] == count  # [B]: slots of sources with this D
        group = position_in_epoch[slots] & (count - 1)  # position mod D
        bits = count.bit_length() - 1
        rank[slots] = bit_reversed(group, bits) * (widest // count)
    if batch is not None:
        rank += batch * widest
    return np.argsort(rank, kind="stable").astype(np.int64, copy=False)


def rank_slice(global_batch: int, rank: int, world_size: int) -> slice:
    """Return the canonical slots of one rank: [r*B//R, (r+1)*B//R). All ranks' slots, in order, are the batch.

    Raises InvalidRuntime if world_size is outside [1, global_batch], or rank outside [0, world_size).
    """
    if world_size < 1:
        raise InvalidRuntime(f"world_size = {world_size}: at least 1 is needed")
    if world_size > global_batch:
        raise InvalidRuntime(
            f"world_size = {world_size} is more than global_batch = {global_batch}: some ranks would get no "
            "slot; use a larger global batch or fewer data-parallel ranks"
        )
    if not 0 <= rank < world_size:
        raise InvalidRuntime(f"rank = {rank}: 0 <= rank < world_size = {world_size} is needed")
    return slice(rank * global_batch // world_size, (rank + 1) * global_batch // world_size)


def places(plan: PlanContent, k: I64, position: I64) -> tuple[I64, I64, I64]:
    """Return (index, epoch, position in the epoch) of stream positions, int64 [m] each.

    k: int64 [m], index of the source in `plan.source_names`. If the source grows, the returned index is the view's.
    """
    epoch_length = np.array([source.shape.n for source in plan.sources.values()], np.int64)
    n = epoch_length[k]  # [m]: samples in an epoch of each slot's source
    view = k.copy()
    epoch = position // n
    position_in_epoch = position - epoch * n  # `position % n` would divide a second time
    if not plan.grown_streams:
        return view, epoch, position_in_epoch

    for source in np.flatnonzero(np.bincount(k)).tolist():  # sources with a slot
        name = plan.source_names[source]
        if name not in plan.grown_streams:
            continue
        rows = np.flatnonzero(k == source)  # [r]: this source's slots
        stage, is_delta, stage_epoch, stage_position = plan.grown_streams[name].places(position[rows])
        epoch[rows] = stage_epoch
        position_in_epoch[rows] = stage_position
        for number, delta in {*zip(stage.tolist(), is_delta.tolist(), strict=True)}:
            of_view = (stage == number) & (is_delta == delta)
            view[rows[of_view]] = plan.view_index[name, number, delta]
    return view, epoch, position_in_epoch


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
        return Slots(**{column.name: getattr(self, column.name)[rows] for column in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacked:
    """One rank's part of the slots of several steps, step after step."""

    slots: Slots
    """Slots of all steps."""
    number: I64
    """int64: each slot's number in the canonical order of its step."""
    starts: Sequence[int]
    """Index in `slots` of each step's first slot, then the number of all slots."""
    batches: Sequence[int]
    """Size of each step's global batch."""


class StreamSlots(NamedTuple):
    """All slots of several steps, in stream order: step after step, not yet sorted by group."""

    source: I64
    """int64 [m]: index into plan.source_names."""
    position: I64
    """int64 [m]: i_k in the source's endless stream."""
    epoch: I64
    """int64 [m]."""
    position_in_epoch: I64
    """int64 [m]: N or more at padding."""
    batches: list[int]
    """Slots of each step; they sum to m."""


def slots_at(plan: PlanContent, step: int) -> Slots:
    """Return all slots of a step, each with its own sample.

    Raises InvalidRuntime if the step is negative, not a whole number, or beyond int64 positions.
    """
    step = plan.checked_step(step)
    return stacked_slots(plan, range(step, step + 1)).slots


def stacked_slots(plan: PlanContent, steps: Sequence[int], rank: int = 0, world_size: int = 1) -> Stacked:
    """Return one rank's slots in ascending steps, each with its own sample.

    Costs O(B) arithmetic per step, and permutations, which cost most, for B / world_size slots. Raises InvalidRuntime:
    as `slots_at`; if world_size exceeds a batch.
    """
    planned = list(plan.sources.values())
    stream = _in_stream_order(plan, steps)
    batches = stream.batches
    rows, number, starts = _rank_rows(planned, stream, rank, world_size)

    k = stream.source[rows]
    epoch = stream.epoch[rows]
    position = stream.position[rows]
    position_in_epoch = stream.position_in_epoch[rows]
    epoch_length = np.array([source.shape.n for source in planned], dtype=np.int64)
    valid = position_in_epoch < epoch_length[k]

    view_ordinal = np.full(len(k), -1, np.int64)
    ordinal = np.full(len(k), -1, np.int64)
    real = np.flatnonzero(valid)
    if len(real):
        of_views = ordinals_at(plan.seed, planned, k[real], epoch[real], position_in_epoch[real])
        view_ordinal[real] = of_views
        ordinal[real] = _version_ordinals(planned, k[real], of_views)
    slots = Slots(
        source=k.astype(np.int32),
        position=np.where(valid, position, -1),
        epoch=epoch,
        ordinal=ordinal,
        view_ordinal=view_ordinal,
        valid=valid,
        attempt=np.zeros(len(k), dtype=np.int8),
    )
    return Stacked(slots=slots, number=number, starts=starts, batches=batches)


def _rank_rows(
    planned: Sequence[PlannedSource], stream: StreamSlots, rank: int, world_size: int
) -> tuple[I64, I64, list[int]]:
    """Return a rank's (rows of `stream`, canonical numbers in their steps, int64 [r] each), and `Stacked.starts`."""
    batches = stream.batches
    lanes = np.array([source.shape.lanes for source in planned], dtype=np.int64)
    batch_number = None
    if len(batches) > 1:
        batch_number = np.repeat(np.arange(len(batches)), batches)
    order = canonical_order(stream.source, stream.position_in_epoch, lanes, batch_number)

    # Almost all steps have the same size: the rank's numbers are computed once per size, not once per step.
    numbers_by_size = {}
    for size in dict.fromkeys(batches):
        part = rank_slice(size, rank, world_size)
        numbers_by_size[size] = np.arange(part.start, part.stop)
    numbers = [numbers_by_size[size] for size in batches]
    lengths = [len(step_numbers) for step_numbers in numbers]
    number = np.concatenate(numbers)
    if world_size > 1:
        first_rows = [0, *accumulate(batches[:-1])]  # [steps]: row of each step's first slot in `order`
        order = order[number + np.repeat(first_rows, lengths)]
    return order, number, [0, *accumulate(lengths)]


def slot_of(plan: PlanContent, step: int, source: int, position: int) -> tuple[int, int]:
    """Return (slot that holds this position of a source's stream, number of slots in the step). O(B)."""
    stream = _in_stream_order(plan, (step,))
    lanes = np.array([planned.shape.lanes for planned in plan.sources.values()], dtype=np.int64)
    order = canonical_order(stream.source, stream.position_in_epoch, lanes)
    is_match = (stream.source[order] == source) & (stream.position[order] == position)
    slot = int(np.flatnonzero(is_match)[0])
    return slot, stream.batches[0]


def _in_stream_order(plan: PlanContent, steps: Sequence[int]) -> StreamSlots:
    segments = _segment_steps(plan, steps)
    batches: list[int] = []
    for part in segments:
        batches += [part.batch] * part.n_steps

    if plan.boundary == MASK:
        n = next(iter(plan.sources.values())).shape.n  # "mask" needs a single source
        parts = [whole_epochs(n, batch, step) for batch, step in zip(batches, steps, strict=True)]
        epoch = np.concatenate([part_epoch for part_epoch, _ in parts])
        position_in_epoch = np.concatenate([part_position for _, part_position in parts])
        source = np.zeros(len(epoch), np.int64)
        return StreamSlots(source, epoch * n + position_in_epoch, epoch, position_in_epoch, batches)

    names = plan.source_names
    sources = []
    positions = []
    for part in segments:
        part_names = part.stream.names
        k, position = stream_slots(part.segment, part_names, part.first_step, part.batch, part.n_steps)
        if part_names != names:  # buckets, or views of sources that grow
            index_in_plan = np.array([names.index(name) for name in part_names], dtype=np.int64)
            k = index_in_plan[k]
        sources.append(k)
        positions.append(position)
    if len(segments) > 1:  # the usual single part needs no copy
        k = np.concatenate(sources)
        position = np.concatenate(positions)
    view, epoch, position_in_epoch = places(plan, k, position)
    return StreamSlots(view, position, epoch, position_in_epoch, batches)


class SegmentSteps(NamedTuple):
    """Consecutive steps of a stream within one of its segments."""

    stream: Stream
    """The plan's only stream, or a bucket's."""
    segment: MixtureSegment
    """Weights in force at all of these steps."""
    first_step: int
    """Number of the first step among the stream's own steps."""
    n_steps: int
    """1 or more."""

    @property
    def batch(self) -> int:
        return self.stream.batch_in(self.segment)


def _segment_steps(plan: PlanContent, steps: Sequence[int]) -> list[SegmentSteps]:
    """Return the parts of these steps that lie in one segment of one stream, in order."""
    for step in (steps[0], steps[-1]):
        plan.checked_step(step)
    if plan.buckets is None:
        only = plan.turn(steps[0]).stream
        segment = only.segment_at(steps[0])
        is_gapless = steps[-1] - steps[0] + 1 == len(steps)
        if (
            segment is only.segment_at(steps[-1]) and is_gapless
        ):  # the usual case, without a loop over the steps
            return [SegmentSteps(only, segment, steps[0], len(steps))]
        stream_steps = [(only, step) for step in steps]
    else:
        turns = [plan.turn(step) for step in steps]
        stream_steps = [(turn.stream, turn.step) for turn in turns]

    out: list[SegmentSteps] = []
    for stream, step in stream_steps:
        segment = stream.segment_at(step)
        if out:
            last = out[-1]
            is_same_segment = last.stream is stream and last.segment is segment
            if is_same_segment and last.first_step + last.n_steps == step:
                out[-1] = last._replace(n_steps=last.n_steps + 1)
                continue
        out.append(SegmentSteps(stream, segment, step, 1))
    return out


def ordinals_at(
    seed: int, planned: Sequence[PlannedSource], k: I64, epoch: I64, position_in_epoch: I64
) -> I64:
    """Return the view ordinals (int64) at (source as index into `planned`, epoch, position in epoch), all int64."""
    epochs, epoch_index = _distinct(epoch)
    pairs, pair_index = _distinct(k * len(epochs) + epoch_index)  # one number per (source, epoch)
    pair_source, pair_epoch_index = np.divmod(pairs, len(epochs))
    sources = [planned[source] for source in pair_source.tolist()]
    pair_epochs = epochs[pair_epoch_index].tolist()

    keyed = [(source.shape, source.name, one) for source, one in zip(sources, pair_epochs, strict=True)]
    ordinals = locate_each(seed, keyed, pair_index, position_in_epoch)
    for pair, source in enumerate(sources):
        if pair_epochs[pair] != 0:
            continue
        first_epoch = getattr(source.view, "first_epoch", None)
        if first_epoch is not None:  # a list: its own order first, then the shuffles
            rows = pair_index == pair
            ordinals[rows] = first_epoch[position_in_epoch[rows]]
    return ordinals


def _distinct(values: I64) -> tuple[I64, I64]:
    """Return the distinct values (int64 [m], m > 0), ascending, and each value's index, as `numpy.unique` does."""
    if (values == values[0]).all():  # the usual case, at a tenth of the cost
        return values[:1], np.zeros(len(values), np.int64)
    distinct, number = np.unique(values, return_inverse=True)
    return distinct, number


def _version_ordinals(planned: Sequence[PlannedSource], k: I64, view_ordinals: I64) -> I64:
    """Return version ordinals, int64 [m]: one call per view, which may cost a read of a table."""
    if (k == k[0]).all():
        return planned[int(k[0])].view.version_ordinals(view_ordinals)
    order = np.argsort(k, kind="stable")  # [m]: rows, source after source
    sources, starts = np.unique(k[order], return_index=True)
    parts = np.split(view_ordinals[order], starts[1:])
    in_versions = []
    for source, part in zip(sources.tolist(), parts, strict=True):
        in_versions.append(planned[source].view.version_ordinals(part))
    out = np.empty_like(view_ordinals)
    out[order] = np.concatenate(in_versions)
    return out


_MASKED = np.uint64(2**64 - 1)  # ordinal of a padded slot


@lru_cache(maxsize=4096)
def identity_hash(identity: str) -> int:
    """Return a 64-bit hash of a version's id (`view.identity`), framed like the fields of `key`."""
    return hash_fields("identity", identity)


def slot_identities(plan: PlanContent, slots: Slots) -> U64:
    """Return uint64 [B]: each slot's hash of (version id, version ordinal), for `delivered_digest`."""
    return sub_array(_version_hashes(plan, slots), slots.ordinal.astype(np.uint64))


def planned_digest(step: int, slots: Slots, plan: PlanContent) -> str:
    """Return a hash of a step's planned identities in canonical order, as 16 hex digits. Reads nothing.

    blake2b (digest size 8) over u64 step, then per slot u64 identity hash and u64 version ordinal, all little-endian; a
    padded slot has ordinal 2^64 - 1.
    """
    pairs = np.empty((len(slots), 2), dtype="<u8")  # little-endian on every machine
    pairs[:, 0] = _version_hashes(plan, slots)
    pairs[:, 1] = np.where(slots.valid, slots.ordinal.astype(np.uint64), _MASKED)
    message = struct.pack("<Q", step) + pairs.tobytes()
    return hashlib.blake2b(message, digest_size=8).hexdigest()


def delivered_digest(step: int, slot_numbers: I64, identities: U64, crcs: I64) -> int:
    """Return this rank's digest of the data it read: the sum of its slots' hashes modulo 2^64.

    slot_numbers: int64 [n], canonical slot numbers in [0, B).
    identities: uint64 [n], identities of the delivered samples (a substitute has its own).
    crcs: int64 [n], CRC32C of the bytes read, 0 <= crc < 2^63. The sum over all ranks, modulo 2^64, is the same for
    every world size.
    """
    steps = np.full(len(slot_numbers), step, np.uint64)
    hashes = delivered_hashes(steps, slot_numbers, identities, crcs)
    return int(hashes.sum(dtype=np.uint64))  # a sum, so that the ranks' digests add up in any order


def delivered_hashes(steps: U64, slot_numbers: I64, identities: U64, crcs: I64) -> U64:
    """Return uint64 [n]: the slot hashes that `delivered_digest` sums. steps: uint64 [n], each slot's step."""
    hashed = sub_array(hash_fields("delivered"), steps)
    hashed = sub_array(hashed, slot_numbers.astype(np.uint64))
    hashed = sub_array(hashed, identities.astype(np.uint64))
    return sub_array(hashed, crcs.astype(np.uint64))


def _version_hashes(plan: PlanContent, slots: Slots) -> U64:
    """Return uint64 [B]: the `identity_hash` of each slot's version."""
    by_source = [identity_hash(source.view.identity) for source in plan.sources.values()]
    return np.array(by_source, dtype=np.uint64)[slots.source]
