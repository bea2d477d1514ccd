"""A run's state: the next step, and the past that must match.

Every rank saves the same bytes, and any number of ranks can continue from them. Steps from `step` on may be planned
differently; anything that decided earlier steps may not change.

[...begun...] lists the entries that begin before `step`. With buckets each bucket is a source, and `past` has
"bucket_by": {"batch": {label: B}, "turns": [...begun...]}, and "ramp": [...begun...] if batches changed. Each view of a
source that grew is a source, and `past` has "grown": [...begun...]. With both, the hash of a growth's views is in its
entry, as "views".
"""

from typing import Any

from ..errors import FormatTooNew, PlanMismatch
from .content import ORDER_VERSION, PlanContent, PlannedSource
from .digests import planned_digest
from .random.plan_hash import content_hash
from .substitutes import planned_slots

STATE_FORMAT = 1
_KINDS: dict[str, type] = {
    "format": int,
    "plan": str,
    "step": int,
    "segments": list,
    "past": dict,
    "digest": str,
}
_SOURCE_FIELDS = ("view", "n", "chunk", "lanes", "h")
_SHORT_ID = 18  # 'w-' + 64 bits: enough to name what differs; the hash `plan` covers the whole id


def state_at(plan: PlanContent, step: int) -> dict[str, Any]:
    """Return the state before batch `step` is delivered. Raises InvalidRuntime for an invalid step.

    It lists only sources with a weight in a segment that began before `step`: others have decided nothing yet.
    """
    step = plan.checked_step(step)
    digest = planned_digest(step - 1, planned_slots(plan, step - 1), plan) if step else ""
    return {"format": STATE_FORMAT, "step": step, "digest": digest, **_past(plan, step)}


def _past(plan: PlanContent, step: int) -> dict[str, Any]:
    begun = [segment for segment in plan.segments if segment.start_step < step]
    names = {name for segment in begun for name in segment.weights}
    grown = [growth for growth in plan.grown if growth.step < step and growth.source in names]
    views = {(source.source, source.number) for source in grown} | {(name, 0) for name in names}
    used = [source for source in plan.sources.values() if (source.source, source.growth) in views]
    decided: dict[str, Any] = {
        "order": ORDER_VERSION,
        "seed": plan.seed,
        "global_batch": plan.global_batch,
        "boundary": plan.boundary,
    }
    if plan.buckets is not None:
        labels = {source.bucket for source in used if source.bucket is not None}
        decided["bucket_by"] = plan.buckets.dealt_json(labels, step)
    if plan.pack is not None:
        decided["pack"] = plan.pack.to_json()
    if grown:
        decided["grown"] = plan.grown_json(grown)
        for entry, growth in zip(decided["grown"], grown, strict=True):
            if plan.buckets is not None:
                own = [
                    source
                    for source in used
                    if (source.source, source.growth) == (growth.source, growth.number)
                ]
                entry["views"] = content_hash("g", {source.name: _facts(source) for source in own})[
                    :_SHORT_ID
                ]
    if listed := plan.quarantine.to_json(step, (source.source for source in used)):
        decided["quarantine"] = content_hash("q", {"lists": listed})[:_SHORT_ID]
    segments = [segment.to_json() for segment in begun]
    hashed = {**decided, "segments": segments, "sources": {source.name: _facts(source) for source in used}}
    short = {
        source.name: [source.view_id[:_SHORT_ID], *_facts(source)[1:]]
        for source in used
        if plan.buckets is None or not source.growth
    }
    return {
        "plan": content_hash("past", hashed),
        "segments": segments,
        "past": {**decided, "sources": short},
    }


def _facts(source: PlannedSource) -> list[str | int]:
    shape = source.shape
    return [source.view_id, shape.n, shape.chunk, shape.lanes, shape.rounds_h]


def check_state(plan: PlanContent, state: object) -> int:
    """Return the step at which a run of this plan continues from a saved state.

    Raises PlanMismatch if a field that decided earlier steps differs (the message names it) or the state is damaged;
    FormatTooNew if a newer package saved it; InvalidRuntime if its step is invalid.
    """
    saved = _well_formed(state)
    step = plan.checked_step(saved["step"])
    own = _past(plan, step)
    differences = _differences(saved["past"], own["past"])
    differences += _segment_differences(saved["segments"], own["segments"])
    if differences:
        raise PlanMismatch(
            f"the state was saved at step {step} of a plan with another past: "
            + "; ".join(differences)
            + ". "
            "Later segments and quarantine lists may be changed; for anything earlier open the plan that the run "
            "began with, or start a new run at step 0"
        )
    if saved["plan"] != own["plan"]:
        raise PlanMismatch(
            f"the state's past is {saved['plan']!r}, this plan's is {own['plan']!r} at step {step}, though "
            "the fields that it lists agree: a view's full id differs, or the state was edited"
        )
    if step and saved["digest"] != planned_digest(step - 1, planned_slots(plan, step - 1), plan):
        raise PlanMismatch(
            f"the state's digest of step {step - 1} is {saved['digest']!r}, this plan's batch has another: "
            "the view's samples, or the order's code, differ from the run that saved it"
        )
    return step


def _well_formed(state: object) -> dict[str, Any]:
    if not isinstance(state, dict):
        raise PlanMismatch(f"a state is a dict from state_dict(), got {type(state).__name__}")
    form = state.get("format")
    if isinstance(form, int) and form > STATE_FORMAT:
        raise FormatTooNew(
            f"the state has format {form}; this package reads up to {STATE_FORMAT}: upgrade penstock-data"
        )
    past = state.get("past")
    if isinstance(past, dict) and isinstance(past.get("order"), int) and past["order"] > ORDER_VERSION:
        raise FormatTooNew(
            f"the state was saved under order version {past['order']}; this package has up to "
            f"{ORDER_VERSION}: upgrade penstock-data"
        )
    wrong = [
        name
        for name, kind in _KINDS.items()
        if not isinstance(state.get(name), kind) or isinstance(state.get(name), bool)
    ]
    if wrong or form != STATE_FORMAT:
        raise PlanMismatch(
            f"not a state of format {STATE_FORMAT}: {', '.join(wrong or ['format'])} missing or of the wrong "
            f"kind; it has {sorted(map(str, state))}. Pass what state_dict() returned, unchanged"
        )
    return state


def _differences(saved: dict[str, Any], own: dict[str, Any]) -> list[str]:
    names = [name for name in {**own, **saved} if name != "sources"]
    differing = [
        _pair(name, saved.get(name), own.get(name)) for name in names if saved.get(name) != own.get(name)
    ]
    theirs = saved.get("sources")
    if not isinstance(theirs, dict):
        return [*differing, "sources are missing from the state"]
    for name in sorted(theirs.keys() | own["sources"].keys()):
        there, here = theirs.get(name), own["sources"].get(name)
        if there == here:
            continue
        if not isinstance(there, list) or here is None or len(there) != len(here):
            differing.append(_pair(f"source {name!r}", there, here))
            continue
        for field, a, b in zip(_SOURCE_FIELDS, there, here, strict=True):
            if a != b:
                differing.append(_pair(f"source {name!r} {field}", a, b))
    return differing


def _segment_differences(saved: list[Any], own: list[Any]) -> list[str]:
    if len(saved) != len(own):
        return [f"{len(saved)} segment(s) had begun in the state, {len(own)} in this plan"]
    return [
        _pair(f"segments[{number}]", there, here)
        for number, (there, here) in enumerate(zip(saved, own, strict=True))
        if there != here
    ]


def _pair(name: str, saved: object, own: object) -> str:
    return f"{name}: {saved!r} in the state, {own!r} in this plan"
