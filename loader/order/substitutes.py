"""Substitutes: the samples that fill slots whose own sample is quarantined, removed or unreadable."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidPlan
from .content import PlanContent
from .random.keyed_permutation import I64
from .slots import Slots, Stacked, ordinals_at, stacked_slots
from .sources.growth import earlier_ordinals, removed_since
from .sources.window_view import stored_ordinals
from .stream_order import epoch_positions

MAX_ATTEMPTS = 8  # the run stops after these: eight corrupt samples in a row are no accident


def held_back(plan: PlanContent, index: int, step: int, ordinals: I64) -> NDArray[np.bool_]:
    """Return a bool per version ordinal (int64) of a view: True if no slot of this step may hold the sample.

    index: position of the view in `plan.source_names`.
    """
    source = list(plan.sources.values())[index]
    ordinals = stored_ordinals(source.view, ordinals)
    growths = plan.growths_of(source.source)
    is_barred = removed_since(growths, source.growth, step, ordinals)
    for growth, earlier in earlier_ordinals(growths, source.growth, ordinals):
        is_barred |= plan.quarantine.holds(source.source, step, earlier, growth)
    return is_barred


def substitute(plan: PlanContent, source: int, position: int, attempt: int) -> tuple[int, int]:
    """Return (view ordinal, version ordinal) of a substitute for a bad sample.

    source: index into plan.source_names. position: the slot's i_k. attempt: 1, 2, ... MAX_ATTEMPTS. The substitute is
    from the same source, and never the slot's own sample unless that is the only one.
    """
    planned = list(plan.sources.values())[source]
    # The arithmetic of a whole step, on arrays of length 1.
    stream = np.array([plan.source_names.index(planned.stream)], np.int64)
    _, epoch, in_epoch = epoch_positions(plan, stream, np.array([position], np.int64))
    own = ordinals_at(plan.seed, [planned], np.zeros(1, np.int64), epoch, in_epoch)
    view_ordinal = planned.substitute_of(plan.seed, int(own[0]), int(epoch[0]), int(in_epoch[0]), attempt)
    ordinals = planned.view.version_ordinals(np.array([view_ordinal], dtype=np.int64))
    return view_ordinal, int(ordinals[0])


def substitutes(
    plan: PlanContent, step: int, source: int, position: int, after: int = 0
) -> Iterator[tuple[int, int, int]]:
    """Yield (attempt, view ordinal, version ordinal) of a slot's substitutes, in order of preference.

    after: the attempt that the slot already holds (0: its own sample). Skips samples that are `held_back`.
    """
    for attempt in range(after + 1, MAX_ATTEMPTS + 1):
        view_ordinal, ordinal = substitute(plan, source, position, attempt)
        is_barred = held_back(plan, source, step, np.array([ordinal], np.int64))
        if not is_barred[0]:
            yield attempt, view_ordinal, ordinal


def planned_slots(plan: PlanContent, step: int) -> Slots:
    """Return a step's slots, with substitutes for quarantined samples.

    Packed sequences stay; their quarantined documents are masked. Raises InvalidRuntime for an invalid step;
    InvalidPlan if all substitutes of a slot are quarantined.
    """
    return planned_stack(plan, (plan.checked_step(step),)).slots


def planned_stack(plan: PlanContent, steps: Sequence[int], rank: int = 0, world_size: int = 1) -> Stacked:
    """Return one rank's slots as `stacked_slots` does, with substitutes as in `planned_slots`."""
    stacked = stacked_slots(plan, steps, rank, world_size)
    removes_samples = any(len(growth.removed) for growth in plan.grown)
    if plan.pack is not None or not (plan.quarantine.lists or removes_samples):
        return stacked
    for step, start, stop in zip(steps, stacked.starts, stacked.starts[1:], strict=False):
        slots = stacked.slots.part(slice(start, stop))  # views: writing to them changes the stack
        _fill_with_substitutes(plan, step, slots)
    return stacked


def _fill_with_substitutes(plan: PlanContent, step: int, slots: Slots) -> None:
    """Put substitutes into the slots, in place, whose samples are `held_back`."""
    planned = list(plan.sources.values())
    for index in sorted(set(slots.source.tolist())):
        rows = np.flatnonzero(slots.source == index)
        is_barred = held_back(plan, index, step, slots.ordinal[rows])
        for slot in rows[is_barred].tolist():
            position = int(slots.position[slot])
            substitute = next(substitutes(plan, step, index, position), None)
            if substitute is None:
                raise InvalidPlan(
                    f"step {step}, source {planned[index].source!r}, position {position}: the sample and its "
                    f"{MAX_ATTEMPTS} substitutes are all quarantined. So large a share of a source is left out with a "
                    "predicate on its view"
                )
            attempt, view_ordinal, ordinal = substitute
            slots.attempt[slot] = attempt
            slots.view_ordinal[slot] = view_ordinal
            slots.ordinal[slot] = ordinal
