"""Split a plan's sources into their buckets."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..errors import InvalidPlan
from .content import MixtureSource, PlannedSource, plan_source
from .interleave import MAX_BUCKETS, Interleaving, Starts, bucket_source, interleave
from .mixture import MixtureSegment
from .sources.bucket import BucketBy, first_few
from .sources.growth import Growth
from .sources.views import OrderView


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
    """Return the labels of these sources' buckets, ascending. Raises: InvalidPlan if there are too many."""
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

    starts, slots: entries for the same steps.
    """
    return tuple(
        MixtureSegment(
            start_step=start, weights=weights, base={}, batch=None if size == slots[0][1] else size
        )
        for (start, weights), (_, size) in zip(starts, slots, strict=True)
    )
