"""A plan that goes on under later versions from a chosen step: what `Plan.grow` makes of its plan."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...errors import EmptyView, InvalidPlan
from ..content import PlanContent, PlannedSource, Source, plan_source
from ..mixing.boundary import MASK
from ..mixing.interleave import Interleaving, bucket_source
from ..random.plan_hash import whole
from ..sources.growth import Growth, delta_name, whole_name
from ..sources.views import Delta, OrderView, delta_since
from .bucketed import split_view
from .grow_buckets import more_buckets


def grown_content(
    plan: PlanContent, views: Mapping[str, Any], step: int, bucket_by: object
) -> dict[str, Any]:
    """Return the fields of a plan that differ: sources, growths, and with buckets their turns.

    Raises InvalidPlan; see `Plan.grow`.
    """
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
    names = sorted({one.source for one in plan.sources.values()})
    for name in sorted(views, key=str):
        if name not in names:
            raise InvalidPlan(f"grow names the source {name!r}; the sources are {names}")
        earlier = [one for one in grown if one.source == name]
        if earlier and step <= earlier[-1].step:
            raise InvalidPlan(
                f"source {name!r} grows at step {earlier[-1].step} already; a later growth has a later step, not {step}"
            )
        growth, entries = _grown_source(plan, name, views[name], step, len(earlier) + 1)
        if taken := sorted(entries.keys() & sources.keys()):
            raise InvalidPlan(f"source {taken[0]!r} has the name of a grown view: rename it in a new plan")
        sources |= entries
        grown.append(growth)
    content: dict[str, Any] = {
        "sources": {name: sources[name] for name in sorted(sources)},
        "grown": tuple(sorted(grown, key=lambda one: (one.step, one.source))),
    }
    return content | more_buckets(plan, content["sources"], content["grown"], step, bucket_by)


def _grown_source(
    plan: PlanContent, name: str, given: Any, step: int, number: int
) -> tuple[Growth, dict[str, PlannedSource]]:
    """Return the growth, and the views that it adds by their names in the plan."""
    wanted = given if isinstance(given, Source) else Source(given)
    if wanted.weight != 1:
        raise InvalidPlan(
            f"source {name!r}: a growth has no weight = {wanted.weight!r}; the schedule has them"
        )
    old = {
        one.bucket: one.view
        for one in plan.sources.values()
        if (one.source, one.growth, one.delta) == (name, number - 1, False)
    }
    if any(hasattr(one, "first_epoch") for one in (*old.values(), wanted.view)):
        raise InvalidPlan(
            f"source {name!r} has a list, which does not grow: make a new plan over the new version"
        )
    new = _new_views(plan.buckets, name, wanted.view, old)
    used = plan.used_before(step)
    streams = {one.stream for one in plan.sources.values()}
    entries: dict[str, PlannedSource] = {}
    for bucket, view in new.items():
        stream = name if bucket is None else bucket_source(name, bucket)
        begins = stream not in streams
        full = stream if begins else whole_name(stream, number)
        planned = plan_source(full, replace(wanted, view=view), bucket)
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
        )  # its epoch is not over
        if delta.view is not None and mixed:
            full = delta_name(stream, number)
            planned = plan_source(full, replace(wanted, view=delta.view), bucket)
            entries[full] = replace(planned, growth=number, delta=True)
    return _growth(step, name, number, deltas), entries


def _new_views(
    buckets: Interleaving | None, name: str, view: Any, old: Mapping[str | None, OrderView]
) -> Mapping[str | None, OrderView]:
    """Return label -> the bucket of the new view.

    Without buckets all of it, under None. view: a view, or a version alone, which then gets the fields and predicate of
    the view before. old: the views before.
    """
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
    """Return the view of a bucket of which the new version has no samples. other: another bucket of the new version."""
    if not hasattr(was, "of_version"):
        raise InvalidPlan(
            f"source {stream!r} has no samples in the new version, which does not go on from one with {len(was)}"
        )
    return was.of_version(other.version)


def _growth(step: int, source: str, number: int, deltas: Sequence[Delta]) -> Growth:
    """Return the growth. deltas: of a source, or of its buckets, which are of one version."""
    first = max(delta.first for delta in deltas)
    return Growth(step=step, source=source, number=number, first=first, removed=deltas[0].removed)


def growths_again(
    sources: Mapping[str, PlannedSource], steps: Sequence[tuple[int, str]]
) -> tuple[Growth, ...]:
    """Return the growths of a plan from its views and (step, source) in order.

    Raises InvalidPlan where a view does not go on from the one before.
    """
    views: dict[tuple[str, int], dict[str | None, OrderView]] = {}
    for one in sources.values():
        if not one.delta:
            views.setdefault((one.source, one.growth), {})[one.bucket] = one.view
    out: list[Growth] = []
    for step, name in steps:
        number = 1 + sum(one.source == name for one in out)
        if (name, number) not in views:
            raise InvalidPlan(
                f"the plan's JSON is damaged: grown says that {name!r} grows at step {step}, sources have no view of it"
            )
        new, old = views[name, number], views[name, number - 1]
        # buckets are of one version, whose samples need not be compared again, nor looked at bucket by bucket
        pairs = {(new[at].identity, was.identity): (new[at], was) for at, was in old.items() if at in new}
        if not pairs:
            was = next(iter(old.values()))
            pairs = {("", ""): (_emptied(name, was, next(iter(new.values()))), was)}
        deltas = [delta_since(name, view, was, compare=False) for view, was in pairs.values()]
        out.append(_growth(step, name, number, deltas))
    return tuple(out)
