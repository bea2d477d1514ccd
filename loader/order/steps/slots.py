"""L3, L4: the slots of a step, or of several, from the mixture and each source's lanes, in canonical order.

The plan also decides which samples no slot may hold, and their substitutes, so that every run agrees. A slot's group is
its lane, d = (in-epoch position) mod D. A batch is sorted by bit-reversed group. That keeps the slots of one lane, and
so of the chunks that it reads, on as few ranks as possible at every world size. The part of each rank is a pure
function of (batch, world size): no messages between ranks.
"""

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidPlan, InvalidRuntime
from ..content import PlanContent, PlannedSource
from ..mixture import MASK, Segment, Stream, stream_slots, whole_epochs
from ..random.keyed_permutation import I64, U64, hash_fields, sub_array
from ..random.lanes import locate_each
from ..sources.growth import earlier_ordinals, removed_since


def bit_reversed(value: I64, bits: int) -> I64:
    """Return the lowest `bits` bits of each value (int64, 0 <= value < 2^bits) in reverse order."""
    out = np.zeros_like(value)
    for bit in range(bits):
        out |= ((value >> bit) & 1) << (bits - 1 - bit)
    return out


def canonical_order(source: I64, position_in_epoch: I64, lanes: I64, batch: I64 | None = None) -> I64:
    """Return the stable sort of a batch's stream order by bitrev(d)/D, as indices int64 [B].

    source: int64 [B] index into lanes.
    position_in_epoch: int64 [B].
    lanes: int64 [sources], D of each source, powers of two.
    batch: int64 [B], ascending from 0, number of each slot's batch if there are several; each is sorted by itself.
    Fractions are compared exactly, on the common scale max(D).
    """
    widest = int(lanes.max())
    if widest == 1:
        return np.arange(len(source))  # already in order
    scaled = np.zeros(len(source), dtype=np.int64)
    for count in set(lanes.tolist()):
        in_lane = lanes[source] == count
        group = position_in_epoch[in_lane] & (count - 1)
        scaled[in_lane] = bit_reversed(group, count.bit_length() - 1) * (widest // count)
    if batch is not None:
        scaled += batch * widest
    return np.argsort(scaled, kind="stable").astype(np.int64, copy=False)


def rank_slice(global_batch: int, rank: int, world_size: int) -> slice:
    """Return the canonical slots of one rank: [r*B//R, (r+1)*B//R). All ranks together make the batch, in order.

    Raises InvalidRuntime: world_size outside [1, global_batch], or rank outside [0, world_size).
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
    """Return (index, epoch, position in the epoch), int64 [m] each, of stream positions.

    k: int64 [m], index of the source in `plan.source_names`. If the source grows, the returned index is the view's.
    """
    n = np.array([planned.shape.n for planned in plan.sources.values()], np.int64)[k]
    index, epoch = k.copy(), position // n
    inside = position - epoch * n
    for source in np.flatnonzero(np.bincount(k)).tolist() if plan.grown_streams else ():
        name = plan.source_names[source]
        if name not in plan.grown_streams:
            continue
        of_source = np.flatnonzero(k == source)
        number, of_delta, epoch[of_source], inside[of_source] = plan.grown_streams[name].places(
            position[of_source]
        )
        for at, new in {*zip(number.tolist(), of_delta.tolist(), strict=True)}:
            index[of_source[(number == at) & (of_delta == new)]] = plan.view_index[name, at, new]
    return index, epoch, inside


def held_back(plan: PlanContent, index: int, step: int, ordinals: I64) -> NDArray[np.bool_]:
    """Return true per version ordinal (int64) of a view that no slot of this step may hold.

    Such a sample is quarantined, or missing in its source's version. index: of the view in `plan.source_names`.
    """
    source = list(plan.sources.values())[index]
    growths = plan.growths_of(source.source)
    held = removed_since(growths, source.growth, step, ordinals)
    for came, there in earlier_ordinals(growths, source.growth, ordinals):
        held |= plan.quarantine.holds(source.source, step, there, came)
    return held


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """The global batch of one step in canonical order. Every array has length B, its global batch."""

    source: NDArray[np.int32]
    """int32 [B]: index into plan.source_names."""
    position: I64
    """int64 [B]: i_k in the source's endless stream; -1 at padding."""
    epoch: I64
    """int64 [B]: position // N, unless the source grew."""
    ordinal: I64
    """int64 [B]: version ordinal, with the version's id the sample's permanent name; -1 at padding."""
    view_ordinal: I64
    """int64 [B] in [0, N); -1 at padding."""
    valid: NDArray[np.bool_]
    """bool [B]: False at padding."""
    attempt: NDArray[np.int8]
    """int8 [B]: 0 for the slot's own sample, else the number of its substitute."""

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
    """int64: number of each slot in the canonical order of its step."""
    starts: Sequence[int]
    """First slot of each step in `slots`, then the number of all slots."""
    batches: Sequence[int]
    """Slots of the global batch of each step."""


def slots_at(plan: PlanContent, step: int) -> Slots:
    """Return all slots of a step, each with its own sample.

    Cost and memory depend only on B, not on the step or N. Raises InvalidRuntime: step < 0, not a whole number, or
    beyond int64 positions.
    """
    step = plan.checked_step(step)
    return stacked_slots(plan, range(step, step + 1)).slots


def stacked_slots(plan: PlanContent, steps: Sequence[int], rank: int = 0, world_size: int = 1) -> Stacked:
    """Return one rank's slots of ascending steps, each with its own sample.

    The permutations, which cost most, are computed only for these slots: O(B) of arithmetic per step, and the order's
    full cost for B / world_size. Raises InvalidRuntime: as `slots_at`; world_size larger than a batch.
    """
    planned = list(plan.sources.values())
    k, epoch, position, in_epoch, sizes = _in_stream_order(plan, steps)
    lanes = np.array([source.shape.lanes for source in planned], dtype=np.int64)
    several = np.repeat(np.arange(len(sizes)), sizes) if len(sizes) > 1 else None
    order = canonical_order(k, in_epoch, lanes, several)
    part_of = {size: rank_slice(size, rank, world_size) for size in dict.fromkeys(sizes)}
    numbers = {size: np.arange(part.start, part.stop) for size, part in part_of.items()}
    starts = [0, *accumulate(len(numbers[size]) for size in sizes)]
    number = np.concatenate([numbers[size] for size in sizes])
    if world_size > 1:
        order = order[number + np.repeat([0, *accumulate(sizes[:-1])], np.diff(starts))]
    k, position, epoch, in_epoch = k[order], position[order], epoch[order], in_epoch[order]
    valid = in_epoch < np.array([source.shape.n for source in planned], dtype=np.int64)[k]
    view_ordinal = np.full(len(k), -1, np.int64)
    ordinal = np.full(len(k), -1, np.int64)
    real = np.flatnonzero(valid)
    if len(real):
        view_ordinal[real] = ordinals_at(plan.seed, planned, k[real], epoch[real], in_epoch[real])
        ordinal[real] = _of_versions(planned, k[real], view_ordinal[real])
    slots = Slots(
        source=k.astype(np.int32),
        position=np.where(valid, position, -1),
        epoch=epoch,
        ordinal=ordinal,
        view_ordinal=view_ordinal,
        valid=valid,
        attempt=np.zeros(len(k), dtype=np.int8),
    )
    return Stacked(slots=slots, number=number, starts=starts, batches=sizes)


def slot_of(plan: PlanContent, step: int, source: int, position: int) -> tuple[int, int]:
    """Return (slot of a step that holds this position of a source's stream, slots of the step). O(B)."""
    k, _, positions, in_epoch, (batch,) = _in_stream_order(plan, (step,))
    lanes = np.array([planned.shape.lanes for planned in plan.sources.values()], dtype=np.int64)
    order = canonical_order(k, in_epoch, lanes)
    return int(np.flatnonzero((k[order] == source) & (positions[order] == position))[0]), batch


def _in_stream_order(plan: PlanContent, steps: Sequence[int]) -> tuple[I64, I64, I64, I64, list[int]]:
    """Return (source, epoch, position, position in the epoch), int64 in stream order, and the slots of each step."""
    stretches = _stretches(plan, steps)
    sizes = [stream.batch_in(segment) for stream, segment, _, n in stretches for _ in range(n)]
    if plan.boundary == MASK:
        n = next(iter(plan.sources.values())).shape.n
        pairs = [whole_epochs(n, size, step) for size, step in zip(sizes, steps, strict=True)]
        epoch, in_epoch = (np.concatenate(column) for column in zip(*pairs, strict=True))
        return np.zeros(len(epoch), np.int64), epoch, epoch * n + in_epoch, in_epoch, sizes
    names, parts = plan.source_names, []
    for stream, segment, step, n_steps in stretches:
        k, position = stream_slots(segment, stream.names, step, stream.batch_in(segment), n_steps)
        if stream.names != names:  # buckets, or views of sources that grow
            k = np.array([names.index(name) for name in stream.names], dtype=np.int64)[k]
        parts.append((k, position))
    k, position = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
    k, epoch, in_epoch = places(plan, k, position)
    return k, epoch, position, in_epoch, sizes


def _stretches(plan: PlanContent, steps: Sequence[int]) -> list[tuple[Stream, Segment, int, int]]:
    """Return runs of steps in one segment of one stream: (stream, segment, its own first step, number of steps)."""
    for step in (steps[0], steps[-1]):
        plan.checked_step(step)
    if plan.buckets is None:
        only = plan.turn(steps[0]).stream
        segment = only.segment_at(steps[0])
        if segment is only.segment_at(steps[-1]) and steps[-1] - steps[0] + 1 == len(steps):
            return [(only, segment, steps[0], len(steps))]
        own = [(only, step) for step in steps]
    else:
        own = [(turn.stream, turn.step) for turn in map(plan.turn, steps)]
    out: list[tuple[Stream, Segment, int, int]] = []
    for stream, step in own:
        segment = stream.segment_at(step)
        before = out[-1] if out else None
        if before and before[0] is stream and before[1] is segment and before[2] + before[3] == step:
            out[-1] = (*before[:3], before[3] + 1)
        else:
            out.append((stream, segment, step, 1))
    return out


def ordinals_at(
    seed: int, planned: Sequence[PlannedSource], k: I64, epoch: I64, position_in_epoch: I64
) -> I64:
    """Return view ordinals (int64) of positions: source (index into `planned`), epoch, position in it, all int64."""
    epochs, number = _distinct(epoch)
    pairs, which = _distinct(k * len(epochs) + number)
    sources, numbers = np.divmod(pairs, len(epochs))
    of = [
        (planned[source].shape, planned[source].name, one)
        for source, one in zip(sources.tolist(), epochs[numbers].tolist(), strict=True)
    ]
    in_view = locate_each(seed, of, which, position_in_epoch)
    for pair, (source, place) in enumerate(zip(sources.tolist(), of, strict=True)):
        if place[2] == 0 and (first := getattr(planned[source].view, "first_epoch", None)) is not None:
            in_view[which == pair] = first[position_in_epoch[which == pair]]  # a list
    return in_view


def _distinct(values: I64) -> tuple[I64, I64]:
    """Return the distinct values (int64 [m], m > 0), ascending, and the index of each one's, as `numpy.unique`."""
    if (values == values[0]).all():  # the usual case, at a tenth of the cost
        return values[:1], np.zeros(len(values), np.int64)
    distinct, number = np.unique(values, return_inverse=True)
    return distinct, number


def _of_versions(planned: Sequence[PlannedSource], k: I64, view_ordinals: I64) -> I64:
    if (k == k[0]).all():
        return planned[int(k[0])].view.version_ordinals(view_ordinals)
    order = np.argsort(k, kind="stable")
    sources, starts = np.unique(k[order], return_index=True)
    parts = np.split(view_ordinals[order], starts[1:])
    out = np.empty_like(view_ordinals)
    out[order] = np.concatenate(
        [
            planned[source].view.version_ordinals(part)
            for source, part in zip(sources.tolist(), parts, strict=True)
        ]
    )
    return out


MAX_ATTEMPTS = 8  # then the run stops: eight corrupt samples in a row are no accident


def substitute(plan: PlanContent, source: int, position: int, attempt: int) -> tuple[int, int]:
    """Return (view ordinal, version ordinal) of a substitute for a bad sample.

    source: index into plan.source_names. position: i_k of the slot. attempt: 1, 2, ... MAX_ATTEMPTS. A pure function of
    these, from the same source, and never the slot's own sample (unless the source has no other).
    """
    planned = list(plan.sources.values())[source]
    stream = np.array([plan.source_names.index(planned.stream)], np.int64)
    _, epoch, in_epoch = places(plan, stream, np.array([position], np.int64))
    own = ordinals_at(plan.seed, [planned], np.zeros(1, np.int64), epoch, in_epoch)
    view_ordinal = planned.substitute_of(plan.seed, int(own[0]), int(epoch[0]), int(in_epoch[0]), attempt)
    ordinal = planned.view.version_ordinals(np.array([view_ordinal], dtype=np.int64))
    return view_ordinal, int(ordinal[0])


def substitutes(
    plan: PlanContent, step: int, source: int, position: int, after: int = 0
) -> Iterator[tuple[int, int, int]]:
    """Yield (attempt, view ordinal, version ordinal) of a slot's substitutes, in order of preference.

    after: the attempt that the slot holds already (0: its own sample). Samples that are quarantined at the step are
    skipped.
    """
    for attempt in range(after + 1, MAX_ATTEMPTS + 1):
        view_ordinal, ordinal = substitute(plan, source, position, attempt)
        if not held_back(plan, source, step, np.array([ordinal], np.int64))[0]:
            yield attempt, view_ordinal, ordinal


def planned_slots(plan: PlanContent, step: int) -> Slots:
    """Return the slots of a step, with substitutes for quarantined samples; sequences stay, their documents are masked.

    Raises InvalidRuntime for an impossible step; InvalidPlan if all substitutes of a slot are quarantined.
    """
    return planned_stack(plan, (plan.checked_step(step),)).slots


def planned_stack(plan: PlanContent, steps: Sequence[int], rank: int = 0, world_size: int = 1) -> Stacked:
    """Return one rank's slots of ascending steps, as `planned_slots`."""
    stacked = stacked_slots(plan, steps, rank, world_size)
    if plan.pack is None and (plan.quarantine.lists or any(len(source.removed) for source in plan.grown)):
        for step, start, stop in zip(steps, stacked.starts, stacked.starts[1:], strict=False):
            _take_substitutes(plan, step, stacked.slots.part(slice(start, stop)))
    return stacked


def _take_substitutes(plan: PlanContent, step: int, slots: Slots) -> None:
    planned = list(plan.sources.values())
    for index in sorted(set(slots.source.tolist())):
        name, slots_of_source = planned[index].source, np.flatnonzero(slots.source == index)
        for slot in slots_of_source[held_back(plan, index, step, slots.ordinal[slots_of_source])].tolist():
            position = int(slots.position[slot])
            substitute = next(substitutes(plan, step, index, position), None)
            if substitute is None:
                raise InvalidPlan(
                    f"step {step}, source {name!r}, position {position}: the sample and its {MAX_ATTEMPTS} substitutes "
                    "are all quarantined. So large a share of a source is left out with a predicate on its view"
                )
            slots.attempt[slot], slots.view_ordinal[slot], slots.ordinal[slot] = substitute


_MASKED = np.uint64(2**64 - 1)  # stands for the ordinal of a padded slot


@lru_cache(maxsize=4096)
def identity_hash(identity: str) -> int:
    """Return 64 bits for a version's id (`view.identity`), framed as keys are."""
    return hash_fields("identity", identity)


def slot_identities(plan: PlanContent, slots: Slots) -> U64:
    """Return uint64 [B]: a hash per slot of (version id, version ordinal), for `delivered_digest`."""
    return sub_array(_version_hashes(plan, slots), slots.ordinal.astype(np.uint64))


def planned_digest(step: int, slots: Slots, plan: PlanContent) -> str:
    """Return 16 hex digits over a step's planned identities in canonical order; costs no reads.

    blake2b (digest size 8) over u64 step, then per slot u64 identity hash and u64 version ordinal, all little-endian; a
    padded slot has ordinal 2^64 - 1. The same for every rank and world size.
    """
    pairs = np.empty((len(slots), 2), dtype="<u8")
    pairs[:, 0] = _version_hashes(plan, slots)
    pairs[:, 1] = np.where(slots.valid, slots.ordinal.astype(np.uint64), _MASKED)
    return hashlib.blake2b(struct.pack("<Q", step) + pairs.tobytes(), digest_size=8).hexdigest()


def delivered_digest(step: int, slot_numbers: I64, identities: U64, crcs: I64) -> int:
    """Return the rank-local digest of what was read: the sum modulo 2^64 of a hash per slot.

    slot_numbers: int64 [n], canonical slot numbers in [0, B).
    identities: uint64 [n], of the samples that were delivered (a substitute's own identity).
    crcs: int64 [n], CRC32C of the bytes read, 0 <= crc < 2^63.
    The sum over all ranks, modulo 2^64, is the same for every world size. An empty part gives 0.
    """
    steps = np.full(len(slot_numbers), step, np.uint64)
    return int(delivered_hashes(steps, slot_numbers, identities, crcs).sum(dtype=np.uint64))


def delivered_hashes(steps: U64, slot_numbers: I64, identities: U64, crcs: I64) -> U64:
    """Return uint64 [n]: the hash per slot that `delivered_digest` adds up. steps: uint64 [n], any steps."""
    hashed = sub_array(sub_array(hash_fields("delivered"), steps), slot_numbers.astype(np.uint64))
    hashed = sub_array(hashed, identities.astype(np.uint64))
    return sub_array(hashed, crcs.astype(np.uint64))


def _version_hashes(plan: PlanContent, slots: Slots) -> U64:
    by_source = [identity_hash(source.view.identity) for source in plan.sources.values()]
    return np.array(by_source, dtype=np.uint64)[slots.source]
