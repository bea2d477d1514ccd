"""Continue a plan under later versions from a chosen step; buckets take turns according to the new sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import EmptyView, InvalidPlan
from .bucket_sources import bucket_labels, bucketed_segments, interleave_parts, split_view
from .content import PlanContent
from .interleave import Interleaving, bucket_source
from .mixture import MASK
from .planned_source import MixtureSource, PlannedSource, plan_source
from .random.plan_hash import whole
from .sources.bucket import BucketBy, first_few, size_ramp
from .sources.growth import Growth, delta_name, whole_name
from .sources.views import Delta, OrderView, delta_since
from .weights import cut_at, in_force


def grown_content(
    plan: PlanContent, views: Mapping[str, Any], step: int, bucket_by: object
) -> dict[str, Any]:
    """Return the fields of a plan that change: sources, growths, and with buckets their turns."""
    step = whole("grow: step", step, 0, 2**53)
    for there, what in (
        (plan.pack is not None, "packing"),
        (plan.boundary == MASK, 'boundary="mask"'),
    ):
        if there:
            raise InvalidPlan(f"a plan with {what} does not grow: make a new plan over the new version")
    if not isinstance(views, Mapping) or not views:
        raise InvalidPlan(f"grow({views!r}): a mapping of source names to their new views is needed")
    sources, grown = dict(plan.sources), list(plan.grown)
    if plan.buckets is not None and plan.grown and step < plan.grown[-1].step:
        raise InvalidPlan(
            f"a source grows at step {plan.grown[-1].step} already, and shares of buckets change there: with buckets "
            f"a later growth has that step or a later one, not {step}"
        )
    names = sorted({entry.source for entry in plan.sources.values()})
    for name in sorted(views, key=str):
        if name not in names:
            raise InvalidPlan(f"grow names the source {name!r}; the sources are {names}")
        earlier = [entry for entry in grown if entry.source == name]
        if earlier and step <= earlier[-1].step:
            raise InvalidPlan(
                f"source {name!r} grows at step {earlier[-1].step} already; a later growth has a later step, not {step}"
            )
        growth, entries = _grown_source(plan, name, views[name], step, len(earlier) + 1)
        if doubled := sorted(entries.keys() & sources.keys()):
            raise InvalidPlan(f"source {doubled[0]!r} has the name of a grown view: rename it in a new plan")
        sources |= entries
        grown.append(growth)
    content: dict[str, Any] = {
        "sources": {name: sources[name] for name in sorted(sources)},
        "grown": tuple(sorted(grown, key=lambda entry: (entry.step, entry.source))),
    }
    return content | more_buckets(plan, content["sources"], content["grown"], step, bucket_by)


def _grown_source(
    plan: PlanContent, name: str, view_or_source: Any, step: int, number: int
) -> tuple[Growth, dict[str, PlannedSource]]:
    source = view_or_source if isinstance(view_or_source, MixtureSource) else MixtureSource(view_or_source)
    if source.weight != 1:
        raise InvalidPlan(
            f"source {name!r}: a growth has no weight = {source.weight!r}; the schedule has them"
        )
    old = {
        planned.bucket: planned.view
        for planned in plan.sources.values()
        if (planned.source, planned.growth, planned.delta) == (name, number - 1, False)
    }
    if any(hasattr(planned, "first_epoch") for planned in (*old.values(), source.view)):
        raise InvalidPlan(
            f"source {name!r} has a list, which does not grow: make a new plan over the new version"
        )
    new = _new_views(plan.buckets, name, source.view, old)
    used = plan.used_before(step)
    streams = {planned.stream for planned in plan.sources.values()}
    entries: dict[str, PlannedSource] = {}
    for bucket, view in new.items():
        stream = name if bucket is None else bucket_source(name, bucket)
        begins = stream not in streams
        full = stream if begins else whole_name(stream, number)
        planned = plan_source(full, replace(source, view=view), bucket)
        entries[full] = replace(planned, growth=number, begins=begins)
    deltas: list[Delta] = []
    for bucket, was in old.items():
        stream = name if bucket is None else bucket_source(name, bucket)
        view = new[bucket] if bucket in new else _emptied(stream, was, next(iter(new.values())))
        delta = delta_since(stream, view, was)
        deltas.append(delta)
        start = used.get(stream, 0)
        mixed = (
            plan.stream_of(stream).stages[-1].after(start, n=1, delta=0).origin > start
        )  # its epoch has not ended
        if delta.view is not None and mixed:
            full = delta_name(stream, number)
            planned = plan_source(full, replace(source, view=delta.view), bucket)
            entries[full] = replace(planned, growth=number, delta=True)
    return _growth(step, name, number, deltas), entries


def _new_views(
    buckets: Interleaving | None, name: str, view: Any, old: Mapping[str | None, OrderView]
) -> Mapping[str | None, OrderView]:
    bucket, was = next(iter(old.items()))
    alone = not hasattr(view, "version_ordinals") and hasattr(was, "of_version")
    if buckets is None or bucket is None:
        return {None: was.of_version(view) if alone else view}  # type: ignore[attr-defined]
    if alone:
        view = was.unsplit(buckets.by, buckets.edges, bucket).of_version(view)  # type: ignore[attr-defined]
    parts = split_view(name, view, buckets.by, buckets.edges)
    if not parts:
        raise EmptyView(
            f"source {name!r} has no samples (N = 0) in the new version: leave it out of the schedule"
        )
    return dict(parts.items())


def _emptied(stream: str, was: Any, other: Any) -> Any:
    if not hasattr(was, "of_version"):
        raise InvalidPlan(
            f"source {stream!r} has no samples in the new version, which does not go on from one with {len(was)}"
        )
    return was.of_version(other.version)


def _growth(step: int, source: str, number: int, deltas: Sequence[Delta]) -> Growth:
    first = max(delta.first for delta in deltas)
    return Growth(step=step, source=source, number=number, first=first, removed=deltas[0].removed)


def growths_again(
    sources: Mapping[str, PlannedSource], steps: Sequence[tuple[int, str]]
) -> tuple[Growth, ...]:
    """Return a plan's growths from its views and an ordered list of (step, source).

    Raises InvalidPlan if a view does not continue the previous one.
    """
    views: dict[tuple[str, int], dict[str | None, OrderView]] = {}
    for planned in sources.values():
        if not planned.delta:
            views.setdefault((planned.source, planned.growth), {})[planned.bucket] = planned.view
    out: list[Growth] = []
    for step, name in steps:
        number = 1 + sum(growth.source == name for growth in out)
        if (name, number) not in views:
            raise InvalidPlan(
                f"the plan's JSON is damaged: {name!r} grows at step {step}, and sources have no view of it"
            )
        new, old = views[name, number], views[name, number - 1]
        # all buckets come from one version, whose samples need no second comparison
        pairs = {(new[at].identity, was.identity): (new[at], was) for at, was in old.items() if at in new}
        if not pairs:
            was = next(iter(old.values()))
            pairs = {("", ""): (_emptied(name, was, next(iter(new.values()))), was)}
        deltas = [delta_since(name, view, was, compare=False) for view, was in pairs.values()]
        out.append(_growth(step, name, number, deltas))
    return tuple(out)


Sizes = Sequence[tuple[int, Mapping[str, int]]]
"""(start step, label -> slots of its batches), from step 0 on."""


def more_buckets(
    plan: PlanContent,
    sources: Mapping[str, PlannedSource],
    grown: Sequence[Growth],
    step: int,
    bucket_by: object,
) -> dict[str, Any]:
    """Return the segments and turns of a plan that grows at a step; {} without buckets.

    bucket_by: the plan's buckets, including batches for new ones.
    """
    if plan.buckets is None:
        if bucket_by is not None:
            raise InvalidPlan("grow(bucket_by=) of a plan without buckets: leave it out")
        return {}
    labels = bucket_labels(sources.values(), plan.buckets.by)
    starts = [(segment.start_step, segment.weights) for segment in plan.segments]
    slots = [(segment.start_step, segment.batch or plan.global_batch) for segment in plan.segments]
    sizes: Sizes = [(start, batch) for (start, _), batch in zip(starts, plan.buckets.batches, strict=True)]
    if bucket_by is not None:
        sizes = _with_new(
            plan.buckets, sizes, size_ramp(_asked(plan.buckets, bucket_by), labels, slots), step
        )
    if new := sorted(set(labels) - set(sizes[0][1])):
        raise InvalidPlan(
            f"the new version has samples of the bucket(s) {first_few(new)}, which the plan has no batch size for: "
            "pass the bucket_by that the plan was made with, grow(..., bucket_by=loader.bucket(...)), or start a new "
            "plan"
        )
    starts = cut_at(starts, (*dict(sizes), *(growth.step for growth in grown)))
    batches = [in_force(sizes, start) for start, _ in starts]
    return {
        "segments": bucketed_segments(starts, cut_at(slots, dict(starts))),
        "buckets": interleave_parts(plan.buckets.by, plan.buckets.edges, sources, starts, batches, grown),
    }


def _with_new(
    buckets: Interleaving, sizes: Sizes, changes: Sequence[tuple[int, dict[str, int]]], step: int
) -> Sizes:
    """Return the plan's batch sizes, plus those in `changes` for buckets that first appear at a step."""
    for start, known in cut_at(sizes, dict(changes)):
        now = in_force(changes, start)
        if other := [label for label, size in known.items() if now[label] != size]:
            raise InvalidPlan(
                f"bucket {other[0]!r} has batches of {known[other[0]]} in the plan, {now[other[0]]} by bucket_by "
                f"from step {start} on: a growth leaves them as they are; pass what the plan was made with"
            )
    new = set(changes[0][1]) - set(buckets.streams)
    later = [start for start, _ in changes if start > step]  # before its step a growth changes nothing
    return [
        (start, {**known, **{label: in_force(changes, max(start, step))[label] for label in new}})
        for start, known in cut_at(sizes, later)
    ]


def _asked(buckets: Interleaving, bucket_by: object) -> BucketBy:
    if not isinstance(bucket_by, BucketBy):
        raise InvalidPlan(f"bucket_by = {bucket_by!r}: loader.bucket(...) is needed")
    if (bucket_by.by, bucket_by.edges) != (buckets.by, buckets.edges):
        raise InvalidPlan(
            f"bucket_by asks {bucket_by.by!r} with edges {bucket_by.edges}, the plan has {buckets.by!r} with "
            f"{buckets.edges}: a plan keeps its buckets when it grows"
        )
    return bucket_by
