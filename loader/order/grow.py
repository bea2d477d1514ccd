"""Continue a plan under later versions from a chosen step; buckets take turns according to the new sizes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import EmptyView, InvalidPlan
from .bucket_sources import bucket_labels, bucketed_segments, interleave_parts, split_view
from .content import PlanContent
from .interleave import Interleaving, bucket_source
from .mixture import MASK
from .planned_source import MixtureSource, PlannedSource, mixture_source, plan_source
from .random.plan_hash import whole
from .sources.bucket import BucketBy, first_few, size_ramp
from .sources.growth import Growth, delta_name, whole_name
from .sources.items_view import ItemsView
from .sources.views import Delta, OrderView, delta_since
from .weights import cut_at, in_force


def grown_content(
    plan: PlanContent,
    views: Mapping[str, Any],
    step: int,
    bucket_by: object,
) -> dict[str, Any]:
    """Return the plan's changed fields: `sources`, `grown` and, with buckets, `segments` and `buckets`."""
    step = whole("grow: step", step, 0, 2**53)
    _check_growth(plan, views, step)
    names = {source.source for source in plan.sources.values()}
    sources = dict(plan.sources)
    growths = list(plan.grown)
    for name in sorted(views, key=str):
        if name not in names:
            raise InvalidPlan(f"grow names the source {name!r}; the sources are {sorted(names)}")
        earlier = [growth for growth in growths if growth.source == name]
        if earlier:
            last_step = earlier[-1].step
            if step <= last_step:
                raise InvalidPlan(
                    f"source {name!r} grows at step {last_step} already; "
                    f"a later growth has a later step, not {step}"
                )
        source = mixture_source(views[name])
        number = len(earlier) + 1
        growth, new_sources = _grown_source(
            plan,
            name,
            source,
            step,
            number,
        )
        same_names = sorted(new_sources.keys() & sources.keys())
        if same_names:
            first_name = same_names[0]
            raise InvalidPlan(f"source {first_name!r} has the name of a grown view: rename it in a new plan")
        sources |= new_sources
        growths.append(growth)

    sources = dict(sorted(sources.items()))
    growths.sort(key=lambda growth: (growth.step, growth.source))
    changes: dict[str, Any] = {
        "sources": sources,
        "grown": tuple(growths),
    }
    changes |= grown_turns(
        plan,
        sources,
        growths,
        step,
        bucket_by,
    )
    return changes


def _check_growth(
    plan: PlanContent,
    views: object,
    step: int,
) -> None:
    """Raise InvalidPlan unless the plan may grow at a step."""
    if plan.pack is not None:
        raise InvalidPlan("a plan with packing does not grow: make a new plan over the new version")
    if plan.boundary == MASK:
        raise InvalidPlan('a plan with boundary="mask" does not grow: make a new plan over the new version')
    if not isinstance(views, Mapping) or not views:
        raise InvalidPlan(f"grow({views!r}): a mapping of source names to their new views is needed")
    for source in plan.sources.values():
        if source.source in views and isinstance(source.view, ItemsView):
            raise InvalidPlan(
                f"source {source.source!r} is a dataset, which does not grow: make a new plan over the longer dataset"
            )
    if plan.buckets is not None and plan.grown:
        last_step = plan.grown[-1].step
        if step < last_step:
            raise InvalidPlan(
                f"a source grows at step {last_step} already, and shares of buckets change there: with buckets "
                f"a later growth has that step or a later one, not {step}"
            )


def _grown_source(
    plan: PlanContent,
    name: str,
    source: MixtureSource,
    step: int,
    number: int,
) -> tuple[Growth, dict[str, PlannedSource]]:
    """Return a source's growth, and its new views by name: of all samples and of the new ones.

    number: number of the growth among the source's, from 1.
    """
    if source.weight != 1:
        raise InvalidPlan(
            f"source {name!r}: grow() takes no weight, {source.weight!r} was given. Pass the view only; the plan's "
            "schedule sets weights"
        )
    old = _views_before(plan, name, number)
    all_views = [*old.values(), source.view]
    if any(hasattr(view, "first_epoch") for view in all_views):
        raise InvalidPlan(
            f"source {name!r} has a list, which does not grow: make a new plan over the new version"
        )
    new = _new_views(plan.buckets, name, source.view, old)
    sources = _whole_sources(
        plan,
        name,
        source,
        number,
        new,
    )

    used = plan.used_before(step)
    any_new = next(iter(new.values()))
    deltas: list[Delta] = []
    for bucket, old_view in old.items():
        stream = _stream_name(name, bucket)
        if bucket in new:
            view = new[bucket]
        else:
            view = _emptied(stream, old_view, any_new)
        delta = delta_since(stream, view, old_view)
        deltas.append(delta)

        start = used.get(stream, 0)
        stage = plan.stream_of(stream).stages[-1]
        # The rest of an epoch that has begun is mixed with the new samples.
        if delta.view is not None and stage.is_mid_epoch(start):
            full_name = delta_name(stream, number)
            delta_source = replace(source, view=delta.view)
            planned = plan_source(full_name, delta_source, bucket)
            sources[full_name] = replace(
                planned,
                growth=number,
                delta=True,
            )
    growth = _growth(step, name, number, deltas)
    return growth, sources


def _views_before(
    plan: PlanContent,
    name: str,
    number: int,
) -> dict[str | None, OrderView]:
    """Return bucket (None without buckets) -> view of all its samples, before a growth."""
    views: dict[str | None, OrderView] = {}
    for planned in plan.sources.values():
        is_before = planned.source == name and planned.growth == number - 1
        if is_before and not planned.delta:
            views[planned.bucket] = planned.view
    return views


def _whole_sources(
    plan: PlanContent,
    name: str,
    source: MixtureSource,
    number: int,
    new: Mapping[str | None, OrderView],
) -> dict[str, PlannedSource]:
    """Return the new views of all samples by name. A bucket that begins has a name without the growth."""
    streams = {planned.stream for planned in plan.sources.values()}
    sources: dict[str, PlannedSource] = {}
    for bucket, view in new.items():
        stream = _stream_name(name, bucket)
        begins = stream not in streams
        full_name = stream
        if not begins:
            full_name = whole_name(stream, number)
        whole_source = replace(source, view=view)
        planned = plan_source(full_name, whole_source, bucket)
        sources[full_name] = replace(
            planned,
            growth=number,
            begins=begins,
        )
    return sources


def _stream_name(source: str, bucket: str | None) -> str:
    if bucket is None:
        return source
    return bucket_source(source, bucket)


def _new_views(
    buckets: Interleaving | None,
    name: str,
    view: Any,
    old: Mapping[str | None, OrderView],
) -> Mapping[str | None, OrderView]:
    """Return the new view, split into buckets if the plan has any. A bare version takes the old view's predicate."""
    any_bucket, any_old_view = next(iter(old.items()))  # all have the same version and predicate
    is_version = not hasattr(view, "version_ordinals")
    takes_old_predicate = is_version and hasattr(any_old_view, "of_version")
    # With buckets, every view has one: the second test is for the type checker.
    if buckets is None or any_bucket is None:
        if takes_old_predicate:
            view = any_old_view.of_version(view)  # type: ignore[attr-defined]
        return {None: view}

    if takes_old_predicate:
        whole_view = any_old_view.unsplit(buckets.by, buckets.edges, any_bucket)  # type: ignore[attr-defined]
        view = whole_view.of_version(view)
    parts = split_view(name, view, buckets.by, buckets.edges)
    if not parts:
        raise EmptyView(
            f"source {name!r} has no samples (N = 0) in the new version: leave it out of the schedule"
        )
    return dict(parts.items())


def _emptied(
    stream: str,
    old_view: Any,
    new_view: Any,
) -> Any:
    """Return the view of a bucket that has no samples in the new version. new_view: any of that version."""
    if not hasattr(old_view, "of_version"):
        raise InvalidPlan(
            f"source {stream!r} has no samples in the new version, and its view cannot be continued. Leave the source "
            "out, or make a new plan"
        )
    return old_view.of_version(new_view.version)


def _growth(
    step: int,
    source: str,
    number: int,
    deltas: Sequence[Delta],
) -> Growth:
    # The same for each bucket of a stored version; synthetic buckets number their own samples.
    first = max(delta.first for delta in deltas)
    return Growth(
        step=step,
        source=source,
        number=number,
        first=first,
        removed=deltas[0].removed,  # of the whole version, so the same for each bucket
    )


def growths_again(
    sources: Mapping[str, PlannedSource],
    steps: Sequence[tuple[int, str]],
) -> tuple[Growth, ...]:
    """Return a plan's growths from its views and an ordered list of (step, source).

    Raises InvalidPlan if a view does not continue the previous one.
    """
    views: dict[tuple[str, int], dict[str | None, OrderView]] = {}  # (source, growth) -> bucket -> view
    for planned in sources.values():
        if not planned.delta:
            version = (planned.source, planned.growth)
            by_bucket = views.setdefault(version, {})
            by_bucket[planned.bucket] = planned.view

    growths: list[Growth] = []
    for step, name in steps:
        earlier = [growth for growth in growths if growth.source == name]
        number = len(earlier) + 1
        if (name, number) not in views:
            raise InvalidPlan(
                f"the plan's JSON is damaged: {name!r} grows at step {step}, and sources have no view of it"
            )
        pairs = _version_pairs(
            name,
            views[name, number],
            views[name, number - 1],
        )
        deltas = []
        for new_view, old_view in pairs:
            # The plan compared the versions when it grew.
            delta = delta_since(name, new_view, old_view, compare=False)
            deltas.append(delta)
        growth = _growth(
            step,
            name,
            number,
            deltas,
        )
        growths.append(growth)
    return tuple(growths)


def _version_pairs(
    name: str,
    new: Mapping[str | None, OrderView],
    old: Mapping[str | None, OrderView],
) -> Iterable[tuple[OrderView, OrderView]]:
    """Return (new view, old view) of a source's buckets, each pair of versions once."""
    pairs: dict[tuple[str, str], tuple[OrderView, OrderView]] = {}
    for bucket, old_view in old.items():
        new_view = new.get(bucket)
        if new_view is not None:
            # The buckets of a version share its delta: compute it once.
            identities = (new_view.identity, old_view.identity)
            pairs[identities] = (new_view, old_view)
    if pairs:
        return pairs.values()
    any_old = next(iter(old.values()))
    any_new = next(iter(new.values()))
    return [(_emptied(name, any_old, any_new), any_old)]


Sizes = Sequence[tuple[int, Mapping[str, int]]]
"""(start step, label -> slots of its batches), from step 0 on."""


def grown_turns(
    plan: PlanContent,
    sources: Mapping[str, PlannedSource],
    grown: Sequence[Growth],
    step: int,
    bucket_by: object,
) -> dict[str, Any]:
    """Return the plan's `segments` and `buckets` after a growth; {} without buckets.

    bucket_by: the plan's buckets, including batches for new ones.
    """
    buckets = plan.buckets
    if buckets is None:
        if bucket_by is not None:
            raise InvalidPlan("grow(bucket_by=) of a plan without buckets: leave it out")
        return {}

    starts: list[tuple[int, Mapping[str, int]]] = []
    slots: list[tuple[int, int]] = []
    sizes: list[tuple[int, Mapping[str, int]]] = []
    for segment, batch_sizes in zip(plan.segments, buckets.batches, strict=True):
        start = segment.start_step
        starts.append((start, segment.weights))
        slots.append((start, segment.batch or plan.global_batch))
        sizes.append((start, batch_sizes))

    labels = bucket_labels(sources.values(), buckets.by)
    if bucket_by is not None:
        same_buckets = _checked(buckets, bucket_by)
        requested_sizes = size_ramp(same_buckets, labels, slots)
        _check_sizes_unchanged(sizes, requested_sizes)
        sizes = _add_bucket_sizes(buckets, sizes, requested_sizes, step)
    _, first_sizes = sizes[0]
    new_labels = sorted(set(labels) - set(first_sizes))
    if new_labels:
        raise InvalidPlan(
            f"the new version has samples of the bucket(s) {first_few(new_labels)}, "
            "which the plan has no batch size for: "
            "pass the bucket_by that the plan was made with, grow(..., bucket_by=loader.bucket(...)), "
            "or start a new plan"
        )

    growth_steps = [growth.step for growth in grown]
    size_steps = [start for start, _ in sizes]
    starts = cut_at(starts, (*size_steps, *growth_steps))
    segment_steps = [start for start, _ in starts]
    slots = cut_at(slots, segment_steps)
    batches = [in_force(sizes, start) for start, _ in starts]
    return {
        "segments": bucketed_segments(starts, slots),
        "buckets": interleave_parts(
            buckets.by,
            buckets.edges,
            sources,
            starts,
            batches,
            grown,
        ),
    }


def _check_sizes_unchanged(
    sizes: Sizes,
    requested_sizes: Sizes,
) -> None:
    """Raise InvalidPlan if bucket_by requests another batch size for a bucket of the plan."""
    requested_steps = [start for start, _ in requested_sizes]
    for start, planned_sizes in cut_at(sizes, requested_steps):
        requested = in_force(requested_sizes, start)
        for label, size in planned_sizes.items():
            new_size = requested[label]
            if new_size != size:
                raise InvalidPlan(
                    f"bucket {label!r} has batches of {size} in the plan, {new_size} by bucket_by "
                    f"from step {start} on: a growth leaves them as they are; pass what the plan was made with"
                )


def _add_bucket_sizes(
    buckets: Interleaving,
    sizes: Sizes,
    requested_sizes: Sizes,
    step: int,
) -> list[tuple[int, Mapping[str, int]]]:
    """Return the plan's batch sizes, plus the requested ones of buckets that first appear at a step."""
    _, first_sizes = requested_sizes[0]
    new_labels = set(first_sizes) - set(buckets.streams)
    # Before its step a growth changes nothing.
    later_steps = [start for start, _ in requested_sizes if start > step]
    out: list[tuple[int, Mapping[str, int]]] = []
    for start, planned_sizes in cut_at(sizes, later_steps):
        requested = in_force(requested_sizes, max(start, step))
        new_sizes = {label: requested[label] for label in new_labels}
        out.append((start, {**planned_sizes, **new_sizes}))
    return out


def _checked(
    buckets: Interleaving,
    bucket_by: object,
) -> BucketBy:
    """Return bucket_by. Raises: InvalidPlan if it does not make the plan's buckets."""
    if not isinstance(bucket_by, BucketBy):
        raise InvalidPlan(f"bucket_by = {bucket_by!r}: loader.bucket(...) is needed")
    is_same = bucket_by.by == buckets.by and bucket_by.edges == buckets.edges
    if not is_same:
        raise InvalidPlan(
            f"bucket_by asks {bucket_by.by!r} with edges {bucket_by.edges}, "
            f"the plan has {buckets.by!r} with {buckets.edges}: a plan keeps its buckets when it grows"
        )
    return bucket_by
