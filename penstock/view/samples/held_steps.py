"""Steps of trainings that held a sample, also in the place of another."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

import loader
from loader.errors import InvalidRuntime, PenstockError
from loader.order.steps.occurrences import Occurrence

from ...text import clean
from ..json_record import Record
from ..replays.training import Training
from .shown_values import version_of

MOST_PLANNED = 1_000_000
"""Steps that are looked through of a plan without a trail, whose steps have no end."""
MOST_ASKED, ASK_S = 50, 20.0
"""Runs that are opened for one page, and seconds after which no further one is."""
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
    """Slots that held it, of the steps that are recorded; of a plan without a trail up to the step of the page."""
    planned: bool
    """True where no trail says that the steps were trained."""
    slots: tuple[HeldSlot, ...]
    """The last 200 of them, by step; of a packed source the sequences with its pieces."""
    error: str = ""
    """The reason why they are not known; "" where they are."""


def held_steps(
    trainings: Iterable[Training], dataset: str, key: str, ordinal: int, before: int = 0
) -> tuple[HeldSteps, ...]:
    """Return the slots of each training that held a sample of a dataset.

    ordinal: the sample's in one of the dataset's versions. before: a step up to which it is looked in plans without a
    trail.

    Costs what `Plan.steps_of` costs, and all keys of other versions that the trainings read.
    """
    return tuple(_of(one, dataset, key, ordinal, before) for one in trainings)


class AskedRuns:
    """Trainings that are asked which of their slots held a sample, and runs that are not asked."""

    def __init__(
        self,
        opened: Sequence[Training] = (),
        others: Sequence[str] = (),
        open_run: Callable[[str], Training] | None = None,
        error: str = "",
    ) -> None:
        """Take trainings, which are asked.

        others: further runs, in their order. open_run: opens one of them; they are asked as well, 50 of them or for
        20 s. None asks none. error: the reason why `others` are not known.
        """
        self._opened, self._open_run, self.error = opened, open_run, error
        self.left = tuple(others)
        """Runs that were not asked."""

    def held(
        self, dataset: str, key: str, ordinal: int, own: Training | None = None, before: int = 0
    ) -> tuple[HeldSteps, ...]:
        """Return the slots of each training, as `held_steps`; those of `own` come first."""
        name = own.name if own is not None else None
        others = [one for one in self._opened if one.name != name]
        found = held_steps([own] if own is not None else [], dataset, key, ordinal, before)
        found += held_steps(others, dataset, key, ordinal)
        self.left = tuple(run for run in self.left if run != name)
        until = time.monotonic() + ASK_S
        asked = 0
        while self._open_run is not None and asked < min(MOST_ASKED, len(self.left)):
            if asked and time.monotonic() > until:
                break
            run, asked = self.left[asked], asked + 1
            try:
                found += held_steps([self._open_run(run)], dataset, key, ordinal)
            except PenstockError as error:  # of one run: the others are asked all the same
                told = clean(f"{type(error).__name__}: {error}", 400)
                found += (HeldSteps(training=run, n_slots=0, planned=False, slots=(), error=told),)
        self.left = self.left[asked:]
        return found


def held_slots(
    training: Training,
    sources: Callable[[loader.Plan], Iterable[str]],
    key: str,
    before: int,
    ordinal: int | None = None,
) -> tuple[list[Occurrence], list[PenstockError]]:
    """Return the slots that held a sample in steps 0 ... before - 1, by step, each step under its own plan.

    sources: the names of a plan's sources that may have it. ordinal: as of `Plan.steps_of`.

    Returns the errors of opening and of looking too: of a plan that does not have the sample it is an InvalidRuntime.
    """
    found: set[Occurrence] = set()
    errors: list[PenstockError] = []
    plans = training.plans(before)
    for plan_hash, step in plans.items():
        try:
            with training.using(step) as replay:
                for source in sources(replay.plan):
                    held = replay.steps_of(source, key, before=before, ordinal=ordinal)
                    found.update(
                        one for one in held if len(plans) == 1 or training.plan_hash(one.step) == plan_hash
                    )
        except PenstockError as error:
            errors.append(error)
    return sorted(found), errors


def _of(training: Training, dataset: str, key: str, ordinal: int, before: int) -> HeldSteps:
    def sources(plan: loader.Plan) -> set[str]:
        return {
            one.source
            for name, one in plan.sources.items()
            if (version := version_of(plan, name)) is not None and version.dataset == dataset
        }

    planned = training.trail is None and training.metrics is None
    before = min(before, MOST_PLANNED) if planned else training.last_step + 1
    found, errors = held_slots(training, sources, key, before, ordinal)
    if training.trail is not None and found:
        recorded = training.are_recorded(np.array([one.step for one in found]))
        found = [one for one, there in zip(found, recorded.tolist(), strict=True) if there]
    # The page shows all else where a version was swept, say. A plan may well lack the sample.
    told = [one for one in errors if not isinstance(one, InvalidRuntime)][-1:]
    return HeldSteps(
        training=training.name,
        n_slots=len(found),
        planned=planned,
        slots=tuple(HeldSlot(step=one.step, slot=one.slot, attempt=one.attempt) for one in found[-MOST:]),
        error="".join(clean(f"{type(one).__name__}: {one}", 400) for one in told),
    )
