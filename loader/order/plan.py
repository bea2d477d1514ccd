"""The plan: everything that changes data, frozen under one hash; each batch is a pure function of the step.

plan = make_plan({"photos": view, "web": source(other, weight=3)}, seed=7, global_batch=1024)
plan.slots(step)        the global batch of a step, in canonical order
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import InvalidPlan
from .canonical import canonical_json
from .content import MAX_GLOBAL_BATCH, PlanContent, PlannedSource, Source, plan_source, source, whole
from .describe import describe
from .mixture import Weight, chain_segments, integer_weights
from .slots import Slots, slots_at
from .state import check_state, state_at
from .views import OrderView, synthetic

__all__ = ["OrderView", "Plan", "PlannedSource", "Source", "make_plan", "source", "synthetic"]

Schedule = Sequence[tuple[int, Mapping[str, Weight]]]


class PlanStore(Protocol):
    """What saving a plan needs of a store."""

    def put_if_absent(self, key: str, data: bytes) -> None:
        """Creates an object, or finds it there with the same bytes."""


class PlanRoot(Protocol):
    """What saving a plan needs of a root."""

    @property
    def store(self) -> PlanStore:
        """The root's store."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan(PlanContent):
    """A frozen plan; picklable if its views are. Two plans are equal when their hashes are."""

    def __eq__(self, other: object) -> bool:
        return self.hash == other.hash if isinstance(other, Plan) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.hash)

    def slots(self, step: int) -> Slots:
        """The slots of a step in canonical order. Raises InvalidRuntime for a step that cannot be."""
        return slots_at(self, step)

    def batch_ids(self, step: int) -> list[tuple[str, str]]:
        """(source name, sample key) of each slot of a step, in canonical order; no media is read."""
        slots = self.slots(step)
        ids: list[tuple[str, str]] = [("", "")] * len(slots)
        for index, (name, planned) in enumerate(self.sources.items()):
            mine = (slots.source == index).nonzero()[0]
            if len(mine):
                keys = planned.view.keys(slots.ordinal[mine])
                for slot, sample_key in zip(mine.tolist(), keys, strict=True):
                    ids[slot] = (name, sample_key)
        return ids

    def state(self, step: int) -> dict[str, Any]:
        """What to save after batch step - 1 was handed out: a few hundred bytes of JSON."""
        return state_at(self, step)

    def check_state(self, state: object) -> int:
        """The step to go on from. Raises PlanMismatch, naming the fields of the past that differ."""
        return check_state(self, state)

    def save(self, root: PlanRoot) -> str:
        """Stores the plan's canonical JSON as `plans/<hash>.json`, if it is not there yet; returns the hash."""
        root.store.put_if_absent(f"plans/{self.hash}.json", canonical_json(self.to_json()))
        return self.hash

    def describe(self) -> str:
        """The plan in words and numbers."""
        return describe(self)


def make_plan(
    views: Mapping[str, OrderView | Source],
    *,
    seed: int,
    global_batch: int,
    bucket_by: object = None,
    pack: object = None,
    schedule: Schedule | None = None,
    quarantine: object = None,
    boundary: str = "fill",
    allow_repeats: bool = False,
) -> Plan:
    """Freezes a plan.

    views: source name -> view, or source(view, weight=...). Names are part of the order's keys.
    seed: 0 <= seed < 2^64. global_batch: slots per optimizer step over all ranks.
    schedule: [(step, {name: weight}), ...] in ascending order; from that step on the mixture has exactly
    these weights (a source that is not named is left out). An entry at step 0 replaces the sources' weights.
    allow_repeats: let a source be smaller than the global batch.
    bucket_by, pack, quarantine, boundary: places for what order version 1 does not do; only None (or empty,
    or "fill") is accepted.

    Raises InvalidPlan, EmptyView (a source without samples), BatchTooLarge (N < global_batch).
    """
    _refuse_unsupported(bucket_by, pack, quarantine, boundary)
    global_batch = whole("global_batch", global_batch, 1, MAX_GLOBAL_BATCH)
    if not isinstance(views, Mapping) or not views:
        raise InvalidPlan(f"views = {views!r}: a mapping of at least one source name to its view is needed")
    planned = {name: plan_source(name, given) for name, given in views.items()}
    planned = {name: planned[name] for name in sorted(planned)}
    weights = {name: given.weight if isinstance(given, Source) else 1 for name, given in views.items()}
    starts = segment_starts(weights, schedule or [])
    return Plan(
        seed=whole("seed", seed, 0, 2**64 - 1),
        global_batch=global_batch,
        sources=planned,
        segments=chain_segments(starts, list(planned), global_batch),
        boundary=boundary,
        allow_repeats=allow_repeats,
    )


def segment_starts(weights: Mapping[str, Weight], schedule: Schedule) -> list[tuple[int, dict[str, int]]]:
    """(start step, integer weights) of every segment, the first at step 0. Raises InvalidPlan.

    weights: in force from step 0 unless the schedule has an entry there; names all sources."""
    starts: list[tuple[int, dict[str, int]]] = []
    for entry in schedule:
        try:
            start, mixture = entry
            unknown = sorted(set(mixture) - set(weights))
        except (TypeError, ValueError):
            raise InvalidPlan(
                f"schedule entry {entry!r}: (step, {{source name: weight}}) is needed"
            ) from None
        low = starts[-1][0] + 1 if starts else 0
        start = whole(f"schedule entry {len(starts)}: step", start, low, 2**53)
        if unknown:
            raise InvalidPlan(f"schedule at step {start} names {unknown}; the sources are {sorted(weights)}")
        starts.append((start, integer_weights(mixture)))
    if not starts or starts[0][0] > 0:
        starts.insert(0, (0, integer_weights(weights)))
    return starts


def _refuse_unsupported(bucket_by: object, pack: object, quarantine: object, boundary: str) -> None:
    for name, value in (("bucket_by", bucket_by), ("pack", pack)):
        if value is not None:
            raise InvalidPlan(
                f"{name} = {value!r}: order version 1 does not do this yet; only None is accepted"
            )
    if quarantine is not None and quarantine not in ([], ()):
        raise InvalidPlan(
            f"quarantine = {quarantine!r}: order version 1 does not do this yet; leave bad samples out "
            "with a predicate on the view"
        )
    if boundary != "fill":
        raise InvalidPlan(f'boundary = {boundary!r}: order version 1 does only "fill"')
