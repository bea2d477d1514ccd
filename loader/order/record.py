"""A plan from its JSON: nothing is chosen again, everything is checked."""

from collections.abc import Callable
from typing import Any

from ..errors import FormatTooNew, InvalidPlan, PlanMismatch
from .canonical import content_hash
from .content import ORDER_VERSION, PLAN_FORMAT, PlannedSource
from .lanes import LaneShape
from .mixture import Segment
from .plan import Plan
from .views import OrderView


def plan_from_json(d: dict[str, Any], reopen: Callable[[dict[str, Any]], OrderView]) -> Plan:
    """The plan whose `to_json()` is d.

    reopen: makes a view from its spec. Chunk, lanes and segments are taken as they were frozen.
    Raises FormatTooNew (a newer plan format or order version), InvalidPlan (damaged JSON), PlanMismatch (a
    view that is no longer what was planned, or a plan that does not come out with the same hash).
    """
    if not isinstance(d, dict):
        raise InvalidPlan(f"a plan is a JSON object, got {type(d).__name__}")
    for name, known in (("format", PLAN_FORMAT), ("order", ORDER_VERSION)):
        value = d.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidPlan(f"not a plan: {name} = {value!r}, a whole number from 1 to {known} is needed")
        if value > known:
            raise FormatTooNew(
                f"the plan has {name} {value}; this package reads up to {known}: install a newer penstock"
            )
    try:
        plan = Plan(
            seed=d["seed"],
            global_batch=d["global_batch"],
            sources={name: _reopened(name, d["sources"][name], reopen) for name in sorted(d["sources"])},
            segments=tuple(
                Segment(start_step=one["start_step"], weights=one["weights"], base=one["base"])
                for one in d["segments"]
            ),
            boundary=d["boundary"],
            allow_repeats=d["allow_repeats"],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidPlan(f"the plan's JSON is damaged: {type(error).__name__}: {error}") from error
    wanted = content_hash("p", d)
    if plan.hash != wanted:
        raise PlanMismatch(
            f"the plan comes out as {plan.hash}, its JSON is {wanted}: {_changed(d, plan.to_json())} differs"
        )
    return plan


def _reopened(
    name: str, entry: dict[str, Any], reopen: Callable[[dict[str, Any]], OrderView]
) -> PlannedSource:
    shape = LaneShape(n=entry["n"], chunk=entry["chunk"], lanes=entry["lanes"], rounds_h=entry["h"])
    view = reopen(entry["view"])
    found = {"id": view.id, "n": len(view)}
    differences = [
        f"{field} was {entry[field]!r} and is {value!r}"
        for field, value in found.items()
        if entry[field] != value
    ]
    if differences:
        raise PlanMismatch(
            f"source {name!r} is not the view that was planned: {', '.join(differences)}. Open the version "
            "that the plan names, or make a new plan"
        )
    return PlannedSource(name=name, view=view, view_id=view.id, shape=shape)


def _changed(saved: dict[str, Any], made: dict[str, Any]) -> str:
    names = sorted(saved.keys() | made.keys())
    return ", ".join(name for name in names if saved.get(name) != made.get(name)) or "nothing that JSON shows"
