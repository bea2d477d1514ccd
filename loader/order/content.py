"""What a plan is made of: everything that decides data, frozen and hashed."""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import BatchTooLarge, EmptyView, InvalidPlan, InvalidRuntime
from .canonical import content_hash
from .lanes import LaneShape, frozen_shape
from .mixture import Segment, Weight
from .views import OrderView

PLAN_FORMAT = 1  # of the plan's JSON
ORDER_VERSION = 1  # of the formulas: a change of any batch raises it, and the old formulas stay

MAX_POSITIONS = 2**63  # stream positions are int64
MAX_GLOBAL_BATCH = 2**31


@dataclass(frozen=True, slots=True)
class Source:
    """A view with its share of the mixture and, if the caller insists, its chunk and lanes."""

    view: OrderView
    weight: Weight = 1
    chunk: int | None = None
    lanes: int | None = None


def source(view: OrderView, weight: Weight = 1, chunk: int | None = None, lanes: int | None = None) -> Source:
    """A view as one of a plan's sources.

    weight: share of the mixture relative to the other sources (int, Fraction, float or decimal string).
    chunk: samples read in one piece; lanes: chunks read side by side (a power of two). None lets the plan
    choose from the view's size and mean sample bytes. Values are checked when the plan is made.
    """
    return Source(view, weight, chunk, lanes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSource:
    """One source as the plan froze it."""

    name: str
    view: OrderView
    view_id: str
    shape: LaneShape

    def to_json(self) -> dict[str, Any]:
        return {
            "view": self.view.spec(),
            "id": self.view_id,
            "n": self.shape.n,
            "chunk": self.shape.chunk,
            "lanes": self.shape.lanes,
            "h": self.shape.rounds_h,
        }


def plan_source(name: str, given: OrderView | Source) -> PlannedSource:
    """Freezes a source. Raises EmptyView, or InvalidPlan for a bad name, view, chunk or lanes."""
    if not isinstance(name, str) or not name:
        raise InvalidPlan(
            f"source name {name!r}: a non-empty string is needed; it is part of the order's keys"
        )
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidPlan(f"source name {name!r} is not valid Unicode text") from None
    wanted = given if isinstance(given, Source) else Source(given)
    view = wanted.view
    if not (hasattr(view, "version_ordinals") and hasattr(view, "spec") and hasattr(view, "__len__")):
        raise InvalidPlan(
            f"source {name!r} is a {type(view).__name__}, not a view: pass version.select(...), "
            "loader.source(view, ...) or loader.synthetic(n)"
        )
    n = len(view)
    if n == 0:
        raise EmptyView(f"source {name!r} has no samples (N = 0): loosen its predicate or leave it out")
    try:
        shape = frozen_shape(n, view.mean_sample_bytes, wanted.chunk, wanted.lanes)
    except InvalidPlan as error:
        raise InvalidPlan(f"source {name!r}: {error}") from None
    return PlannedSource(name=name, view=view, view_id=view.id, shape=shape)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanContent:
    """Validated content of a plan. sources: by name, in order of name (the index of `Slots.source`)."""

    seed: int
    global_batch: int
    sources: Mapping[str, PlannedSource]
    segments: tuple[Segment, ...]
    boundary: str = "fill"
    allow_repeats: bool = False
    hash: str = field(init=False)

    def __post_init__(self) -> None:
        whole("seed", self.seed, 0, 2**64 - 1)
        whole("global_batch", self.global_batch, 1, MAX_GLOBAL_BATCH)
        if not isinstance(self.allow_repeats, bool):
            raise InvalidPlan(f"allow_repeats = {self.allow_repeats!r}: True or False is needed")
        for name in sorted({name for segment in self.segments for name in segment.weights}):
            n = self.sources[name].shape.n
            if n < self.global_batch and not self.allow_repeats:
                raise BatchTooLarge(
                    f"source {name!r} has {n} samples, fewer than global_batch = {self.global_batch}, so one "
                    "batch could hold a sample twice: use a smaller global batch, more samples, or "
                    "allow_repeats=True"
                )
        object.__setattr__(self, "hash", content_hash("p", self.to_json()))

    @property
    def source_names(self) -> tuple[str, ...]:
        """Names in ascending order: `Slots.source` indexes this."""
        return tuple(self.sources)

    def to_json(self) -> dict[str, Any]:
        """The content that `hash` is the hash of, as JSON-able values."""
        return {
            "format": PLAN_FORMAT,
            "order": ORDER_VERSION,
            "seed": self.seed,
            "global_batch": self.global_batch,
            "boundary": self.boundary,
            "allow_repeats": self.allow_repeats,
            "sources": {name: planned.to_json() for name, planned in self.sources.items()},
            "segments": [segment.to_json() for segment in self.segments],
            "bucket_by": None,
            "pack": None,
            "quarantine": [],
        }

    def checked_step(self, step: int) -> int:
        """step as an int. Raises InvalidRuntime: not a whole number >= 0, or positions beyond int64."""
        try:
            number = step.__index__()
        except AttributeError:
            raise InvalidRuntime(f"step = {step!r}: a whole number >= 0 is needed") from None
        if number < 0:
            raise InvalidRuntime(f"step = {number}: steps count from 0")
        if (number + 1) * self.global_batch > MAX_POSITIONS:
            last = MAX_POSITIONS // self.global_batch - 1
            raise InvalidRuntime(
                f"step = {number}: the last step with a global batch of {self.global_batch} is {last}"
            )
        return number

    def segment_at(self, step: int) -> Segment:
        """The segment in force at a step."""
        return self.segments[bisect_right([segment.start_step for segment in self.segments], step) - 1]


def whole(name: str, value: object, low: int, high: int) -> int:
    """value as an int in [low, high]. Raises InvalidPlan."""
    number = value.__index__() if hasattr(value, "__index__") and not isinstance(value, bool) else None
    if number is None or not low <= number <= high:
        raise InvalidPlan(f"{name} = {value!r}: a whole number from {low} to {high} is needed")
    return int(number)
