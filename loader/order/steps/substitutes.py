"""What a slot holds instead of a bad sample: planned too, so that every run agrees on it."""

from collections.abc import Iterator, Sequence

import numpy as np

from ...errors import InvalidPlan
from ..content import PlanContent
from ..random.keys import key
from ..random.lanes import locate
from .slots import Slots, Stacked, held_back, places, stacked_slots

MAX_ATTEMPTS = 8  # then the run stops: eight corrupt samples in a row are not bad luck


def substitute(plan: PlanContent, source: int, position: int, attempt: int) -> tuple[int, int]:
    """(view ordinal, version ordinal) of the sample that stands in for a bad one.

    source: index into plan.source_names. position: i_k of the slot. attempt: 1, 2, ... MAX_ATTEMPTS, the next
    one when the substitute is bad too. A pure function of these, from the same source, and never the slot's
    own sample (unless the source has no other).
    """
    planned = list(plan.sources.values())[source]
    n = planned.shape.n
    stream = np.array([plan.source_names.index(planned.stream)], np.int64)
    _, (epoch,), (in_epoch,) = (one.tolist() for one in places(plan, stream, np.array([position], np.int64)))
    own = int(locate(planned.shape, plan.seed, planned.name, epoch, np.array([in_epoch], np.int64))[0])
    drawn = key(plan.seed, planned.name, "substitute", epoch, in_epoch, attempt) % max(1, n - 1)
    view_ordinal = (own + 1 + drawn) % n
    ordinal = planned.view.version_ordinals(np.array([view_ordinal], dtype=np.int64))
    return view_ordinal, int(ordinal[0])


def substitutes(
    plan: PlanContent, step: int, source: int, position: int, after: int = 0
) -> Iterator[tuple[int, int, int]]:
    """(attempt, view ordinal, version ordinal) of a slot's substitutes, the first to take first.

    after: the attempt that the slot holds already (0: its own sample). Samples that are quarantined at the step are
    passed over.
    """
    for attempt in range(after + 1, MAX_ATTEMPTS + 1):
        view_ordinal, ordinal = substitute(plan, source, position, attempt)
        if not held_back(plan, source, step, np.array([ordinal], np.int64))[0]:
            yield attempt, view_ordinal, ordinal


def planned_slots(plan: PlanContent, step: int) -> Slots:
    """The slots of a step, with substitutes where samples are quarantined. O(B) and a substitute's cost for each.
    A packed sequence keeps its place: of it, quarantined documents are masked.

    Raises InvalidRuntime for a step that cannot be; InvalidPlan when all substitutes of a slot are quarantined.
    """
    return planned_stack(plan, (plan.checked_step(step),)).slots


def planned_stack(plan: PlanContent, steps: Sequence[int], rank: int = 0, world_size: int = 1) -> Stacked:
    """One rank's slots of ascending steps, as `planned_slots` has them. Raises: as it, and as `stacked_slots`."""
    found = stacked_slots(plan, steps, rank, world_size)
    if plan.pack is None and (plan.quarantine or any(len(one.removed) for one in plan.grown)):
        for step, start, stop in zip(steps, found.starts, found.starts[1:], strict=False):
            _take_substitutes(plan, step, found.slots.part(slice(start, stop)))
    return found


def _take_substitutes(plan: PlanContent, step: int, slots: Slots) -> None:
    """Write substitutes into the slots whose samples are held back."""
    planned = list(plan.sources.values())
    for index in sorted(set(slots.source.tolist())):
        name, mine = planned[index].source, np.flatnonzero(slots.source == index)
        for slot in mine[held_back(plan, index, step, slots.ordinal[mine])].tolist():
            position = int(slots.position[slot])
            found = next(substitutes(plan, step, index, position), None)
            if found is None:
                raise InvalidPlan(
                    f"step {step}, source {name!r}, position {position}: the sample and its {MAX_ATTEMPTS} substitutes "
                    "are all quarantined. So large a share of a source is left out with a predicate on its view"
                )
            slots.attempt[slot], slots.view_ordinal[slot], slots.ordinal[slot] = found
