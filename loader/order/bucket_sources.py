"""Split a plan's sources into buckets, and deal its steps to them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..errors import InvalidPlan
from .interleave import MAX_BUCKETS, Interleaving, Starts, bucket_source, interleave
from .mixture import MixtureSegment
from .planned_source import MixtureSource, PlannedSource, mixture_source, plan_source
from .sources.bucket import BucketBy, first_few
from .sources.growth import Growth
from .sources.items_view import unsupported
from .sources.views import OrderView


def split_sources(
    views: Mapping[str, OrderView | MixtureSource],
    bucket_by: BucketBy,
) -> dict[str, PlannedSource]:
    """Return name (`bucket_source`) -> each source's view of each bucket, in order of name."""
    planned: dict[str, PlannedSource] = {}
    for name, view_or_source in views.items():
        source = mixture_source(view_or_source)
        parts = split_view(
            name,
            source.view,
            bucket_by.by,
            bucket_by.edges,
        )
        for label, view in parts.items():
            full_name = bucket_source(name, label)
            if full_name in planned:
                raise InvalidPlan(f"{full_name!r} names a bucket of two sources: rename source {name!r}")
            part = replace(source, view=view)
            planned[full_name] = plan_source(full_name, part, label)
    bucket_labels(planned.values(), bucket_by.by)  # raises for too many
    in_order = sorted(planned.items())
    return dict(in_order)


def split_view(
    name: str,
    view: OrderView,
    by: str,
    edges: tuple[str, ...] | None,
) -> dict[str, OrderView]:
    """Return label -> the part of a view in that bucket. Raises InvalidPlan, naming the source."""
    if not hasattr(view, "split"):
        raise InvalidPlan(unsupported(name, view, "cannot be split into buckets"))
    try:
        parts: dict[str, OrderView] = view.split(by, edges)
    except InvalidPlan as error:
        raise InvalidPlan(f"source {name!r}: {error}") from None
    return parts


def bucket_labels(parts: Iterable[PlannedSource], by: str) -> list[str]:
    """Return the labels, ascending. Raises: InvalidPlan if there are too many."""
    labels = {part.bucket for part in parts if part.bucket is not None}
    ordered = sorted(labels)
    if len(ordered) > MAX_BUCKETS:
        examples = first_few(ordered)
        raise InvalidPlan(
            f"{by!r} gives {len(ordered)} buckets ({examples}): at most {MAX_BUCKETS} are dealt; use coarser "
            "ones, or edges="
        )
    return ordered


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
    sizes_by_segment: list[dict[str, dict[str, int]]] = []
    for start, _ in starts:
        growths_begun: Counter[str] = Counter()  # by source: the number of the version in force
        for growth in growths:
            if growth.step <= start:
                growths_begun[growth.source] += 1
        sizes: dict[str, dict[str, int]] = {}  # label -> source -> samples of the version in force
        for part in parts.values():
            if part.bucket is None or part.delta:
                continue
            if part.growth == growths_begun[part.source]:
                by_source = sizes.setdefault(part.bucket, {})
                by_source[part.source] = part.shape.n
        sizes_by_segment.append(sizes)
    return interleave(
        by,
        edges,
        sizes_by_segment,
        starts,
        batches,
    )


def bucketed_segments(
    starts: Starts,
    slots: Sequence[tuple[int, int]],
) -> tuple[MixtureSegment, ...]:
    """Return segments with the sources' weights and the global batch; their bases follow from the buckets' turns.

    starts, slots: one entry per segment, at the same steps.
    """
    _, first_batch = slots[0]
    segments = []
    for (start, weights), (_, size) in zip(starts, slots, strict=True):
        batch = None
        if size != first_batch:
            batch = size
        segment = MixtureSegment(
            start_step=start,
            weights=weights,
            base={},
            batch=batch,
        )
        segments.append(segment)
    return tuple(segments)
