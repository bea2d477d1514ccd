"""The settings that decide what a batch holds at a rank, beside the step."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...dataset.versions.view import View
from ...errors import InvalidRuntime
from ...modalities import Decoder
from ...order.mixing.mixture import MASK
from ...order.plan import Plan
from ...order.sources.packed_view import PackedView
from ...order.sources.views import OrderView
from ...order.steps.slots import rank_slice
from .by_bucket import ByBucket, of_bucket, of_buckets
from .decode import Decode, Transform, decoders
from .world import World

if TYPE_CHECKING:
    from .recorded import Recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides the content of a batch at a rank. None of it changes which samples are planned."""

    plan: Plan
    """The plan."""
    world: World
    """Rank and world size."""
    decode: Decode
    """Decoders; with `by_bucket`, made for each bucket of the plan."""
    transform: Transform | ByBucket | None
    """Transform; with `by_bucket`, made for each bucket of the plan."""
    framework: str
    """"torch", "numpy" or "jax"."""
    position_limit: int | None
    """Stream position from which on slots are padding; None for none."""
    substitute: bool
    """True substitutes corrupt samples."""
    recorded: "Recorded | None" = None
    """Substitutions of a run that is looked back on: no other sample is substituted, and unreadable ones are masked."""

    def __post_init__(self) -> None:
        if not isinstance(self.plan, Plan):
            raise InvalidRuntime(
                f"plan = {self.plan!r}: a plan is needed, such as loader.plan({{'photos': version}}, seed=7, "
                "global_batch=64), or loader.open_plan(root, hash)"
            )
        labels = sorted({one.bucket for one in self.plan.sources.values() if one.bucket is not None})
        if isinstance(self.decode, Mapping):
            by_field = {
                name: of_buckets(one, labels, f"decode[{name!r}]") for name, one in self.decode.items()
            }
            object.__setattr__(self, "decode", by_field)
        object.__setattr__(self, "transform", of_buckets(self.transform, labels, "transform"))
        if not (self.transform is None or callable(self.transform) or isinstance(self.transform, ByBucket)):
            raise InvalidRuntime(
                f"transform = {self.transform!r}; accepted: None, or a function (sample, rng) -> sample"
            )
        if self.recorded is None:  # a look back is at one step, which may have more slots than another
            rank_slice(self.plan.batch_range[0], self.world.rank, self.world.world_size)
        if self.plan.pack is not None and self.decode is False:
            raise InvalidRuntime(
                "decode=False with a packed plan: its sequences are made of decoded tokens; leave it True"
            )
        for name, source in self.plan.sources.items():
            if stored_view(source.view) is None:
                raise InvalidRuntime(
                    f"source {name!r} is a {type(source.view).__name__} without bytes; a Loader needs views of "
                    "versions (loader.synthetic is for planning only)"
                )

    def decoders(self) -> list[dict[str, Decoder]]:
        """Return field -> decoder, of each source; one and the same dict of sources that are decoded alike.

        Raises: InvalidRuntime.
        """
        fields = list(dict.fromkeys(field for view in self.views for field in view.fields))
        differ = isinstance(self.decode, Mapping) and any(
            isinstance(one, ByBucket) for one in self.decode.values()
        )
        buckets = [one.bucket if differ else None for one in self.plan.sources.values()]
        decoders_of = {bucket: decoders(fields, self.decode, bucket) for bucket in buckets}
        return [decoders_of[bucket] for bucket in buckets]

    def transform_of(self, source: int) -> Transform | None:
        """Return the transform of samples of the plan's source number `source`."""
        bucket = list(self.plan.sources.values())[source].bucket
        choice: Transform | None = of_bucket(self.transform, bucket, "transform")
        return choice

    @property
    def views(self) -> list[View]:
        """The views that are read of the plan's sources, in their order."""
        return stored_views(self.plan)


def stored_views(plan: Plan) -> list[View]:
    """Return the views of versions that a plan reads, source by source; of a packed source, its documents'."""
    views = (stored_view(source.view) for source in plan.sources.values())
    return [view for view in views if view is not None]


def stored_view(view: OrderView) -> View | None:
    """Return the view of stored samples: itself, documents of a packed one, the view of a list; None without bytes."""
    stored = view.documents if isinstance(view, PackedView) else getattr(view, "listed", view)
    return stored if isinstance(stored, View) else None


def bounds(plan: Plan, epochs: int | None, steps: int | None) -> tuple[int | None, int | None]:
    """Return (first step not to make, first stream position that is padding), None where endless."""
    end = None if steps is None else whole_number("steps", steps, 0)
    if epochs is None:
        return end, None
    epochs = whole_number("epochs", epochs, 1)
    if plan.buckets is not None:
        raise InvalidRuntime(
            f"epochs = {epochs} with buckets, whose epochs end at different steps; use steps= (plan.describe() says "
            "how many steps an epoch is)"
        )
    names = plan.streams[None].names
    if len(names) != 1:
        raise InvalidRuntime(
            f"epochs = {epochs} with {len(names)} sources, whose epochs end at different steps; use steps="
        )
    limit = plan.stream_of(names[0]).epoch_start(epochs)
    last = plan.step_of(names[0], limit - 1)
    assert last is not None  # the last segment has no end, and the only source has a weight in it
    # (with "mask" the plan itself pads)
    return last + 1 if end is None else min(end, last + 1), None if plan.boundary == MASK else limit


def steps_of_run(end: int | None) -> int:
    """Return the batches of the whole run, from step 0 to its end, which a framework takes for the length of its epoch.

    An iteration that begins later has fewer. With a length, frameworks know the last batch without reading one ahead,
    so that the position they save is that after the last batch *used*. Raises: TypeError where the run is endless, as
    Python has it for iterables without a length.
    """
    if end is None:
        raise TypeError("an endless run has no length; steps=... or epochs=... bounds it")
    return end


def whole_number(name: str, value: object, low: int) -> int:
    """Return a whole number. Raises: InvalidRuntime for another value, or one below `low`."""
    number = value.__index__() if hasattr(value, "__index__") and not isinstance(value, bool) else None
    if number is None or number < low:
        raise InvalidRuntime(f"{name} = {value!r}; a whole number of at least {low} is needed")
    return int(number)
