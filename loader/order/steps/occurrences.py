"""The way back from a sample to the steps whose batches hold it: L1 to L3 inverted, epoch by epoch."""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

import numpy as np

from ...errors import InvalidRuntime
from ..content import PlanContent, PlannedSource
from ..random.inverse_lanes import position_of
from ..sources.packed_view import PackedView
from .slots import planned_stack, slot_of


class Occurrence(NamedTuple):
    """One slot that held a sample."""

    step: int
    """Global step."""
    slot: int
    """Number of the slot in the canonical order of the step's global batch."""
    epoch: int
    """Epoch of the source."""


def occurrences(
    plan: PlanContent, source: str, key: str, before: int, ordinal: int | None = None
) -> list[Occurrence]:
    """Return the slots of a source's sample in steps 0 ... before - 1, by step.

    A slot counts where the sample is its own; a sample that stands in for another is not looked for. With packing,
    slots are the sequences with pieces of the document.

    ordinal: the sample's in one of the versions, where it is known; views that have the key there look for no key.

    Costs a millisecond or two per epoch at any N: the sort of the step's batch, and a pass over the mixture's table.
    With packing also a pass over the table of pieces. Raises: InvalidRuntime for a source or a key that the plan does
    not have, and for a bad step.
    """
    views = [one for one in plan.sources.values() if one.source == source]
    if not views:
        names = ", ".join(dict.fromkeys(one.source for one in plan.sources.values()))
        raise InvalidRuntime(f"source = {source!r}: the plan has {names}")
    before, used = plan.checked_step(before), plan.used_before(before)
    found, there = set[Occurrence](), {one.name: _view_ordinals(one, key, ordinal) for one in views}
    if all(ordinals is None for ordinals in there.values()):
        raise InvalidRuntime(
            f"key = {key!r}: no view of source {source!r} has a sample of this key; keys are what `batch.ids` and "
            "`View.keys` give"
        )
    for one in views:
        for view_ordinal in there[one.name] or ():
            for epoch, position in _positions(plan, one, view_ordinal, used.get(one.stream, 0)):
                step = plan.step_of(one.name, position)
                if step is None or step >= before:
                    continue
                slot, batch = slot_of(plan, step, plan.source_names.index(one.name), position)
                alone = planned_stack(plan, (step,), slot, batch).slots
                if not alone.attempt[0]:
                    found.add(Occurrence(step, slot, epoch))
    return sorted(found)


def _view_ordinals(one: PlannedSource, key: str, known: int | None) -> list[int] | None:
    """Return the view ordinals of a key: one, or those of the sequences with its pieces; None where it has none.

    known: version ordinal at which the key may be found, which costs less than to look for it.
    """

    def version_ordinal(x: int) -> int:
        return int(one.view.version_ordinals(np.array([x], np.int64))[0])

    here = known is not None and len(one.view) > 0 and known <= version_ordinal(len(one.view) - 1)
    if known is not None and here and one.view.keys(np.array([known], np.int64)) == [key]:
        ordinal = known
    else:
        (ordinal,) = one.view.ordinals([key]).tolist()
    if ordinal < 0:
        return None
    if isinstance(one.view, PackedView):
        return one.view.table.sequences_of(ordinal)
    # View ordinals keep the version's order.
    at = bisect_left(range(len(one.view)), ordinal, key=version_ordinal)
    return [at] if at < len(one.view) and version_ordinal(at) == ordinal else None


def _positions(
    plan: PlanContent, one: PlannedSource, view_ordinal: int, used: int
) -> Iterator[tuple[int, int]]:
    """Yield (epoch, position below `used` in the source's stream) of a view's sample, epoch by epoch."""
    stream = plan.stream_of(one.stream)
    stage = stream.stages[one.growth]
    for epoch in (stage.epoch - 1,) if one.delta else count(stage.epoch):
        if stage.start + (epoch - stage.epoch) * stage.n >= used:
            return
        inside = position_of(one.shape, plan.seed, one.name, epoch, view_ordinal)
        position = stream.position_of(one.growth, one.delta, epoch, inside)
        if position is None:  # from this epoch on the source is read under a later view
            return
        if position < used:
            yield epoch, position
