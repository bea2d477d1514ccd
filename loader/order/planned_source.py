"""Freeze a source: a view with its weight, its content hash, and the shape of its lanes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import EmptyView, InvalidPlan, InvalidRuntime
from .random.keyed_permutation import key
from .random.lanes import LaneShape, all_chunks_fit, choose_shape
from .sources.growth import delta_name, whole_view_name
from .sources.items_view import ItemsView
from .sources.packing import PackedView
from .sources.views import OrderView
from .weights import Weight


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
    view: OrderView,
    weight: Weight = 1,
    chunk: int | None = None,
    lanes: int | None = None,
) -> MixtureSource:
    """Return a view as one of a plan's sources.

    weight: int, Fraction, float or decimal string, relative to other sources. chunk: consecutive samples read together.
    lanes: chunks read side by side, a power of two. If None, the plan chooses by the view's size and mean sample bytes.
    """
    return MixtureSource(view, weight, chunk, lanes)


def mixture_source(view_or_source: OrderView | MixtureSource) -> MixtureSource:
    """Return a bare view as a source of weight 1; a source unchanged."""
    if isinstance(view_or_source, MixtureSource):
        return view_or_source
    return MixtureSource(view_or_source)


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
        if self.bucket is None:
            return self.stream
        return self.stream.removesuffix(f"/{self.bucket}")

    @property
    def stream(self) -> str:
        """Name of the source or bucket without growth; it names the endless stream of all its versions."""
        if not self.growth or self.begins:
            return self.name
        if self.delta:
            suffix = delta_name("", self.growth)
        else:
            suffix = whole_view_name("", self.growth)
        return self.name.removesuffix(suffix)

    def draw_substitute(
        self,
        seed: int,
        own: int,
        epoch: int,
        position_in_epoch: int,
        attempt: int,
    ) -> int:
        """Return the view ordinal of the substitute for sample `own` at this position of an epoch.

        attempt: 1, 2, ... The result is never `own` unless the view has no other sample.
        """
        n = self.shape.n
        hashed = key(
            seed,
            self.name,
            "substitute",
            epoch,
            position_in_epoch,
            attempt,
        )
        others = max(1, n - 1)
        distance = 1 + hashed % others
        return (own + distance) % n

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "view": self.view.spec(),
            "id": self.view_id,
            "n": self.shape.n,
            "chunk": self.shape.chunk,
            "lanes": self.shape.lanes,
            "h": self.shape.rounds_h,
        }
        # Absent in plans without buckets or growths, whose hashes are older than these fields.
        if self.bucket is not None:
            out["bucket"] = self.bucket
        if self.growth:
            out["growth"] = self.growth
        if self.delta:
            out["delta"] = True
        if self.begins:
            out["begins"] = True
        return out


def plan_source(
    name: str,
    view_or_source: OrderView | MixtureSource,
    bucket: str | None = None,
) -> PlannedSource:
    """Freeze a source, or one of its buckets. Raises EmptyView, or InvalidPlan for a bad name, view, chunk or lanes."""
    if not isinstance(name, str) or not name:
        raise InvalidPlan(
            f"source name {name!r}: a non-empty string is needed; it is part of the order's keys",
            what="source name",
            given=name,
        )
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidPlan(
            f"source name {name!r} is not valid Unicode text",
            what="source name",
            given=name,
        ) from None

    requested = mixture_source(view_or_source)
    view = requested.view
    if isinstance(view, ItemsView):
        view = view.of_source(name)
    is_view = all(hasattr(view, attribute) for attribute in ("version_ordinals", "spec", "__len__"))
    if not is_view:
        raise InvalidPlan(
            f"source {name!r} is a {type(view).__name__}, not a view: pass version.select(...), "
            "loader.source(view, ...) or loader.synthetic(n)",
            what=f"source {name!r}",
            given=type(view).__name__,
        )
    n = len(view)
    if n == 0:
        raise EmptyView(
            f"source {name!r} has no samples (N = 0): loosen its predicate or leave it out",
            what="view",
            where=f"source {name!r}",
            given=0,
        )

    try:
        _check_jumps(view)
        shape = choose_shape(
            n,
            view.mean_sample_bytes,
            _requested_chunk(requested),
            requested.lanes,
            getattr(view, "decoded_chunk", None),
        )
    except InvalidPlan as error:
        raise error.with_message(f"source {name!r}: {error}", where=f"source {name!r}") from None
    return PlannedSource(
        name=name,
        view=view,
        view_id=view.id,
        shape=shape,
        bucket=bucket,
    )


def _requested_chunk(requested: MixtureSource) -> int | None:
    """Return the chunk that a source asks for; None lets the plan choose by the samples' bytes."""
    if requested.chunk is None and requested.lanes is None:
        return getattr(requested.view, "default_chunk", None)
    return requested.chunk


def _check_jumps(view: OrderView) -> None:
    """Raise InvalidPlan for a list or packing over a table decoded by chunks, unless all chunks fit in memory."""
    jumps = {
        "listed": "a list jumps",
        "documents": "packing jumps",
    }
    for attribute, subject in jumps.items():
        base = getattr(view, attribute, None)  # the view that the list or the packing reads
        base = getattr(base, "listed", base)  # of a packed list
        decoded = getattr(base, "decoded_chunk", None)
        if base is None or decoded is None:
            continue
        if not all_chunks_fit(len(base), *decoded):
            samples_per_chunk = decoded[0]
            raise InvalidPlan(
                f"its samples lie in a registered table, {samples_per_chunk} to a chunk that is decoded whole, and "
                f"{subject} from chunk to chunk: import the table (penstock import), which makes samples that are "
                "read one by one",
                what=attribute,
                given=samples_per_chunk,
            )


def unknown_key(
    source: str,
    key: str,
    views: Sequence[PlannedSource],
) -> InvalidRuntime:
    """Return the error for a key that no view of a source has."""
    if any(isinstance(view.view, ItemsView) and view.view.source is None for view in views):
        hint = (
            "it is a dataset, of which the plan has only the items' numbers; for their names pass --recipe, or "
            "loader.open_plan(root, hash, items=...)"
        )
    elif any(isinstance(view.view, PackedView) for view in views):
        hint = "packed sources are keyed by document, not by the sequences that `batch.ids` names"
    else:
        hint = "keys are what `batch.ids` and `View.keys` give"
    return InvalidRuntime(
        f"key = {key!r}: no view of source {source!r} has a sample of this key; {hint}",
        what="key",
        where=f"source {source!r}",
        given=key,
    )
