"""A plan that goes on under later versions from a chosen step: what `Plan.grow` makes of its plan."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import InvalidPlan
from .boundary import MASK
from .content import PlanContent, PlannedSource, Source, plan_source
from .growth import Growth, delta_name, whole_name
from .views import delta_since
from .whole import whole


def grown_content(plan: PlanContent, views: Mapping[str, Any], step: int) -> dict[str, Any]:
    """The fields of a plan that differ: sources and growths. Raises InvalidPlan; see `Plan.grow`."""
    step = whole("grow: step", step, 0, 2**53)
    for there, what in (
        (plan.buckets is not None, "buckets"),
        (plan.pack is not None, "packing"),
        (plan.boundary == MASK, 'boundary="mask"'),
    ):
        if there:
            raise InvalidPlan(f"a plan with {what} does not grow: make a new plan over the new version")
    if not isinstance(views, Mapping) or not views:
        raise InvalidPlan(f"grow({views!r}): a mapping of source names to their new views is needed")
    sources, grown = dict(plan.sources), list(plan.grown)
    for name in sorted(views, key=str):
        if name not in plan.streams[None].names:
            raise InvalidPlan(
                f"grow names the source {name!r}; the sources are {list(plan.streams[None].names)}"
            )
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
    return {
        "sources": {name: sources[name] for name in sorted(sources)},
        "grown": tuple(sorted(grown, key=lambda one: (one.step, one.source))),
    }


def _grown_source(
    plan: PlanContent, name: str, given: Any, step: int, number: int
) -> tuple[Growth, dict[str, PlannedSource]]:
    old = plan.sources[whole_name(name, number - 1)].view
    wanted = given if isinstance(given, Source) else Source(given)
    if wanted.weight != 1:
        raise InvalidPlan(
            f"source {name!r}: a growth has no weight = {wanted.weight!r}; the schedule has them"
        )
    if not hasattr(wanted.view, "version_ordinals") and hasattr(old, "of_version"):
        wanted = replace(wanted, view=old.of_version(wanted.view))
    full = whole_name(name, number)
    entries = {full: replace(plan_source(full, wanted), growth=number)}
    delta = delta_since(name, wanted.view, old)
    start = plan.streams[None].used_before(step).get(name, 0)
    mixed = plan.stream_of(name).stages[-1].after(start, n=1, delta=0).origin > start  # its epoch is not over
    if delta.view is not None and mixed:
        new = delta_name(name, number)
        planned = plan_source(new, replace(wanted, view=delta.view))
        entries[new] = replace(planned, growth=number, delta=True)
    return Growth(step=step, source=name, number=number, first=delta.first, removed=delta.removed), entries


def growths_again(
    sources: Mapping[str, PlannedSource], steps: Sequence[tuple[int, str]]
) -> tuple[Growth, ...]:
    """The growths of a plan from its views and (step, source) in order. Raises InvalidPlan where a view does not go on
    from the one before."""
    out: list[Growth] = []
    for step, name in steps:
        number = 1 + sum(one.source == name for one in out)
        view, old = (sources[whole_name(name, at)].view for at in (number, number - 1))
        delta = delta_since(name, view, old, compare=False)  # they were when the plan was made
        out.append(Growth(step=step, source=name, number=number, first=delta.first, removed=delta.removed))
    return tuple(out)
