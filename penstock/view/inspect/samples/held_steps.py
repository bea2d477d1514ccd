"""Steps of trainings that held a sample, also in the place of another."""

from collections.abc import Iterable
from dataclasses import dataclass

from loader.errors import InvalidRuntime, PenstockError
from penstock.card.rendering.escape import clean

from ...replays.training import Training
from ..json_record import Record
from ..shown.shown_values import version_of

MOST = 200
"""Slots that are told of a training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSlot(Record):
    """A slot that held the sample."""

    step: int
    """Global step."""
    slot: int
    """Number of the slot in the global batch."""
    attempt: int
    """0, or its number as the substitute of another sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSteps(Record):
    """Slots of a training that held a sample."""

    training: str
    """Run, or hash of a plan."""
    n_slots: int
    """Slots that held it, up to the last step that is recorded."""
    slots: tuple[HeldSlot, ...]
    """The last 200 of them, by step; of a packed source the sequences with its pieces."""
    error: str = ""
    """The reason why they are not known; "" where they are."""


def held_steps(
    trainings: Iterable[Training], dataset: str, key: str, ordinal: int, before: int = 0
) -> tuple[HeldSteps, ...]:
    """Return the slots of each training that held a sample of a dataset.

    ordinal: the sample's in one of the dataset's versions. before: a step up to which it is looked in any case.

    Costs what `Plan.steps_of` costs, and all keys of other versions that the trainings read.
    """
    return tuple(_of(one, dataset, key, ordinal, before) for one in trainings)


def _of(training: Training, dataset: str, key: str, ordinal: int, before: int) -> HeldSteps:
    before = max(before, training.last_step + 1)
    found: set[tuple[int, int, int]] = set()
    error = ""
    for plan_hash, step in training.plans(before).items():
        try:
            with training.using(step) as replay:
                sources = {
                    one.source
                    for name, one in replay.plan.sources.items()
                    if (version := version_of(replay.plan, name)) is not None and version.dataset == dataset
                }
                for source in sources:
                    try:
                        held = replay.steps_of(source, key, before=before, ordinal=ordinal)
                    except InvalidRuntime:
                        continue  # the plan's version does not have the sample, or its view leaves it out
                    found |= {
                        (one.step, one.slot, one.attempt)
                        for one in held
                        if training.plan_hash(one.step) == plan_hash
                    }
        except PenstockError as failed:  # a version that was swept, say; the page shows all else
            error = clean(f"{type(failed).__name__}: {failed}", 400)
    slots = tuple(HeldSlot(step=step, slot=slot, attempt=n) for step, slot, n in sorted(found)[-MOST:])
    return HeldSteps(training=training.name, n_slots=len(found), slots=slots, error=error)
