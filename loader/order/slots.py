"""L3, L4: the slots of one or several steps, from the mixture and each source's lanes, in canonical order.

A slot's group is its lane, d = (in-epoch position) mod D. A batch is sorted by bit-reversed group.
"""

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidPlan, InvalidRuntime
from .content import PlanContent, PlannedSource
from .mixture import MASK, MixtureSegment, Stream, stream_slots, whole_epochs
from .random.keyed_permutation import I64, U64, hash_fields, sub_array
from .random.lanes import locate_each
from .sources.growth import earlier_ordinals, removed_since
from .sources.window_view import stored_ordinals


def bit_reversed(value: I64, bits: int) -> I64:
    """Return the lowest `bits` bits of each value (int64, 0 <= value < 2^bits) in reverse order."""
    out = np.zeros_like(value)
    for bit in range(bits):
        out |= ((value >> bit) & 1) << (bits - 1 - bit)
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
    scaled = np.zeros(len(source), dtype=np.int64)
    for count in set(lanes.tolist()):
        in_lane = lanes[source] == count
        group = position_in_epoch[in_lane] & (count - 1)
        scaled[in_lane] = bit_reversed(group, count.bit_length() - 1) * (widest // count)
    if batch is not None:
        scaled += batch * widest
    return np.argsort(scaled, kind="stable").astype(np.int64, copy=False)


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
    """Return a bool per version ordinal (int64) of a view: True if no slot of this step may hold the sample.

    index: position of the view in `plan.source_names`.
    """
    source = list(plan.sources.values())[index]
    ordinals = stored_ordinals(source.view, ordinals)
    growths = plan.growths_of(source.source)
    held = removed_since(growths, source.growth, step, ordinals)
    for came, there in earlier_ordinals(growths, source.growth, ordinals):
        held |= plan.quarantine.holds(source.source, step, there, came)
    return held


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
    """Return (slot that holds this position of a source's stream, number of slots in the step). O(B)."""
    k, _, positions, in_epoch, (batch,) = _in_stream_order(plan, (step,))
    lanes = np.array([planned.shape.lanes for planned in plan.sources.values()], dtype=np.int64)
    order = canonical_order(k, in_epoch, lanes)
    return int(np.flatnonzero((k[order] == source) & (positions[order] == position))[0]), batch


def _in_stream_order(plan: PlanContent, steps: Sequence[int]) -> tuple[I64, I64, I64, I64, list[int]]:
    """Return (source, epoch, position, position in epoch), int64 in stream order, and each step's number of slots."""
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


def _stretches(plan: PlanContent, steps: Sequence[int]) -> list[tuple[Stream, MixtureSegment, int, int]]:
    """Return runs of steps in one segment of one stream: (stream, segment, first step in stream, number of steps)."""
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
    out: list[tuple[Stream, MixtureSegment, int, int]] = []
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
    """Return the view ordinals (int64) at (source as index into `planned`, epoch, position in epoch), all int64."""
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
    """Return the distinct values (int64 [m], m > 0), ascending, and each value's index, as `numpy.unique` does."""
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


MAX_ATTEMPTS = 8  # the run stops after these: eight corrupt samples in a row are no accident


def substitute(plan: PlanContent, source: int, position: int, attempt: int) -> tuple[int, int]:
    """Return (view ordinal, version ordinal) of a substitute for a bad sample.

    source: index into plan.source_names. position: the slot's i_k. attempt: 1, 2, ... MAX_ATTEMPTS. The substitute is
    from the same source, and never the slot's own sample unless that is the only one.
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

    after: the attempt that the slot already holds (0: its own sample). Skips samples that are `held_back`.
    """
    for attempt in range(after + 1, MAX_ATTEMPTS + 1):
        view_ordinal, ordinal = substitute(plan, source, position, attempt)
        if not held_back(plan, source, step, np.array([ordinal], np.int64))[0]:
            yield attempt, view_ordinal, ordinal


def planned_slots(plan: PlanContent, step: int) -> Slots:
    """Return a step's slots, with substitutes for quarantined samples.

    Packed sequences stay; their quarantined documents are masked. Raises InvalidRuntime for an invalid step;
    InvalidPlan if all substitutes of a slot are quarantined.
    """
    return planned_stack(plan, (plan.checked_step(step),)).slots


def planned_stack(plan: PlanContent, steps: Sequence[int], rank: int = 0, world_size: int = 1) -> Stacked:
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
    pairs = np.empty((len(slots), 2), dtype="<u8")
    pairs[:, 0] = _version_hashes(plan, slots)
    pairs[:, 1] = np.where(slots.valid, slots.ordinal.astype(np.uint64), _MASKED)
    return hashlib.blake2b(struct.pack("<Q", step) + pairs.tobytes(), digest_size=8).hexdigest()


def delivered_digest(step: int, slot_numbers: I64, identities: U64, crcs: I64) -> int:
    """Return this rank's digest of the data it read: the sum of its slots' hashes modulo 2^64.

    slot_numbers: int64 [n], canonical slot numbers in [0, B).
    identities: uint64 [n], identities of the delivered samples (a substitute has its own).
    crcs: int64 [n], CRC32C of the bytes read, 0 <= crc < 2^63. The sum over all ranks, modulo 2^64, is the same for
    every world size.
    """
    steps = np.full(len(slot_numbers), step, np.uint64)
    return int(delivered_hashes(steps, slot_numbers, identities, crcs).sum(dtype=np.uint64))


def delivered_hashes(steps: U64, slot_numbers: I64, identities: U64, crcs: I64) -> U64:
    """Return uint64 [n]: the slot hashes that `delivered_digest` sums. steps: uint64 [n], each slot's step."""
    hashed = sub_array(sub_array(hash_fields("delivered"), steps), slot_numbers.astype(np.uint64))
    hashed = sub_array(hashed, identities.astype(np.uint64))
    return sub_array(hashed, crcs.astype(np.uint64))


def _version_hashes(plan: PlanContent, slots: Slots) -> U64:
    by_source = [identity_hash(source.view.identity) for source in plan.sources.values()]
    return np.array(by_source, dtype=np.uint64)[slots.source]
