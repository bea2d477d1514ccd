"""Which view, epoch and sample of it a stream position is, and which samples no slot may hold."""

import numpy as np
from numpy.typing import NDArray

from .content import PlanContent
from .growth import earlier_ordinals, removed_since
from .keys import I64


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
