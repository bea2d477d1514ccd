"""Split a plan's sources into buckets, and deal its steps to them, also after a growth."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import InvalidPlan
from .content import PlanContent
from .interleave import MAX_BUCKETS, Interleaving, WeightSchedule, bucket_source, interleave
from .mixture import MixtureSegment
from .planned_source import MixtureSource, PlannedSource, mixture_source, plan_source
from .sources.bucket import BucketBy, first_few, size_ramp
from .sources.growth import Growth
from .sources.items_view import unsupported
from .sources.views import OrderView
from .weights import in_force, split_schedule


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
            # A source's name may contain "/": `a` in bucket `b/c` and `a/b` in bucket `c` would both be `a/b/c`.
            if full_name in planned:
                raise InvalidPlan(
                    f"{full_name!r} names a bucket of two sources: rename source {name!r}",
                    what=f"source {name!r}",
                    given=full_name,
                )
            part = replace(source, view=view)
            planned[full_name] = plan_source(full_name, part, label)
    bucket_labels(planned.values(), bucket_by.by)  # called for its error: too many buckets
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
        raise InvalidPlan(
            unsupported(name, view, "cannot be split into buckets"),
            what=f"source {name!r}",
            given=type(view).__name__,
            accepted="views that can be split into buckets",
        )
    try:
        parts: dict[str, OrderView] = view.split(by, edges)
    except InvalidPlan as error:
        raise error.with_message(f"source {name!r}: {error}", where=f"source {name!r}") from None
    return parts


def bucket_labels(parts: Iterable[PlannedSource], by: str) -> list[str]:
    """Return the labels of all buckets, ascending. Raises: InvalidPlan if there are too many."""
    labels = {part.bucket for part in parts if part.bucket is not None}
    ordered = sorted(labels)
    if len(ordered) > MAX_BUCKETS:
        examples = first_few(ordered)
        raise InvalidPlan(
            f"{by!r} gives {len(ordered)} buckets ({examples}): at most {MAX_BUCKETS} are dealt; use coarser "
            "ones, or edges=",
            what=by,
            given=len(ordered),
            accepted=MAX_BUCKETS,
        )
    return ordered


def interleave_parts(
    by: str,
    edges: tuple[str, ...] | None,
    parts: Mapping[str, PlannedSource],
    weight_schedule: WeightSchedule,
    batches: Sequence[Mapping[str, int]],
    growths: Sequence[Growth] = (),
) -> Interleaving:
    """Return the turns of these buckets. parts: each source's view of each bucket.

    weight_schedule, batches: an entry per segment. A segment also begins at each growth; it has the sizes of the
    versions in force.
    """
    sizes_by_segment: list[dict[str, dict[str, int]]] = []
    for start, _ in weight_schedule:
        # source -> number of its growth in force, from 1 on; 0 for none
        last_growth: Counter[str] = Counter()
        for growth in growths:
            if growth.step <= start:
                last_growth[growth.source] += 1
        sizes: dict[str, dict[str, int]] = {}  # label -> source -> samples of the version in force
        for part in parts.values():
            # A delta's samples are in the growth's view of all samples too: count that one.
            if part.bucket is None or part.delta:
                continue
            if part.growth == last_growth[part.source]:
                by_source = sizes.setdefault(part.bucket, {})
                by_source[part.source] = part.shape.n
        sizes_by_segment.append(sizes)
    return interleave(
        by,
        edges,
        sizes_by_segment,
        weight_schedule,
        batches,
    )


def bucket_segments(
    weight_schedule: WeightSchedule,
    batch_schedule: Sequence[tuple[int, int]],
) -> tuple[MixtureSegment, ...]:
    """Return segments with the sources' weights and the global batch. Buckets count used samples, so bases are empty.

    weight_schedule: (start step, weights). batch_schedule: (start step, slots of the global batch). Both have one entry
    per segment, at the same steps.
    """
    _, global_batch = batch_schedule[0]
    segments = []
    for (start, weights), (_, n_slots) in zip(weight_schedule, batch_schedule, strict=True):
        batch = None  # the plan's global batch
        if n_slots != global_batch:
            batch = n_slots
        segment = MixtureSegment(
            start_step=start,
            weights=weights,
            base={},
            batch=batch,
        )
        segments.append(segment)
    return tuple(segments)


SizeSchedule = Sequence[tuple[int, Mapping[str, int]]]
"""(start step, label -> slots of its batches), from step 0 on."""


def grow_turns(
    plan: PlanContent,
    sources: Mapping[str, PlannedSource],
    grown: Sequence[Growth],
    step: int,
    bucket_by: object,
) -> dict[str, Any]:
    """Return the plan's `segments` and `buckets` after a growth; {} without buckets.

    bucket_by: the plan's buckets, including batches for new ones; None if there are no new ones.
    """
    buckets = plan.buckets
    if buckets is None:
        if bucket_by is not None:
            raise InvalidPlan(
                "grow(bucket_by=) of a plan without buckets: leave it out", what="bucket_by", where="grow"
            )
        return {}

    # The plan's schedules, as (start step, value) pairs.
    weight_schedule: list[tuple[int, Mapping[str, int]]] = []
    batch_schedule: list[tuple[int, int]] = []
    size_schedule: list[tuple[int, Mapping[str, int]]] = []
    for segment, batch_sizes in zip(plan.segments, buckets.batches, strict=True):
        start = segment.start_step
        weight_schedule.append((start, segment.weights))
        batch_schedule.append((start, segment.batch or plan.global_batch))
        size_schedule.append((start, batch_sizes))

    labels = bucket_labels(sources.values(), buckets.by)
    if bucket_by is not None:
        size_schedule = _add_requested_sizes(
            buckets,
            bucket_by,
            labels,
            batch_schedule,
            size_schedule,
            step,
        )
    _check_sizes_complete(size_schedule, labels)

    # A segment begins wherever a schedule changes or a source grows.
    growth_steps = [growth.step for growth in grown]
    size_steps = [start for start, _ in size_schedule]
    weight_schedule = split_schedule(weight_schedule, (*size_steps, *growth_steps))
    segment_steps = [start for start, _ in weight_schedule]
    batch_schedule = split_schedule(batch_schedule, segment_steps)
    batches = [in_force(size_schedule, start) for start in segment_steps]
    return {
        "segments": bucket_segments(weight_schedule, batch_schedule),
        "buckets": interleave_parts(
            buckets.by,
            buckets.edges,
            sources,
            weight_schedule,
            batches,
            grown,
        ),
    }


def _check_sizes_complete(
    size_schedule: SizeSchedule,
    labels: Sequence[str],
) -> None:
    """Raise InvalidPlan if a bucket has no batch size."""
    _, first_sizes = size_schedule[0]  # each entry has all labels
    new_labels = sorted(set(labels) - set(first_sizes))
    if new_labels:
        raise InvalidPlan(
            f"the new version has samples of the bucket(s) {first_few(new_labels)}, "
            "which the plan has no batch size for: "
            "pass the bucket_by that the plan was made with, grow(..., bucket_by=loader.bucket(...)), "
            "or start a new plan",
            what="bucket_by",
            given=new_labels,
            accepted=sorted(first_sizes),
        )


def _add_requested_sizes(
    buckets: Interleaving,
    bucket_by: object,
    labels: Sequence[str],
    batch_schedule: Sequence[tuple[int, int]],
    size_schedule: SizeSchedule,
    step: int,
) -> list[tuple[int, Mapping[str, int]]]:
    """Return the plan's batch sizes, and the sizes that `bucket_by` requests for buckets that first appear at a step.

    labels: of all buckets, including the new ones.

    Raises: InvalidPlan if `bucket_by` does not make the plan's buckets, or changes their batches.
    """
    if not isinstance(bucket_by, BucketBy):
        raise InvalidPlan(
            f"bucket_by = {bucket_by!r}: loader.bucket(...) is needed",
            what="bucket_by",
            given=bucket_by,
            accepted="loader.bucket(...)",
        )
    is_same = bucket_by.by == buckets.by and bucket_by.edges == buckets.edges
    if not is_same:
        raise InvalidPlan(
            f"bucket_by asks {bucket_by.by!r} with edges {bucket_by.edges}, "
            f"the plan has {buckets.by!r} with {buckets.edges}: a plan keeps its buckets when it grows",
            what="bucket_by",
            given=[bucket_by.by, bucket_by.edges],
            accepted=[buckets.by, buckets.edges],
        )
    requested_schedule = size_ramp(bucket_by, labels, batch_schedule)
    _check_sizes_unchanged(size_schedule, requested_schedule)

    _, first_sizes = requested_schedule[0]
    new_labels = set(first_sizes) - set(buckets.streams)
    # Before its step a growth changes nothing, so no entry begins there, and earlier entries get the step's sizes.
    later_steps = [start for start, _ in requested_schedule if start > step]
    out: list[tuple[int, Mapping[str, int]]] = []
    for start, planned_sizes in split_schedule(size_schedule, later_steps):
        requested = in_force(requested_schedule, max(start, step))
        new_sizes = {label: requested[label] for label in new_labels}
        out.append((start, {**planned_sizes, **new_sizes}))
    return out


def _check_sizes_unchanged(
    size_schedule: SizeSchedule,
    requested_schedule: SizeSchedule,
) -> None:
    """Raise InvalidPlan if bucket_by requests another batch size for a bucket of the plan."""
    requested_steps = [start for start, _ in requested_schedule]
    for start, planned_sizes in split_schedule(size_schedule, requested_steps):
        requested = in_force(requested_schedule, start)
        for label, size in planned_sizes.items():
            new_size = requested[label]
            if new_size != size:
                raise InvalidPlan(
                    f"bucket {label!r} has batches of {size} in the plan, {new_size} by bucket_by "
                    f"from step {start} on: a growth leaves them as they are; pass what the plan was made with",
                    what=f"batch of bucket {label!r}",
                    where=f"step {start}",
                    given=new_size,
                    accepted=size,
                )
