"""L3: the slots of a step, from the mixture and each source's lanes, in canonical order."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .assign import canonical_order
from .boundary import MASK, whole_epochs
from .content import PlanContent, PlannedSource
from .keys import I64
from .lanes import locate
from .mixture import stream_slots
from .places import places


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """The global batch of one step in canonical order; every array has length B, the global batch of that step.

    source: int32, index into plan.source_names. position: int64, i_k in the source's endless stream.
    epoch: int64, position // N, unless its source grew. view_ordinal: int64 in [0, N). ordinal: int64, the version
    ordinal, which together with the version's id names the sample for ever. valid: bool, False at padding, whose
    position and ordinals are -1. attempt: int8, 0 for the slot's own sample, else the number of the substitute that it
    holds.
    """

    source: NDArray[np.int32]
    position: I64
    epoch: I64
    ordinal: I64
    view_ordinal: I64
    valid: NDArray[np.bool_]
    attempt: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.source)


def slots_at(plan: PlanContent, step: int) -> Slots:
    """All slots of a step, each with its own sample. Cost and memory depend on B alone, not on the step or on N.

    Raises InvalidRuntime: step < 0, not a whole number, or beyond int64 positions.
    """
    step = plan.checked_step(step)
    turn = plan.turn(step)
    stream = turn.stream
    planned = list(plan.sources.values())
    if plan.boundary == MASK:
        k = np.zeros(stream.batch, np.int64)
        epoch, in_epoch = whole_epochs(planned[0].shape.n, stream.batch, turn.step)
        position = epoch * planned[0].shape.n + in_epoch
    else:
        segment = stream.segment_at(turn.step)
        k, position = stream_slots(segment, stream.names, turn.step, stream.batch_in(segment))
        if stream.names != plan.source_names:  # buckets, or views of sources that grow
            names = plan.source_names
            k = np.array([names.index(name) for name in stream.names], dtype=np.int64)[k]
        k, epoch, in_epoch = places(plan, k, position)
    lanes = np.array([one.shape.lanes for one in planned], dtype=np.int64)
    order = canonical_order(k, in_epoch, lanes)
    k, position, epoch, in_epoch = k[order], position[order], epoch[order], in_epoch[order]
    valid = in_epoch < np.array([one.shape.n for one in planned], dtype=np.int64)[k]
    view_ordinal = np.full(len(k), -1, np.int64)
    ordinal = np.full(len(k), -1, np.int64)
    for index in np.unique(k):
        mine = np.flatnonzero((k == index) & valid)
        one = planned[index]
        view_ordinal[mine] = ordinals_at(plan.seed, one, epoch[mine], in_epoch[mine])
        ordinal[mine] = one.view.version_ordinals(view_ordinal[mine])
    return Slots(
        source=k.astype(np.int32),
        position=np.where(valid, position, -1),
        epoch=epoch,
        ordinal=ordinal,
        view_ordinal=view_ordinal,
        valid=valid,
        attempt=np.zeros(len(k), dtype=np.int8),
    )


def ordinals_at(seed: int, planned: PlannedSource, epoch: I64, position_in_epoch: I64) -> I64:
    """View ordinals (int64) of one source at (epoch, position in that epoch), both int64 of one length."""
    first, last = int(epoch.min()), int(epoch.max())
    if first == last:
        return locate(planned.shape, seed, planned.name, first, position_in_epoch)
    out = np.empty_like(position_in_epoch)
    for one in np.unique(epoch).tolist():
        here = epoch == one
        out[here] = locate(planned.shape, seed, planned.name, one, position_in_epoch[here])
    return out
