"""The content of a plan: everything that decides data, frozen and hashed."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import BatchTooLarge, EmptyView, InvalidPlan, InvalidRuntime
from .interleave import MAX_BUCKETS, Interleaving, Starts, Turn, bucket_source, interleave
from .mixture import FILL, MASK, MixtureSegment, Stream, check_boundary, epoch_steps
from .random.keyed_permutation import key
from .random.lanes import LaneShape, fits_live, frozen_shape
from .random.plan_hash import MAX_GLOBAL_BATCH, content_hash, whole
from .sources.bucket import BucketBy, first_few
from .sources.growth import GrownStream, Growth, Stage, delta_name, grown_streams, whole_name
from .sources.packing import Packing
from .sources.quarantine import Quarantine
from .sources.views import OrderView
from .weights import Weight

PLAN_FORMAT = 1  # version of the plan's JSON
ORDER_VERSION = 1  # version of the formulas: raised if any batch changes; old formulas stay

MAX_POSITIONS = 2**63  # stream positions are int64


@dataclass(frozen=True, slots=True)
class MixtureSource:
    """A view with its weight in the mixture and, optionally, its chunk and lanes."""

    view: OrderView
    """View that supplies the samples."""
    weight: Weight = 1
    """Weight in the mixture, relative to the other sources."""
    chunk: int | None = None
    """Consecutive samples read together; None lets the plan choose."""
    lanes: int | None = None
    """Chunks read side by side, a power of two; None lets the plan choose."""


def source(
    view: OrderView, weight: Weight = 1, chunk: int | None = None, lanes: int | None = None
) -> MixtureSource:
    """Return a view as one of a plan's sources.

    weight: int, Fraction, float or decimal string, relative to other sources. chunk: consecutive samples read together.
    lanes: chunks read side by side, a power of two. If None, the plan chooses by the view's size and mean sample bytes.
    """
    return MixtureSource(view, weight, chunk, lanes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSource:
    """One source as the plan froze it, or one of its buckets: name `photos/b3`, bucket `b3`.

    A source that grows has one view per version: growth 1 adds the samples `photos+1` (delta), and `photos#1` has all
    samples. A bucket that first appears with growth 1 (begins) is named `photos/b3`, like earlier buckets.
    """

    name: str
    """Name in the plan."""
    view: OrderView
    """View that supplies the samples."""
    view_id: str
    """Content hash of the view."""
    shape: LaneShape
    """Frozen lane shape."""
    bucket: str | None = None
    """Bucket label, or None."""
    growth: int = 0
    """Number of the growth that added the view; 0 for the first version."""
    delta: bool = False
    """True if the view holds only the samples that the growth adds."""
    begins: bool = False
    """True for a bucket that first appears with its growth."""

    @property
    def source(self) -> str:
        """Name of the source without bucket or growth; weights use this name."""
        return self.stream if self.bucket is None else self.stream.removesuffix(f"/{self.bucket}")

    @property
    def stream(self) -> str:
        if not self.growth or self.begins:
            return self.name
        suffix = delta_name if self.delta else whole_name
        return self.name.removesuffix(suffix("", self.growth))

    def substitute_of(self, seed: int, own: int, epoch: int, in_epoch: int, attempt: int) -> int:
        """Return the view ordinal of the substitute for sample `own` at this position of an epoch.

        attempt: 1, 2, ... The result is never `own` unless the view has no other sample.
        """
        drawn = key(seed, self.name, "substitute", epoch, in_epoch, attempt) % max(1, self.shape.n - 1)
        return (own + 1 + drawn) % self.shape.n

    def to_json(self) -> dict[str, Any]:
        return {
            "view": self.view.spec(),
            "id": self.view_id,
            "n": self.shape.n,
            "chunk": self.shape.chunk,
            "lanes": self.shape.lanes,
            "h": self.shape.rounds_h,
            **({} if self.bucket is None else {"bucket": self.bucket}),
            **({"growth": self.growth} if self.growth else {}),
            **({"delta": True} if self.delta else {}),
            **({"begins": True} if self.begins else {}),
        }


def plan_source(
    name: str, view_or_source: OrderView | MixtureSource, bucket: str | None = None
) -> PlannedSource:
    """Freeze a source, or one of its buckets. Raises EmptyView, or InvalidPlan for a bad name, view, chunk or lanes."""
    if not isinstance(name, str) or not name:
        raise InvalidPlan(
            f"source name {name!r}: a non-empty string is needed; it is part of the order's keys"
        )
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidPlan(f"source name {name!r} is not valid Unicode text") from None
    requested = view_or_source if isinstance(view_or_source, MixtureSource) else MixtureSource(view_or_source)
    view = requested.view
    if not (hasattr(view, "version_ordinals") and hasattr(view, "spec") and hasattr(view, "__len__")):
        raise InvalidPlan(
            f"source {name!r} is a {type(view).__name__}, not a view: pass version.select(...), "
            "loader.source(view, ...) or loader.synthetic(n)"
        )
    n = len(view)
    if n == 0:
        raise EmptyView(f"source {name!r} has no samples (N = 0): loosen its predicate or leave it out")
    try:
        _check_together(view)
        decoded = getattr(view, "decoded_chunk", None)
        shape = frozen_shape(n, view.mean_sample_bytes, requested.chunk, requested.lanes, decoded)
    except InvalidPlan as error:
        raise InvalidPlan(f"source {name!r}: {error}") from None
    return PlannedSource(name=name, view=view, view_id=view.id, shape=shape, bucket=bucket)


def _check_together(view: OrderView) -> None:
    """Raise InvalidPlan for a list or packing over a table decoded by chunks, unless all chunks fit in memory."""
    for what, name in (("a list jumps", "listed"), ("packing jumps", "documents")):
        of = getattr(view, name, None)
        decoded = getattr(of, "decoded_chunk", None)
        if of is not None and decoded is not None and not fits_live(len(of), *decoded):
            raise InvalidPlan(
                f"its samples lie in a registered table, {decoded[0]} to a chunk that is decoded whole, and {what} "
                "from chunk to chunk: import the table (penstock import), which makes samples that are read one by one"
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanContent:
    """Validated content of a plan."""

    seed: int
    """Seed of the order, 0 to 2^64 - 1."""
    global_batch: int
    """Slots per step in the first segment; later segments may differ."""
    sources: Mapping[str, PlannedSource]
    """Source name -> planned source, in order of name."""
    segments: tuple[MixtureSegment, ...]
    """Weights by source. With buckets, bases are in the buckets' own segments."""
    boundary: str = FILL
    """"fill" or "mask": see `loader.plan`."""
    allow_repeats: bool = False
    """True lets a source, or one of its buckets, be smaller than its batch."""
    buckets: Interleaving | None = None
    """Turns of the buckets, or None."""
    pack: Packing | None = None
    """Packing, or None."""
    quarantine: Quarantine = field(default_factory=Quarantine)
    """Quarantined samples by step."""
    grown: tuple[Growth, ...] = ()
    """Growths, in order of step, then source."""
    grown_streams: Mapping[str, GrownStream] = field(init=False, repr=False)
    """Stream -> its views and their positions."""
    view_index: Mapping[tuple[str, int, bool], int] = field(init=False, repr=False)
    """(stream, growth, whether the view is a delta view) -> index of the view in `source_names`."""
    hash: str = field(init=False)
    """Content hash of the plan, "p-" and sha256 hex."""

    def __post_init__(self) -> None:
        whole("seed", self.seed, 0, 2**64 - 1)
        whole("global_batch", self.global_batch, 1, MAX_GLOBAL_BATCH)
        if not isinstance(self.allow_repeats, bool):
            raise InvalidPlan(f"allow_repeats = {self.allow_repeats!r}: True or False is needed")
        check_boundary(self.boundary, self.sources, len(self.segments), self.buckets is not None)
        views = {(source.stream, source.growth, source.delta): source for source in self.sources.values()}
        sizes = {of: source.shape.n for of, source in views.items()}
        names: dict[str, dict[str, None]] = {}
        for source in self.sources.values():
            names.setdefault(source.source, {})[source.stream] = None
        object.__setattr__(self, "view_index", {of: at for at, of in enumerate(views)})
        object.__setattr__(self, "grown_streams", grown_streams(self.grown, names, sizes, self.used_before))
        if not self.allow_repeats and self.boundary != MASK:
            self._refuse_repeats()
        object.__setattr__(self, "hash", content_hash("p", self.to_json()))

    def _refuse_repeats(self) -> None:
        largest: dict[str, int] = {}
        for stream in self.streams.values():
            for segment, batch in zip(stream.segments, stream.batch_sizes, strict=True):
                largest |= {name: max(batch, largest.get(name, 0)) for name in sorted(segment.weights)}
        small = [
            (name, largest[source.stream])
            for name, source in self.sources.items()
            if not source.delta and source.shape.n < largest.get(source.stream, 0)
        ]
        if not small:
            return
        name, batch = small[0]
        n, bucket = self.sources[name].shape.n, self.sources[name].bucket
        whose = "global_batch" if bucket is None else f"the batch of bucket {bucket!r}"
        remedy = "use a smaller global batch, more samples, or allow_repeats=True"
        if bucket is not None:
            remedy = (
                "give the bucket a smaller batch, leave its samples out with where(), or allow_repeats=True"
            )
        others = f" (and {len(small) - 1} more are too small)" if len(small) > 1 else ""
        raise BatchTooLarge(
            f"source {name!r} has {n} samples, fewer than {whose} = {batch}{others}, so one batch could hold a "
            f"sample twice: {remedy}"
        )

    @property
    def streams(self) -> Mapping[str | None, Stream]:
        if self.buckets is not None:
            return dict(self.buckets.streams.items())
        names = tuple(name for name, source in self.sources.items() if not source.growth)
        return {None: Stream(names=names, batch=self.global_batch, segments=self.segments)}

    def used_before(self, step: int) -> dict[str, int]:
        """Return stream of a source or bucket -> positions used by earlier steps, zeros left out."""
        return (self.buckets or self.streams[None]).used_before(step)

    def stream_of(self, source: str) -> GrownStream:
        if source in self.grown_streams:
            return self.grown_streams[source]
        return GrownStream((Stage(start=0, origin=0, epoch=0, n=self.sources[source].shape.n),))

    def growths_of(self, source: str) -> list[Growth]:
        return [planned for planned in self.grown if planned.source == source]

    def views_at(self, source: str, step: int) -> list[PlannedSource]:
        """Return a source's whole view in force at a step; with buckets, one view per non-empty bucket."""
        number = sum(planned.step <= step for planned in self.growths_of(source))
        return [
            planned
            for planned in self.sources.values()
            if (planned.source, planned.growth, planned.delta) == (source, number, False)
        ]

    def turn(self, step: int) -> Turn:
        if self.buckets is not None:
            return self.buckets.turn(step)
        return Turn(bucket=None, stream=self.streams[None], step=step)

    def step_of(self, name: str, position: int) -> int | None:
        """Return the step that uses this position in the stream of a source or bucket; None if no step does.

        Costs a pass over one mixture table per segment.
        """
        source = self.sources[name]
        if self.boundary == MASK:
            epoch, i = divmod(position, self.sources[name].shape.n)
            return epoch * epoch_steps(self.sources[name].shape.n, self.global_batch) + i // self.global_batch
        own = self.streams[source.bucket].step_of(source.stream, position)
        if own is None or self.buckets is None or source.bucket is None:
            return own
        return self.buckets.turns.step_of(source.bucket, own)

    @property
    def batch_range(self) -> tuple[int, int]:
        """Slots of the smallest and the largest global batch."""
        sizes = [size for stream in self.streams.values() for size in stream.batch_sizes]
        return min(sizes), max(sizes)

    @property
    def source_names(self) -> tuple[str, ...]:
        """Names in ascending order: `Slots.source` indexes this."""
        return tuple(self.sources)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": PLAN_FORMAT,
            "order": ORDER_VERSION,
            "seed": self.seed,
            "global_batch": self.global_batch,
            "boundary": self.boundary,
            "allow_repeats": self.allow_repeats,
            "sources": {name: planned.to_json() for name, planned in self.sources.items()},
            "segments": [segment.to_json() for segment in self.segments],
            "bucket_by": None if self.buckets is None else self.buckets.to_json(),
            "pack": None if self.pack is None else self.pack.to_json(),
            "quarantine": self.quarantine.to_json(),
            **({"grown": self.grown_json(self.grown)} if self.grown else {}),
        }

    def grown_json(self, growths: Sequence[Growth]) -> list[dict[str, Any]]:
        """Return the JSON of growths, each with the stream position at which it takes effect."""
        out: list[dict[str, Any]] = [{"step": growth.step, "source": growth.source} for growth in growths]
        if self.buckets is None:
            for entry, growth in zip(out, growths, strict=True):
                entry["position"] = self.grown_streams[growth.source].stages[growth.number].start
        return out

    def checked_step(self, step: int) -> int:
        """Return step as an int. Raises InvalidRuntime if it is not a whole number >= 0, or positions exceed int64."""
        try:
            number = step.__index__()
        except AttributeError:
            raise InvalidRuntime(f"step = {step!r}: a whole number >= 0 is needed") from None
        if number < 0:
            raise InvalidRuntime(f"step = {number}: steps count from 0")
        largest = self.batch_range[1]
        if (number + 1) * largest > MAX_POSITIONS:
            raise InvalidRuntime(
                f"step = {number}: the last step with a global batch of {largest} is {MAX_POSITIONS // largest - 1}"
            )
        return number


def split_sources(
    views: Mapping[str, OrderView | MixtureSource], asked: BucketBy
) -> dict[str, PlannedSource]:
    planned: dict[str, PlannedSource] = {}
    for name, view_or_source in views.items():
        source = (
            view_or_source if isinstance(view_or_source, MixtureSource) else MixtureSource(view_or_source)
        )
        for label, view in split_view(name, source.view, asked.by, asked.edges).items():
            full = bucket_source(name, label)
            if full in planned:
                raise InvalidPlan(f"{full!r} names a bucket of two sources: rename source {name!r}")
            planned[full] = plan_source(full, replace(source, view=view), label)
    bucket_labels(planned.values(), asked.by)
    return {name: planned[name] for name in sorted(planned)}


def split_view(name: str, view: OrderView, by: str, edges: tuple[str, ...] | None) -> dict[str, OrderView]:
    if not hasattr(view, "split"):
        raise InvalidPlan(f"source {name!r} is a {type(view).__name__}, which cannot be split into buckets")
    try:
        parts: dict[str, OrderView] = view.split(by, edges)
    except InvalidPlan as error:
        raise InvalidPlan(f"source {name!r}: {error}") from None
    return parts


def bucket_labels(parts: Iterable[PlannedSource], by: str) -> list[str]:
    """Return the labels, ascending. Raises: InvalidPlan if there are too many."""
    labels = sorted({part.bucket for part in parts if part.bucket is not None})
    if len(labels) > MAX_BUCKETS:
        raise InvalidPlan(
            f"{by!r} gives {len(labels)} buckets ({first_few(labels)}): at most {MAX_BUCKETS} are dealt; use coarser "
            "ones, or edges="
        )
    return labels


def interleave_parts(
    by: str,
    edges: tuple[str, ...] | None,
    parts: Mapping[str, PlannedSource],
    starts: Starts,
    batches: Sequence[Mapping[str, int]],
    growths: Sequence[Growth] = (),
) -> Interleaving:
    """Return the turns of these buckets. parts: each source's view of each bucket.

    starts, batches: per segment. A segment that begins at a growth has the new version's sizes.
    """
    sizes: list[dict[str, dict[str, int]]] = []
    for start, _ in starts:
        begun = Counter(one.source for one in growths if one.step <= start)
        held: dict[str, dict[str, int]] = {}
        for part in parts.values():
            if part.bucket is not None and not part.delta and part.growth == begun[part.source]:
                held.setdefault(part.bucket, {})[part.source] = part.shape.n
        sizes.append(held)
    return interleave(by, edges, sizes, starts, batches)


def bucketed_segments(starts: Starts, slots: Sequence[tuple[int, int]]) -> tuple[MixtureSegment, ...]:
    """Return segments with the sources' weights and the global batch; their bases follow from the buckets' turns.

    starts, slots: one entry per segment, at the same steps.
    """
    return tuple(
        MixtureSegment(
            start_step=start, weights=weights, base={}, batch=None if size == slots[0][1] else size
        )
        for (start, weights), (_, size) in zip(starts, slots, strict=True)
    )
