"""The turns of a plan with buckets whose sources grow: shares follow the sizes of the version in force."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InvalidPlan
from .bucket import BucketBy, batch_sizes, some
from .bucketed import bucket_labels, bucketed_segments, interleave_parts
from .content import PlanContent, PlannedSource
from .growth import Growth
from .interleave import Interleaving
from .ramp import cut_at


def more_buckets(
    plan: PlanContent, sources: Mapping[str, PlannedSource], grown: Sequence[Growth], bucket_by: object
) -> dict[str, Any]:
    """The segments and turns of a plan that grows; nothing for one without buckets. bucket_by: what the plan was made
    with; it is needed for the batches of buckets that come with a growth. Raises: InvalidPlan."""
    if plan.buckets is None:
        if bucket_by is not None:
            raise InvalidPlan("grow(bucket_by=) of a plan without buckets: leave it out")
        return {}
    labels = bucket_labels(sources.values(), plan.buckets.by)
    batch = {label: stream.batch for label, stream in plan.buckets.streams.items()}
    if bucket_by is not None:
        given = _batches(plan.buckets, bucket_by, labels, plan.global_batch)
        if other := [label for label, size in batch.items() if given[label] != size]:
            raise InvalidPlan(
                f"bucket {other[0]!r} has batches of {batch[other[0]]} in the plan, {given[other[0]]} by bucket_by: a "
                "growth leaves them as they are; pass the bucket_by that the plan was made with"
            )
        batch = given
    if new := sorted(set(labels) - set(batch)):
        raise InvalidPlan(
            f"the new version has samples of the bucket(s) {some(new)}, which the plan has no batch size for: pass the "
            "bucket_by that the plan was made with, grow(..., bucket_by=loader.bucket(...)), or start a new plan"
        )
    starts = cut_at([(one.start_step, one.weights) for one in plan.segments], [one.step for one in grown])
    return {
        "segments": bucketed_segments(starts),
        "buckets": interleave_parts(plan.buckets.by, plan.buckets.edges, sources, starts, batch, grown),
    }


def _batches(
    buckets: Interleaving, bucket_by: object, labels: Sequence[str], global_batch: int
) -> dict[str, int]:
    """label -> slots of its batches, by the question that the plan was made with. Raises: InvalidPlan for another."""
    if not isinstance(bucket_by, BucketBy):
        raise InvalidPlan(f"bucket_by = {bucket_by!r}: loader.bucket(...) is needed")
    if (bucket_by.by, bucket_by.edges) != (buckets.by, buckets.edges):
        raise InvalidPlan(
            f"bucket_by asks {bucket_by.by!r} with edges {bucket_by.edges}, the plan has {buckets.by!r} with "
            f"{buckets.edges}: a plan keeps its buckets when it grows"
        )
    return batch_sizes(bucket_by, labels, global_batch)
