"""Ranges of consecutive steps: repeated samples, the mixture, buckets and substitutes.

Addresses and the command line call a range "window".
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import loader
from loader.errors import InvalidRuntime
from loader.order.digests import slot_identities
from loader.order.slots import Slots

from ..json_record import JsonRecord
from ..replays.training import Training
from ..shown_values import PlannedSample, sample_names

MOST_STEPS = 2000
"""Most steps in a range."""
MOST_SLOTS = 4_000_000
"""Most slots over all steps."""
FIRST_STEPS = 100
"""Steps by default, up to the last recorded one."""
MOST_LISTED = 60
"""Most repeated samples, and substitutes, listed."""
MOST_PLACES = 20
"""Most slots listed per sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeSource(JsonRecord):
    source: str
    """Name without bucket."""
    planned: float
    """Expected slots: sum of steps' slots times the source's weight share."""
    delivered: int
    """Slots with its samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeSample(PlannedSample):
    """With the source's name without bucket."""

    n_slots: int
    """Slots with it."""
    places: tuple[tuple[int, int], ...]
    """(step, slot) of the first 20."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRange(JsonRecord):
    training: str
    """Run name or plan hash."""
    first: int
    last: int
    unrecorded: tuple[int, ...]
    """Steps in neither run log nor metrics: perhaps not trained, with slots as planned."""
    n_slots: int
    n_padding: int
    """Slots without a sample."""
    n_samples: int
    """Distinct samples."""
    n_repeated: int
    """Samples in several slots."""
    repeated: tuple[RangeSample, ...]
    """At most 60, most often first."""
    sources: tuple[RangeSource, ...]
    """By name."""
    buckets: Mapping[str, int]
    n_substituted: int
    """Slots with a substitute, recorded or for a quarantined sample."""
    substituted: tuple[RangeSample, ...]
    """First 60, one slot each."""


def step_range(training: Training, first: int | None = None, last: int | None = None) -> StepRange:
    """Return steps `first` to `last`, both included; by default, the last 100 recorded.

    Reads no media. Raises: InvalidRuntime for more than 2,000 steps or 4,000,000 slots.
    """
    if last is None:
        last = first + FIRST_STEPS - 1 if first is not None else max(training.last_step, 0)
    first = max(0, last - FIRST_STEPS + 1) if first is None else first
    if not first <= last < first + MOST_STEPS:
        raise InvalidRuntime(
            f"from = {first}, to = {last}; a range has 1 to {MOST_STEPS:,} steps, both ends included",
            what="steps",
            given=[first, last],
            accepted=MOST_STEPS,
        )
    builder = _RangeBuilder()
    for step in range(first, last + 1):
        # If there is no run log, use the first step's plan, known from reports or checkpoints, for all steps.
        with (
            training.settled_replay(step)
            if training.trail is not None
            else training.open_replay(first) as replay
        ):
            builder.add(replay.plan, step, replay.slots(step))
    unrecorded = tuple(step for step in range(first, last + 1) if training.untrained(step))
    return builder.record(training.name, first, last, unrecorded)


class _RangeBuilder:
    def __init__(self) -> None:
        self._planned: defaultdict[str, float] = defaultdict(float)
        self._delivered: Counter[str] = Counter()
        self._buckets: Counter[str] = Counter()
        self._rows: list[tuple[loader.Plan, int, Slots]] = []
        self._identities: list[NDArray[np.uint64]] = []
        self._n = 0

    def add(self, plan: loader.Plan, step: int, slots: Slots) -> None:
        self._n += len(slots)
        if self._n > MOST_SLOTS:
            raise InvalidRuntime(
                f"the range has more than {MOST_SLOTS:,} slots up to step {step}; ask for fewer steps"
            )
        self._rows.append((plan, step, slots))
        # Padding gets 0, which is never read: `record` selects the valid slots first.
        self._identities.append(np.where(slots.valid, slot_identities(plan, slots), 0))
        bucket = plan.bucket(step)
        if bucket is not None:
            self._buckets[bucket] += 1
        names = [one.source for one in plan.sources.values()]
        counts = np.bincount(slots.source[slots.valid], minlength=len(names)).tolist()
        # A source without a slot in the range is listed, too.
        self._delivered.update(dict.fromkeys(names, 0))
        for name, n in zip(names, counts, strict=True):
            self._delivered[name] += n
        for name, share in _shares(plan, step).items():
            self._planned[name] += share * len(slots)

    def record(self, name: str, first: int, last: int, unrecorded: tuple[int, ...]) -> StepRange:
        valid = np.concatenate([slots.valid for _, _, slots in self._rows])
        attempts = np.concatenate([slots.attempt for _, _, slots in self._rows])
        real = np.flatnonzero(valid)
        substitutes = np.flatnonzero(valid & (attempts > 0))
        groups = _sample_groups(np.concatenate(self._identities)[real])
        repeated = [real[rows] for rows in groups.most]
        return StepRange(
            training=name,
            first=first,
            last=last,
            unrecorded=unrecorded,
            n_slots=self._n,
            n_padding=self._n - len(real),
            n_samples=groups.n,
            n_repeated=groups.n_repeated,
            repeated=tuple(self._samples(repeated)),
            sources=tuple(
                RangeSource(source=one, planned=self._planned[one], delivered=self._delivered[one])
                for one in sorted(self._delivered)
            ),
            buckets=dict(sorted(self._buckets.items())),
            n_substituted=len(substitutes),
            # [n, 1]: each substitute is a group of one slot.
            substituted=tuple(self._samples(substitutes[:MOST_LISTED, None])),
        )

    def _samples(self, groups: Iterable[NDArray[np.int64]]) -> Iterable[RangeSample]:
        ends = np.cumsum([len(slots) for _, _, slots in self._rows])
        for rows in groups:
            places = []
            for row in rows[:MOST_PLACES].tolist():
                at = int(np.searchsorted(ends, row, side="right"))
                places.append((at, row - int(ends[at]) + len(self._rows[at][2])))
            plan, _, slots = self._rows[places[0][0]]
            slot = places[0][1]
            source = plan.source_names[int(slots.source[slot])]
            (name,) = sample_names(plan, source, slots.ordinal[slot : slot + 1])
            yield RangeSample(
                source=plan.sources[source].source,
                **name,
                n_slots=len(rows),
                places=tuple((self._rows[at][1], one) for at, one in places),
            )


class _SampleGroups(NamedTuple):
    n: int
    n_repeated: int
    most: list[NDArray[np.int64]]
    """Largest groups' slots, ascending, at most 60 groups."""


def _sample_groups(identities: NDArray[np.uint64]) -> _SampleGroups:
    _, inverse, counts = np.unique(identities, return_inverse=True, return_counts=True)
    order = np.argsort(inverse, kind="stable")
    starts = np.cumsum(counts) - counts
    n_repeated = int((counts > 1).sum())
    # Ties by the first slot: the hashes decide no order that a page shows.
    most = np.lexsort((order[starts], -counts))[: min(n_repeated, MOST_LISTED)].tolist()
    return _SampleGroups(len(counts), n_repeated, [order[starts[i] : starts[i] + counts[i]] for i in most])


def _shares(plan: loader.Plan, step: int) -> dict[str, float]:
    turn = plan.turn(step)
    weights = turn.stream.current_segment(turn.step).weights
    sources = {one.stream: one.source for one in plan.sources.values()}
    total = sum(weights.values())
    return {sources[stream]: weight / total for stream, weight in weights.items()}
