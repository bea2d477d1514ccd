"""The content of a plan: everything that decides data, frozen and hashed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import BatchTooLarge, InvalidPlan, InvalidRuntime
from .interleave import Interleaving, Turn
from .mixture import FILL, MASK, MixtureSegment, Stream, check_boundary, epoch_steps
from .planned_source import PlannedSource
from .random.plan_hash import MAX_GLOBAL_BATCH, content_hash, int_in_range
from .sources.growth import GrownStream, Growth, Stage, grow_streams
from .sources.packing import PackedView, Packing
from .sources.quarantine import Quarantine
from .sources.views import ListedView

PLAN_FORMAT = 2  # newest version of the plan's JSON; a plan that needs nothing new has 1
ORDER_VERSION = 1  # version of the formulas: raised if any batch changes; old formulas stay

MAX_POSITIONS = 2**63  # stream positions are int64
MAX_FIRST_STEP = 2**53  # JSON readers with floats have whole numbers up to here

ViewKey = tuple[str, int, bool]
"""(stream, growth, whether the view is a delta view): one of a plan's views."""


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
    first_step: int = 0
    """Step at which epoch 0 begins. Above 0 only with "mask"."""
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
    grown_streams: Mapping[str, GrownStream] = field(
        init=False,
        repr=False,
    )
    """Stream -> its views and their positions."""
    view_index: Mapping[ViewKey, int] = field(
        init=False,
        repr=False,
    )
    """View -> its index in `source_names`."""
    hash: str = field(init=False)
    """Content hash of the plan, "p-" and sha256 hex."""

    def __post_init__(self) -> None:
        int_in_range("seed", self.seed, 0, 2**64 - 1)
        int_in_range("global_batch", self.global_batch, 1, MAX_GLOBAL_BATCH)
        if not isinstance(self.allow_repeats, bool):
            raise InvalidPlan(
                f"allow_repeats = {self.allow_repeats!r}: True or False is needed",
                what="allow_repeats",
                given=self.allow_repeats,
                accepted=[True, False],
            )
        int_in_range("first_step", self.first_step, 0, MAX_FIRST_STEP)
        if self.first_step and self.boundary != MASK:
            raise InvalidPlan(
                f'first_step = {self.first_step} with boundary = {self.boundary!r}: it needs boundary="mask", whose '
                "epochs begin with a step",
                what="first_step",
                given=self.first_step,
                accepted='first_step with boundary="mask"',
            )
        is_bucketed = self.buckets is not None
        check_boundary(
            self.boundary,
            self.sources,
            len(self.segments),
            is_bucketed,
        )

        view_index: dict[ViewKey, int] = {}
        sizes: dict[ViewKey, int] = {}  # samples of each view
        streams: dict[str, dict[str, None]] = {}  # source -> its stream, or its buckets' streams, each once
        for index, source in enumerate(self.sources.values()):
            view = (
                source.stream,
                source.growth,
                source.delta,
            )
            view_index[view] = index
            sizes[view] = source.shape.n
            own_streams = streams.setdefault(source.source, {})
            own_streams[source.stream] = None  # the views of a source that grows share it
        grown = grow_streams(
            self.grown,
            streams,
            sizes,
            self.used_before,
        )
        # The dataclass is frozen: its own fields are set through `object`.
        object.__setattr__(self, "view_index", view_index)
        object.__setattr__(self, "grown_streams", grown)

        # Under "mask" a batch ends with the epoch, so none holds a sample twice.
        if not self.allow_repeats and self.boundary != MASK:
            self._refuse_repeats()
        content = self.to_json()  # has the growths' positions, from `grown_streams`
        plan_hash = content_hash("p", content)
        object.__setattr__(self, "hash", plan_hash)

    def _largest_batches(self) -> dict[str, int]:
        """Return stream of a source or bucket -> slots of the largest batch that may draw from it."""
        largest: dict[str, int] = {}
        for mixture in self.streams.values():
            for segment in mixture.segments:
                batch = mixture.segment_batch(segment)
                for stream in segment.weights:
                    former = largest.get(stream, 0)
                    largest[stream] = max(batch, former)
        return largest

    def _refuse_repeats(self) -> None:
        """Raise BatchTooLarge if a source, or one of its buckets, is smaller than a batch that draws from it.

        For plans with the boundary "fill" and without `allow_repeats`.
        """
        largest = self._largest_batches()
        small: list[PlannedSource] = []
        for source in self.sources.values():
            # A delta view has one epoch: each of its samples fills one slot, however few there are.
            if source.delta:
                continue
            batch = largest.get(source.stream, 0)  # 0: it has no weight in any segment
            if source.shape.n < batch:
                small.append(source)
        if not small:
            return

        first = small[0]
        n = first.shape.n
        batch = largest[first.stream]
        if first.bucket is None:
            which_batch = "global_batch"
            remedy = "use a smaller global batch, more samples, or allow_repeats=True"
        else:
            which_batch = f"the batch of bucket {first.bucket!r}"
            remedy = (
                "give the bucket a smaller batch, leave its samples out with where(), or allow_repeats=True"
            )
        others = ""
        n_others = len(small) - 1
        if n_others:
            others = f" (and {n_others} more are too small)"
        raise BatchTooLarge(
            f"source {first.name!r} has {n} samples, "
            f"fewer than {which_batch} = {batch}{others}, "
            f"so one batch could hold a sample twice: {remedy}",
            what=which_batch,
            where=f"source {first.name!r}",
            given=batch,
            accepted=f"at most {n}",
        )

    @property
    def streams(self) -> Mapping[str | None, Stream]:
        """Bucket label -> the bucket's mixture of sources; without buckets None -> the plan's only one."""
        if self.buckets is not None:
            return dict(self.buckets.streams.items())
        names = []  # of the first views: later ones continue the same streams
        for name, source in self.sources.items():
            if not source.growth:
                names.append(name)
        stream = Stream(
            names=tuple(names),
            batch=self.global_batch,
            segments=self.segments,
        )
        return {None: stream}

    def used_before(self, step: int) -> dict[str, int]:
        """Return stream of a source or bucket -> positions used by earlier steps, zeros left out."""
        if self.buckets is not None:
            return self.buckets.used_before(step)
        own_step = max(0, step - self.first_step)
        return self.streams[None].used_before(own_step)

    def stream_of(self, stream: str) -> GrownStream:
        """Return the stages of a stream (`PlannedSource.stream`); a single one if its source never grows."""
        if stream in self.grown_streams:
            return self.grown_streams[stream]
        only_view = self.sources[stream]  # a stream has the name of its first view
        n = only_view.shape.n
        only_stage = Stage(
            start=0,
            origin=0,
            epoch=0,
            n=n,
        )
        return GrownStream((only_stage,))

    def growths_of(self, source: str) -> list[Growth]:
        return [growth for growth in self.grown if growth.source == source]

    def views_at(self, source: str, step: int) -> list[PlannedSource]:
        """Return a source's whole view in force at a step; with buckets, one view per non-empty bucket."""
        number = 0  # growths count from 1; 0 is the first version
        for growth in self.growths_of(source):
            if growth.step <= step:
                number += 1
        views = []
        for planned in self.sources.values():
            is_whole = planned.source == source and not planned.delta
            if is_whole and planned.growth == number:
                views.append(planned)
        return views

    def turn(self, step: int) -> Turn:
        if self.buckets is not None:
            return self.buckets.turn(step)
        only_stream = self.streams[None]
        return Turn(
            bucket=None,
            stream=only_stream,
            step=step,
        )

    def step_of(self, name: str, position: int) -> int | None:
        """Return the step that uses a position of a view's stream; None if no step does. name: of the view.

        Costs a pass over one mixture table per segment.
        """
        source = self.sources[name]
        if self.boundary == MASK:
            n = source.shape.n
            batch = self.global_batch
            epoch, position_in_epoch = divmod(position, n)
            steps_per_epoch = epoch_steps(n, batch)
            first_of_epoch = self.first_step + epoch * steps_per_epoch
            step_in_epoch = position_in_epoch // batch
            return first_of_epoch + step_in_epoch

        mixture = self.streams[source.bucket]
        step = mixture.step_of(source.stream, position)
        if step is None:
            return None
        if self.buckets is None or source.bucket is None:
            return step
        # `step` counts the bucket's own steps, which are its positions in the mixture of turns.
        return self.buckets.turns.step_of(source.bucket, position=step)

    @property
    def batch_range(self) -> tuple[int, int]:
        """Slots of the smallest and the largest global batch."""
        sizes: list[int] = []
        for stream in self.streams.values():
            sizes += stream.batch_sizes
        return min(sizes), max(sizes)

    @property
    def source_names(self) -> tuple[str, ...]:
        """Names in ascending order: `Slots.source` indexes this."""
        return tuple(self.sources)

    @property
    def format(self) -> int:
        """Lowest version of the plan's JSON whose readers give these batches."""
        if self.first_step:
            return 2
        for source in self.sources.values():
            view = source.view
            if not isinstance(view, PackedView):
                continue
            if view.request.rule or isinstance(view.documents, ListedView):
                return 2
            if view.packing.shapes:
                return 2
        return 1

    def to_json(self) -> dict[str, Any]:
        sources = {}
        for name, planned in self.sources.items():
            sources[name] = planned.to_json()
        segments = [segment.to_json() for segment in self.segments]
        out: dict[str, Any] = {
            "format": self.format,
            "order": ORDER_VERSION,
            "seed": self.seed,
            "global_batch": self.global_batch,
            "boundary": self.boundary,
            "allow_repeats": self.allow_repeats,
            "sources": sources,
            "segments": segments,
            "bucket_by": None,
            "pack": None,
            "quarantine": self.quarantine.to_json(),
        }
        if self.buckets is not None:
            out["bucket_by"] = self.buckets.to_json()
        if self.pack is not None:
            out["pack"] = self.pack.to_json()
        if self.grown:
            out["grown"] = self.grown_json(self.grown)
        if self.first_step:
            out["first_step"] = self.first_step
        return out

    def grown_json(self, growths: Sequence[Growth]) -> list[dict[str, Any]]:
        """Return the JSON of growths, each with the stream position at which it takes effect."""
        out: list[dict[str, Any]] = []
        for growth in growths:
            entry: dict[str, Any] = {
                "step": growth.step,
                "source": growth.source,
            }
            if self.buckets is None:  # each bucket's stream has a position of its own
                stream = self.grown_streams[growth.source]
                stage = stream.stages[growth.number]
                entry["position"] = stage.start
            out.append(entry)
        return out

    def checked_step(self, step: int) -> int:
        """Return step as an int.

        Raises InvalidRuntime if it is not a whole number, before the plan's first step, or positions exceed int64.
        """
        try:
            number = step.__index__()
        except AttributeError:
            raise InvalidRuntime(
                f"step = {step!r}: a whole number >= 0 is needed",
                what="step",
                given=step,
                accepted="a whole number >= 0",
            ) from None
        own_number = number - self.first_step
        if own_number < 0:
            raise InvalidRuntime(
                f"step = {number}: steps count from {self.first_step}",
                what="step",
                given=number,
                accepted=f"{self.first_step} or more",
            )
        _, largest = self.batch_range
        positions = (own_number + 1) * largest
        if positions > MAX_POSITIONS:
            n_steps = MAX_POSITIONS // largest
            last_step = self.first_step + n_steps - 1
            raise InvalidRuntime(
                f"step = {number}: the last step with a global batch of {largest} is {last_step}",
                what="step",
                given=number,
                accepted=f"at most {last_step}",
            )
        return number
