"""Continue a plan under later versions from a chosen step; buckets take turns according to the new sizes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import EmptyView, InvalidPlan
from .bucket_sources import grow_turns, split_view
from .content import PlanContent
from .interleave import Interleaving, bucket_source
from .mixture import MASK
from .planned_source import MixtureSource, PlannedSource, mixture_source, plan_source
from .random.plan_hash import int_in_range
from .sources.growth import Growth, delta_name, whole_view_name
from .sources.items_view import ItemsView
from .sources.views import Delta, OrderView, view_growth


def grow_content(
    plan: PlanContent,
    views: Mapping[str, Any],
    step: int,
    bucket_by: object,
) -> dict[str, Any]:
    """Return the plan's changed fields: `sources`, `grown` and, with buckets, `segments` and `buckets`."""
    step = int_in_range("grow: step", step, 0, 2**53)
    _check_growth(plan, views, step)
    sources = dict(plan.sources)
    growths = list(plan.grown)
    for name in sorted(views, key=str):
        number = _next_growth(plan, name, step)
        source = mixture_source(views[name])
        growth, new_sources = _grow_source(
            plan,
            name,
            source,
            step,
            number,
        )
        same_names = sorted(new_sources.keys() & sources.keys())
        if same_names:
            first_name = same_names[0]
            raise InvalidPlan(
                f"source {first_name!r} has the name of a grown view: rename it in a new plan",
                what=f"source {first_name!r}",
                accepted="the name of no grown view",
            )
        sources |= new_sources
        growths.append(growth)

    sources = dict(sorted(sources.items()))
    growths.sort(key=lambda growth: (growth.step, growth.source))
    changes: dict[str, Any] = {
        "sources": sources,
        "grown": tuple(growths),
    }
    changes |= grow_turns(
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
        raise InvalidPlan(
            "a plan with packing does not grow: make a new plan over the new version",
            what="pack",
            where="grow",
        )
    if plan.boundary == MASK:
        raise InvalidPlan(
            'a plan with boundary="mask" does not grow: make a new plan over the new version',
            what="boundary",
            where="grow",
            given="mask",
        )
    if not isinstance(views, Mapping) or not views:
        raise InvalidPlan(
            f"grow({views!r}): a mapping of source names to their new views is needed",
            what="views",
            where="grow",
            given=views,
            accepted="a mapping of source names to their new views",
        )
    for source in plan.sources.values():
        if source.source in views and isinstance(source.view, ItemsView):
            raise InvalidPlan(
                f"source {source.source!r} is a dataset, which does not grow: make a new plan over the longer dataset",
                what="dataset",
                where=f"source {source.source!r}",
                accepted="a version",
            )
    if plan.buckets is not None and plan.grown:
        last_step = plan.grown[-1].step
        if step < last_step:
            raise InvalidPlan(
                f"a source grows at step {last_step} already, and shares of buckets change there: with buckets "
                f"a later growth has that step or a later one, not {step}",
                what="step",
                where="grow",
                given=step,
                accepted=f"{last_step} or more",
            )


def _next_growth(
    plan: PlanContent,
    name: str,
    step: int,
) -> int:
    """Return the number, from 1, of a source's growth at a step. Raises InvalidPlan if the source cannot grow there."""
    names = {source.source for source in plan.sources.values()}
    if name not in names:
        raise InvalidPlan(
            f"grow names the source {name!r}; the sources are {sorted(names)}",
            what="source",
            where="grow",
            given=name,
            accepted=sorted(names),
        )
    growths = plan.growths_of(name)
    if growths:
        last_step = growths[-1].step
        if step <= last_step:
            raise InvalidPlan(
                f"source {name!r} grows at step {last_step} already; "
                f"a later growth has a later step, not {step}",
                what="step",
                where=f"source {name!r}",
                given=step,
                accepted=f"more than {last_step}",
            )
    return len(growths) + 1


def _check_weight(name: str, source: MixtureSource) -> None:
    if source.weight != 1:
        raise InvalidPlan(
            f"source {name!r}: grow() takes no weight, {source.weight!r} was given. Pass the view only; the plan's "
            "schedule sets weights",
            what="weight",
            where=f"source {name!r}",
            given=source.weight,
        )


def _grow_source(
    plan: PlanContent,
    name: str,
    source: MixtureSource,
    step: int,
    number: int,
) -> tuple[Growth, dict[str, PlannedSource]]:
    """Return a source's growth, and its new whole and delta views by their names in the plan.

    source: the new version's view, before a split into buckets. number: of the growth among the source's, from 1.
    """
    _check_weight(name, source)
    old = _previous_views(plan, name, number)
    all_views = [*old.values(), source.view]
    if any(hasattr(view, "first_epoch") for view in all_views):
        raise InvalidPlan(
            f"source {name!r} has a list, which does not grow: make a new plan over the new version",
            what="list",
            where=f"source {name!r}",
        )
    new = _new_views(plan.buckets, name, source.view, old)
    sources = _plan_whole_views(
        plan,
        name,
        source,
        number,
        new,
    )

    # What each bucket gains and loses. A bucket that begins with this growth has no old view, and needs no delta view.
    used = plan.used_before(step)
    any_new = next(iter(new.values()))
    deltas: list[Delta] = []
    for bucket, old_view in old.items():
        stream = _stream_name(name, bucket)
        if bucket in new:
            view = new[bucket]
        else:
            view = _empty_view(stream, old_view, any_new)
        delta = view_growth(stream, view, old_view)
        deltas.append(delta)

        # The rest of an epoch that has begun is mixed with the new samples.
        start = used.get(stream, 0)
        stage = plan.stream_of(stream).stages[-1]
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


def _previous_views(
    plan: PlanContent,
    name: str,
    number: int,
) -> dict[str | None, OrderView]:
    """Return bucket (None without buckets) -> its whole view before a growth."""
    views: dict[str | None, OrderView] = {}
    for planned in plan.sources.values():
        is_previous = planned.source == name and planned.growth == number - 1
        if is_previous and not planned.delta:
            views[planned.bucket] = planned.view
    return views


def _plan_whole_views(
    plan: PlanContent,
    name: str,
    source: MixtureSource,
    number: int,
    new: Mapping[str | None, OrderView],
) -> dict[str, PlannedSource]:
    """Return the new whole views by their names in the plan. new: bucket (None without buckets) -> view."""
    streams = {planned.stream for planned in plan.sources.values()}
    sources: dict[str, PlannedSource] = {}
    for bucket, view in new.items():
        stream = _stream_name(name, bucket)
        begins = stream not in streams
        full_name = stream  # a bucket that begins has a name without the growth
        if not begins:
            full_name = whole_view_name(stream, number)
        whole_view = replace(source, view=view)
        planned = plan_source(full_name, whole_view, bucket)
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
    """Return bucket -> the new version's view of it; without buckets None -> the whole view.

    view: a view, or a bare version, which takes the old view's predicate. old: as from `_previous_views`.
    """
    any_bucket, any_old_view = next(iter(old.items()))  # all have the same version and predicate
    is_version = not hasattr(view, "version_ordinals")
    takes_old_predicate = is_version and hasattr(any_old_view, "of_version")
    # With buckets, every view has one: the second test is for the type checker.
    if buckets is None or any_bucket is None:
        if takes_old_predicate:
            view = any_old_view.of_version(view)  # type: ignore[attr-defined]
        return {None: view}

    if takes_old_predicate:  # a bucket's predicate, without the bucket's part of it
        unsplit_view = any_old_view.unsplit(buckets.by, buckets.edges, any_bucket)  # type: ignore[attr-defined]
        view = unsplit_view.of_version(view)
    parts = split_view(name, view, buckets.by, buckets.edges)
    if not parts:
        raise EmptyView(
            f"source {name!r} has no samples (N = 0) in the new version: leave it out of the schedule",
            what="view",
            where=f"source {name!r}",
            given=0,
        )
    return dict(parts.items())


def _empty_view(
    stream: str,
    old_view: Any,
    new_view: Any,
) -> Any:
    """Return the view, without samples, of a bucket that the new version empties. new_view: any of that version."""
    if not hasattr(old_view, "of_version"):
        raise InvalidPlan(
            f"source {stream!r} has no samples in the new version, and its view cannot be continued. Leave the source "
            "out, or make a new plan",
            what="view",
            where=f"source {stream!r}",
            given=0,
        )
    return old_view.of_version(new_view.version)


def _growth(
    step: int,
    source: str,
    number: int,
    deltas: Sequence[Delta],
) -> Growth:
    """Return the growth of a source. deltas: one for each of its buckets."""
    # The same for each bucket of a stored version; synthetic buckets number their own samples.
    first = max(delta.first for delta in deltas)
    return Growth(
        step=step,
        source=source,
        number=number,
        first=first,
        removed=deltas[0].removed,  # of the version, so the same for each bucket
    )


def restore_growths(
    sources: Mapping[str, PlannedSource],
    steps: Sequence[tuple[int, str]],
) -> tuple[Growth, ...]:
    """Return a saved plan's growths from its views. steps: (step, source) of each, in order.

    Raises InvalidPlan if a view does not continue the previous one.
    """
    views: dict[tuple[str, int], dict[str | None, OrderView]] = {}  # (source, growth) -> bucket -> whole view
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
                f"the plan's JSON is damaged: {name!r} grows at step {step}, and sources have no view of it",
                what="grown",
                where=f"step {step}",
                given=name,
            )
        pairs = _pairs_to_compare(
            name,
            views[name, number],
            views[name, number - 1],
        )
        deltas = []
        for new_view, old_view in pairs:
            # The plan compared the versions when it grew.
            delta = view_growth(name, new_view, old_view, compare=False)
            deltas.append(delta)
        growth = _growth(
            step,
            name,
            number,
            deltas,
        )
        growths.append(growth)
    return tuple(growths)


def _pairs_to_compare(
    name: str,
    new: Mapping[str | None, OrderView],
    old: Mapping[str | None, OrderView],
) -> Iterable[tuple[OrderView, OrderView]]:
    """Return (new view, old view) of one bucket for each pair of versions. new, old: bucket -> whole view.

    The buckets of a stored version share its delta, so one of them is enough. Synthetic buckets are versions of their
    own.
    """
    pairs: dict[tuple[str, str], tuple[OrderView, OrderView]] = {}
    for bucket, old_view in old.items():
        new_view = new.get(bucket)
        if new_view is not None:
            identities = (new_view.identity, old_view.identity)
            pairs[identities] = (new_view, old_view)
    if pairs:
        return pairs.values()
    # No bucket exists before and after the growth.
    any_old = next(iter(old.values()))
    any_new = next(iter(new.values()))
    return [(_empty_view(name, any_old, any_new), any_old)]
