"""L3: the slots of a step, or of several at once, from the mixture and each source's lanes, in canonical order. Each
slot has its view, epoch and sample; some samples are held back."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from ..content import PlanContent, PlannedSource
from ..mixing.assign import canonical_order, rank_slice
from ..mixing.boundary import MASK, whole_epochs
from ..mixing.mixture import Segment, Stream, stream_slots
from ..random.keys import I64
from ..random.lanes import locate_each
from ..sources.growth import earlier_ordinals, removed_since


def places(plan: PlanContent, k: I64, position: I64) -> tuple[I64, I64, I64]:
    """(index, epoch, position in the epoch), int64 [m] each, of stream positions. k: int64 [m], the index of the source
    in `plan.source_names`. Where the source grows, the index that comes back is that of the view in question."""
    n = np.array([one.shape.n for one in plan.sources.values()], np.int64)[k]
    index, epoch = k.copy(), position // n
    inside = position - epoch * n
    for source in np.flatnonzero(np.bincount(k)).tolist() if plan.grown_streams else ():
        name = plan.source_names[source]
        if name not in plan.grown_streams:
            continue
        mine = np.flatnonzero(k == source)
        number, of_delta, epoch[mine], inside[mine] = plan.grown_streams[name].places(position[mine])
        for at, new in {*zip(number.tolist(), of_delta.tolist(), strict=True)}:
            index[mine[(number == at) & (of_delta == new)]] = plan.view_index[name, at, new]
    return index, epoch, inside


def held_back(plan: PlanContent, index: int, step: int, ordinals: I64) -> NDArray[np.bool_]:
    """bool per version ordinal (int64) of a view: in no slot of this step, because it is quarantined, or because its
    source's version does not have it any more. index: of the view in `plan.source_names`."""
    one = list(plan.sources.values())[index]
    growths = plan.growths_of(one.source)
    held = removed_since(growths, one.growth, step, ordinals)
    for came, there in earlier_ordinals(growths, one.growth, ordinals):
        held |= plan.quarantine.holds(one.source, step, there, came)
    return held


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """The global batch of one step in canonical order. Every array has length B, the global batch of that step."""

    source: NDArray[np.int32]
    """int32 [B]: index into plan.source_names."""
    position: I64
    """int64 [B]: i_k in the source's endless stream; -1 at padding."""
    epoch: I64
    """int64 [B]: position // N, unless the source grew."""
    ordinal: I64
    """int64 [B]: version ordinal, which with the version's id names the sample for ever; -1 at padding."""
    view_ordinal: I64
    """int64 [B] in [0, N); -1 at padding."""
    valid: NDArray[np.bool_]
    """bool [B]: False at padding."""
    attempt: NDArray[np.int8]
    """int8 [B]: 0 for the slot's own sample, else the number of the substitute that it holds."""

    def __len__(self) -> int:
        return len(self.source)

    def part(self, rows: slice) -> "Slots":
        """Some of them, in the same memory."""
        return Slots(**{one.name: getattr(self, one.name)[rows] for one in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacked:
    """One rank's part of the slots of several steps, one step behind the other."""

    slots: Slots
    """Slots of all steps."""
    number: I64
    """int64: number of each slot in the canonical order of its step."""
    starts: Sequence[int]
    """First slot of each step in `slots`, and at the end the number of all slots."""
    batches: Sequence[int]
    """Slots of the global batch of each step."""


def slots_at(plan: PlanContent, step: int) -> Slots:
    """All slots of a step, each with its own sample. Cost and memory depend on B alone, not on the step or on N.

    Raises InvalidRuntime: step < 0, not a whole number, or beyond int64 positions.
    """
    step = plan.checked_step(step)
    return stacked_slots(plan, range(step, step + 1)).slots


def stacked_slots(plan: PlanContent, steps: Sequence[int], rank: int = 0, world_size: int = 1) -> Stacked:
    """One rank's slots of ascending steps, each with its own sample. What costs most, the permutations, is done for
    these slots alone: O(B) of arithmetic per step, and the order's full cost for B / world_size. The sources share the
    calls of numpy; one that occurs costs a look at its view, and its keys once per epoch.

    Raises InvalidRuntime: as `slots_at`; world_size larger than a batch.
    """
    planned = list(plan.sources.values())
    k, epoch, position, in_epoch, sizes = _in_stream_order(plan, steps)
    lanes = np.array([one.shape.lanes for one in planned], dtype=np.int64)
    several = np.repeat(np.arange(len(sizes)), sizes) if len(sizes) > 1 else None
    order = canonical_order(k, in_epoch, lanes, several)
    parts = [rank_slice(size, rank, world_size) for size in sizes]
    starts = [0, *accumulate(part.stop - part.start for part in parts)]
    number = np.concatenate([np.arange(part.start, part.stop) for part in parts])
    if world_size > 1:
        order = order[number + np.repeat([0, *accumulate(sizes[:-1])], np.diff(starts))]
    k, position, epoch, in_epoch = k[order], position[order], epoch[order], in_epoch[order]
    valid = in_epoch < np.array([one.shape.n for one in planned], dtype=np.int64)[k]
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


def _in_stream_order(plan: PlanContent, steps: Sequence[int]) -> tuple[I64, I64, I64, I64, list[int]]:
    """(source, epoch, position, position in the epoch) of all slots of steps, in the order in which the streams have
    them, int64 each; and how many slots each step has."""
    stretches = _stretches(plan, steps)
    sizes = [stream.batch_in(segment) for stream, segment, _, n in stretches for _ in range(n)]
    if plan.boundary == MASK:
        n = next(iter(plan.sources.values())).shape.n
        pairs = [whole_epochs(n, size, step) for size, step in zip(sizes, steps, strict=True)]
        epoch, in_epoch = (np.concatenate(some) for some in zip(*pairs, strict=True))
        return np.zeros(len(epoch), np.int64), epoch, epoch * n + in_epoch, in_epoch, sizes
    names, found = plan.source_names, []
    for stream, segment, step, n_steps in stretches:
        k, position = stream_slots(segment, stream.names, step, stream.batch_in(segment), n_steps)
        if stream.names != names:  # buckets, or views of sources that grow
            k = np.array([names.index(name) for name in stream.names], dtype=np.int64)[k]
        found.append((k, position))
    k, position = found[0] if len(found) == 1 else map(np.concatenate, zip(*found, strict=True))
    k, epoch, in_epoch = places(plan, k, position)
    return k, epoch, position, in_epoch, sizes


def _stretches(plan: PlanContent, steps: Sequence[int]) -> list[tuple[Stream, Segment, int, int]]:
    """Steps that follow each other in one segment of one stream: (stream, segment, its own first step, how many)."""
    for step in (steps[0], steps[-1]):
        plan.checked_step(step)
    if plan.buckets is None:
        only = plan.turn(steps[0]).stream
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
    """View ordinals (int64) of positions, int64 of one length: source (index into `planned`), epoch, position in it."""
    epochs, number = np.unique(epoch, return_inverse=True)
    pairs, which = np.unique(k * len(epochs) + number, return_inverse=True)
    sources, numbers = np.divmod(pairs, len(epochs))
    of = [
        (planned[source].shape, planned[source].name, one)
        for source, one in zip(sources.tolist(), epochs[numbers].tolist(), strict=True)
    ]
    return locate_each(seed, of, which, position_in_epoch)


def _of_versions(planned: Sequence[PlannedSource], k: I64, view_ordinals: I64) -> I64:
    """Version ordinals (int64) of view ordinals (int64 [m], m > 0) of sources k, indices into `planned`."""
    order = np.argsort(k, kind="stable")
    sources, starts = np.unique(k[order], return_index=True)
    parts = np.split(view_ordinals[order], starts[1:])
    out = np.empty_like(view_ordinals)
    out[order] = np.concatenate(
        [planned[one].view.version_ordinals(part) for one, part in zip(sources.tolist(), parts, strict=True)]
    )
    return out
