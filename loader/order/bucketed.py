"""A plan's sources, split into their buckets."""

from collections.abc import Mapping
from dataclasses import replace

from ..errors import InvalidPlan
from .bucket import BucketBy, some
from .content import PlannedSource, Source, plan_source
from .interleave import MAX_BUCKETS, Interleaving, Starts, bucket_source, interleave
from .mixture import Segment
from .views import OrderView


def split_sources(views: Mapping[str, OrderView | Source], asked: BucketBy) -> dict[str, PlannedSource]:
    """Every source's buckets as sources of their own, in order of their names. Raises: InvalidPlan."""
    found: dict[str, PlannedSource] = {}
    for name, given in views.items():
        wanted = given if isinstance(given, Source) else Source(given)
        if not hasattr(wanted.view, "split"):
            raise InvalidPlan(
                f"source {name!r} is a {type(wanted.view).__name__}, which cannot be split into buckets"
            )
        try:
            parts = wanted.view.split(asked.by, asked.edges)
        except InvalidPlan as error:
            raise InvalidPlan(f"source {name!r}: {error}") from None
        for label, view in parts.items():
            full = bucket_source(name, label)
            if full in found:
                raise InvalidPlan(f"{full!r} names a bucket of two sources: rename source {name!r}")
            found[full] = plan_source(full, replace(wanted, view=view), label)
    labels = sorted({part.bucket for part in found.values() if part.bucket is not None})
    if len(labels) > MAX_BUCKETS:
        raise InvalidPlan(
            f"{asked.by!r} gives {len(labels)} buckets ({some(labels)}): at most {MAX_BUCKETS} are dealt; use coarser "
            "ones, or edges="
        )
    return {name: found[name] for name in sorted(found)}


def interleave_parts(
    by: str,
    edges: tuple[str, ...] | None,
    parts: Mapping[str, PlannedSource],
    starts: Starts,
    batch: Mapping[str, int],
) -> Interleaving:
    """The turns of the buckets of these sources (each with a bucket)."""
    sizes: dict[str, dict[str, int]] = {}
    for part in parts.values():
        if part.bucket is not None:
            sizes.setdefault(part.bucket, {})[part.source] = part.shape.n
    return interleave(by, edges, sizes, starts, batch)


def bucketed_segments(starts: Starts) -> tuple[Segment, ...]:
    """The sources' weights by step, without bases: what was used before follows from the buckets' turns."""
    return tuple(Segment(start_step=start, weights=weights, base={}) for start, weights in starts)
