"""The turns of a plan with buckets whose sources grow: shares follow the sizes of the version in force."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import InvalidPlan
from ..content import PlanContent, PlannedSource
from ..mixing.interleave import Interleaving
from ..mixing.ramp import cut_at, in_force
from ..sources.bucket import BucketBy, size_ramp, some
from ..sources.growth import Growth
from .bucketed import bucket_labels, bucketed_segments, interleave_parts

Sizes = Sequence[tuple[int, Mapping[str, int]]]
"""(start step, label -> slots of its batches), from step 0 on."""


def more_buckets(
    plan: PlanContent,
    sources: Mapping[str, PlannedSource],
    grown: Sequence[Growth],
    step: int,
    bucket_by: object,
) -> dict[str, Any]:
    """Return the segments and turns of a plan that grows at a step.

    Nothing for one without buckets. bucket_by: the question that the plan was made with. It is needed
    for the batches of buckets that come with the growth. Raises: InvalidPlan.
    """
    if plan.buckets is None:
        if bucket_by is not None:
            raise InvalidPlan("grow(bucket_by=) of a plan without buckets: leave it out")
        return {}
    labels = bucket_labels(sources.values(), plan.buckets.by)
    starts = [(one.start_step, one.weights) for one in plan.segments]
    slots = [(one.start_step, one.batch or plan.global_batch) for one in plan.segments]
    sizes: Sizes = [(start, batch) for (start, _), batch in zip(starts, plan.buckets.batches, strict=True)]
    if bucket_by is not None:
        sizes = _with_new(
            plan.buckets, sizes, size_ramp(_asked(plan.buckets, bucket_by), labels, slots), step
        )
    if new := sorted(set(labels) - set(sizes[0][1])):
        raise InvalidPlan(
            f"the new version has samples of the bucket(s) {some(new)}, which the plan has no batch size for: pass the "
            "bucket_by that the plan was made with, grow(..., bucket_by=loader.bucket(...)), or start a new plan"
        )
    starts = cut_at(starts, (*dict(sizes), *(one.step for one in grown)))
    batches = [in_force(sizes, start) for start, _ in starts]
    return {
        "segments": bucketed_segments(starts, cut_at(slots, dict(starts))),
        "buckets": interleave_parts(plan.buckets.by, plan.buckets.edges, sources, starts, batches, grown),
    }


def _with_new(
    buckets: Interleaving, sizes: Sizes, given: Sequence[tuple[int, dict[str, int]]], step: int
) -> Sizes:
    """Return the plan's batch sizes, and those `given` to buckets that come at a step.

    Raises: InvalidPlan where others would change.
    """
    for start, known in cut_at(sizes, dict(given)):
        mine = in_force(given, start)
        if other := [label for label, size in known.items() if mine[label] != size]:
            raise InvalidPlan(
                f"bucket {other[0]!r} has batches of {known[other[0]]} in the plan, {mine[other[0]]} by bucket_by "
                f"from step {start} on: a growth leaves them as they are; pass what the plan was made with"
            )
    new = set(given[0][1]) - set(buckets.streams)
    later = [start for start, _ in given if start > step]  # before its step a growth changes nothing
    return [
        (start, {**known, **{label: in_force(given, max(start, step))[label] for label in new}})
        for start, known in cut_at(sizes, later)
    ]


def _asked(buckets: Interleaving, bucket_by: object) -> BucketBy:
    """Return the question that the plan was made with. Raises: InvalidPlan for another."""
    if not isinstance(bucket_by, BucketBy):
        raise InvalidPlan(f"bucket_by = {bucket_by!r}: loader.bucket(...) is needed")
    if (bucket_by.by, bucket_by.edges) != (buckets.by, buckets.edges):
        raise InvalidPlan(
            f"bucket_by asks {bucket_by.by!r} with edges {bucket_by.edges}, the plan has {buckets.by!r} with "
            f"{buckets.edges}: a plan keeps its buckets when it grows"
        )
    return bucket_by
