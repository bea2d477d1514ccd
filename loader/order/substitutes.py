"""Substitutes: the samples that fill slots whose own sample is quarantined, removed or unreadable."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidPlan
from .content import PlanContent
from .random.keyed_permutation import I64
from .slots import Slots, Stacked, locate_samples, stack_slots
from .sources.growth import earlier_ordinals, find_removals
from .sources.window_view import view_ordinals
from .stream_order import epoch_positions

MAX_ATTEMPTS = 8  # the run stops after these: eight corrupt samples in a row are not an accident


def usable_slots(plan: PlanContent, step: int) -> Slots:
    """Return a step's slots, with substitutes for quarantined samples; `step_slots` returns them without.

    Packed sequences stay; their quarantined documents are masked. Raises InvalidRuntime for an invalid step;
    InvalidPlan if all substitutes of a slot are quarantined.
    """
    step = plan.checked_step(step)
    return usable_stack(plan, (step,)).slots


def usable_stack(
    plan: PlanContent,
    steps: Sequence[int],
    rank: int = 0,
    world_size: int = 1,
) -> Stacked:
    """Return one rank's slots of several steps, with substitutes; `stack_slots` returns them without."""
    stacked = stack_slots(plan, steps, rank, world_size)
    removes_samples = any(len(growth.removed) for growth in plan.grown)
    excludes_samples = removes_samples or bool(plan.quarantine.lists)
    # Packed sequences keep their slots: their quarantined documents are masked.
    if not excludes_samples or plan.pack is not None:
        return stacked

    for number, step in enumerate(steps):
        start = stacked.starts[number]
        stop = stacked.starts[number + 1]
        step_rows = slice(start, stop)
        slots = stacked.slots.part(step_rows)  # views: writing to them changes the stack
        _fill_with_substitutes(plan, step, slots)
    return stacked


def _fill_with_substitutes(
    plan: PlanContent,
    step: int,
    slots: Slots,
) -> None:
    """Replace, in the arrays of `slots`, each sample that the step excludes by its first usable substitute."""
    sources = set(slots.source.tolist())
    for source in sorted(sources):
        name = plan.source_names[source]
        rows = np.flatnonzero(slots.source == source)
        # [rows]; False at padding, whose ordinal -1 no list has
        is_excluded = exclusion_mask(
            plan,
            source,
            step,
            slots.ordinal[rows],
        )
        for slot in rows[is_excluded].tolist():
            position = int(slots.position[slot])
            candidates = substitutes(plan, step, source, position)
            first = next(candidates, None)
            if first is None:
                own_source = plan.sources[name].source
                raise InvalidPlan(
                    f"step {step}, source {own_source!r}, position {position}: the sample and its "
                    f"{MAX_ATTEMPTS} substitutes are all quarantined. So large a share of a source is left out with a "
                    "predicate on its view",
                    what=f"source {own_source!r}",
                    where=f"step {step}",
                    given=position,
                )
            attempt, view_ordinal, ordinal = first
            slots.attempt[slot] = attempt
            slots.view_ordinal[slot] = view_ordinal
            slots.ordinal[slot] = ordinal


def substitutes(
    plan: PlanContent,
    step: int,
    source: int,
    position: int,
    after: int = 0,
) -> Iterator[tuple[int, int, int]]:
    """Yield (attempt, view ordinal, version ordinal) of a slot's substitutes, in order of preference.

    source: index into plan.source_names. position: the slot's i_k. after: the attempt that the slot already holds (0:
    its own sample).
    Substitutes that the step excludes are left out, so attempts may have gaps.
    """
    first_attempt = after + 1
    for attempt in range(first_attempt, MAX_ATTEMPTS + 1):
        view_ordinal, ordinal = substitute(plan, source, position, attempt)
        candidate = np.array([ordinal], np.int64)
        is_excluded = exclusion_mask(plan, source, step, candidate)
        if not is_excluded[0]:
            yield attempt, view_ordinal, ordinal


def substitute(
    plan: PlanContent,
    source: int,
    position: int,
    attempt: int,
) -> tuple[int, int]:
    """Return (view ordinal, version ordinal) of a substitute for a bad sample.

    source: index into plan.source_names. position: the slot's i_k. attempt: 1, 2, ... MAX_ATTEMPTS. The substitute is
    from the same source, and never the slot's own sample unless that is the only one.
    """
    name = plan.source_names[source]
    planned = plan.sources[name]

    # Substitutes depend on the slot's own sample. Find it by the arithmetic of a step, on arrays of length 1.
    stream_index = plan.source_names.index(planned.stream)
    stream = np.array([stream_index], np.int64)
    positions = np.array([position], np.int64)
    _, epoch, position_in_epoch = epoch_positions(plan, stream, positions)
    own = locate_samples(
        plan.seed,
        [planned],
        np.zeros(1, np.int64),
        epoch,
        position_in_epoch,
    )

    view_ordinal = planned.draw_substitute(
        plan.seed,
        int(own[0]),
        int(epoch[0]),
        int(position_in_epoch[0]),
        attempt,
    )
    view_ordinals = np.array([view_ordinal], np.int64)
    ordinals = planned.view.version_ordinals(view_ordinals)
    return view_ordinal, int(ordinals[0])


def exclusion_mask(
    plan: PlanContent,
    source: int,
    step: int,
    ordinals: I64,
) -> NDArray[np.bool_]:
    """Return a bool per version ordinal (int64) of a view: True if no slot of this step may hold the sample.

    A step excludes samples that a version in force lacks, and quarantined ones.

    source: index of the view in `plan.source_names`.
    """
    name = plan.source_names[source]
    planned = plan.sources[name]
    growths = plan.growths_of(planned.source)
    # Growths and lists name episodes, not windows.
    ordinals = view_ordinals(planned.view, ordinals)
    is_excluded = find_removals(growths, planned.growth, step, ordinals)
    # A quarantine list holds ordinals of the version in force when it was added. So look the samples up in each earlier
    # version, too.
    versions = earlier_ordinals(growths, planned.growth, ordinals)
    for growth, earlier in versions:
        is_excluded |= plan.quarantine.holds(planned.source, step, earlier, growth)
    return is_excluded
