"""A run's state: the next step, and the past that must match.

Every rank saves the same bytes, and any number of ranks can continue from them. Steps from `step` on may be planned
differently; anything that decided earlier steps may not change.

Below, [...begun...] is a list of the entries that begin before `step`, the only ones that have decided a step. With
buckets each bucket is a source, and `past` has "bucket_by": {"batch": {label: B}, "turns": [...begun...]}, and
"ramp": [...begun...] if batches changed. Each view of a source that grew is a source, and `past` has "grown":
[...begun...]. With both, the hash of a growth's views is in its entry, as "views".
"""

from collections.abc import Sequence
from typing import Any

from ..errors import FormatTooNew, PlanMismatch
from .content import ORDER_VERSION, PlanContent
from .digests import planned_digest
from .mixture import MixtureSegment
from .planned_source import PlannedSource
from .random.plan_hash import content_hash
from .sources.growth import Growth
from .sources.items_view import ItemsView
from .substitutes import usable_slots

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
_SHORT_ID = 18
"""Characters of a view's id: 'w-' and 64 bits, enough to name what differs. The hash `plan` covers the whole id."""


def step_state(plan: PlanContent, step: int) -> dict[str, Any]:
    """Return the state before batch `step` is delivered. Raises InvalidRuntime for an invalid step.

    It lists only sources with a weight in a segment that began before `step`: others have decided nothing yet.
    """
    step = plan.checked_step(step)
    digest = ""
    if step > plan.first_step:
        digest = _digest_of_step(plan, step - 1)
    return {
        "format": STATE_FORMAT,
        "step": step,
        "digest": digest,
        **_past(plan, step),
    }


def _past(plan: PlanContent, step: int) -> dict[str, Any]:
    """Return the state's "plan", "segments" and "past": what decided the steps before this one."""
    n_steps = step - plan.first_step  # that the plan has decided
    segments = [segment for segment in plan.segments if segment.start_step < n_steps]
    names = _source_names(segments)
    # Only growths that decided something: their source has had a weight.
    grown = [growth for growth in plan.grown if growth.step < step and growth.source in names]
    sources = _views_read(plan, names, grown)

    past: dict[str, Any] = {
        "order": ORDER_VERSION,
        "seed": plan.seed,
        "global_batch": plan.global_batch,
        "boundary": plan.boundary,
    }
    if plan.first_step:
        past["first_step"] = plan.first_step
    if plan.buckets is not None:
        labels = {source.bucket for source in sources if source.bucket is not None}
        past["bucket_by"] = plan.buckets.turns_json(labels, step)
    if plan.pack is not None:
        past["pack"] = plan.pack.to_json()
    if grown:
        past["grown"] = _growth_entries(plan, grown, sources)
    source_names = [source.source for source in sources]
    lists = plan.quarantine.to_json(step, source_names)
    if lists:
        past["quarantine"] = _short_hash("q", {"lists": lists})

    segments_json = [segment.to_json() for segment in segments]
    facts = {source.name: _facts(source) for source in sources}
    hashed = {
        **past,
        "segments": segments_json,
        "sources": facts,
    }
    short_facts = {}
    for source in sources:
        is_bucketed = plan.buckets is not None
        if is_bucketed and source.growth:  # its growth's entry has the hash, for all buckets at once
            continue
        view_id, *shape = facts[source.name]
        short_id = str(view_id)[:_SHORT_ID]
        short_facts[source.name] = [short_id, *shape]
    return {
        "plan": content_hash("past", hashed),
        "segments": segments_json,
        "past": {**past, "sources": short_facts},
    }


def _source_names(segments: Sequence[MixtureSegment]) -> set[str]:
    names: set[str] = set()
    for segment in segments:
        names.update(segment.weights)
    return names


def _views_read(
    plan: PlanContent,
    names: set[str],
    grown: Sequence[Growth],
) -> list[PlannedSource]:
    """Return the views that were read: of these sources' first versions, and of these growths."""
    versions = {(name, 0) for name in names}
    for growth in grown:
        versions.add((growth.source, growth.number))
    views = []
    for source in plan.sources.values():
        version = (source.source, source.growth)
        if version in versions:
            views.append(source)
    return views


def _growth_entries(
    plan: PlanContent,
    grown: Sequence[Growth],
    sources: Sequence[PlannedSource],
) -> list[dict[str, Any]]:
    """Return the plan's JSON of growths; with buckets, each with a hash of the views that it brings."""
    entries = plan.grown_json(grown)
    if plan.buckets is None:
        return entries
    for entry, growth in zip(entries, grown, strict=True):
        facts = {}
        for source in sources:
            is_growth = source.source == growth.source and source.growth == growth.number
            if is_growth:
                facts[source.name] = _facts(source)
        entry["views"] = _short_hash("g", facts)
    return entries


def _facts(source: PlannedSource) -> list[str | int]:
    """Return what a source's order depends on, as `_SOURCE_FIELDS` names it."""
    shape = source.shape
    return [
        source.view_id,
        shape.n,
        shape.chunk,
        shape.lanes,
        shape.rounds_h,
    ]


def _short_hash(prefix: str, content: dict[str, Any]) -> str:
    return content_hash(prefix, content)[:_SHORT_ID]


def _digest_of_step(plan: PlanContent, step: int) -> str:
    slots = usable_slots(plan, step)
    return planned_digest(step, slots, plan)


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
        names = [_field_name(difference) for difference in differences]
        differences += _other_datasets(saved["past"], plan)
        listed = "; ".join(differences)
        raise PlanMismatch(
            f"the state was saved at step {step} of a plan with another past: {listed}. "
            "Later segments and quarantine lists may be changed; for anything earlier open the plan that the run "
            "began with, or start a new run at step 0",
            what="state",
            where=f"step {step}",
            given=names,
        )
    if saved["plan"] != own["plan"]:
        raise PlanMismatch(
            f"the state's past is {saved['plan']!r}, this plan's is {own['plan']!r} at step {step}, though "
            "the fields that it lists agree: a view's full id differs, or the state was edited",
            what="plan",
            where=f"step {step}",
            given=saved["plan"],
            accepted=own["plan"],
        )
    if step == plan.first_step:
        return step
    last_step = step - 1
    digest = saved["digest"]
    if digest != _digest_of_step(plan, last_step):
        raise PlanMismatch(
            f"the state's digest of step {last_step} is {digest!r}, this plan's batch has another: "
            "the view's samples, or the order's code, differ from the run that saved it",
            what="digest",
            where=f"step {last_step}",
            given=digest,
        )
    return step


def _well_formed(state: object) -> dict[str, Any]:
    if not isinstance(state, dict):
        raise PlanMismatch(
            f"a state is a dict from state_dict(), got {type(state).__name__}",
            what="state",
            given=type(state).__name__,
            accepted="a dict from state_dict()",
        )

    # A newer package's state first: its fields may have changed.
    form = state.get("format")
    if isinstance(form, int) and form > STATE_FORMAT:
        raise FormatTooNew(
            f"the state has format {form}; this package reads up to {STATE_FORMAT}: upgrade penstock-data",
            what="format",
            where="state",
            given=form,
            accepted=f"at most {STATE_FORMAT}",
        )
    order_version = None
    past = state.get("past")
    if isinstance(past, dict):
        order_version = past.get("order")
    if isinstance(order_version, int) and order_version > ORDER_VERSION:
        raise FormatTooNew(
            f"the state was saved under order version {order_version}; this package has up to "
            f"{ORDER_VERSION}: upgrade penstock-data",
            what="order version",
            where="state",
            given=order_version,
            accepted=f"at most {ORDER_VERSION}",
        )

    wrong = []
    for name, kind in _KINDS.items():
        value = state.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            wrong.append(name)
    if wrong or form != STATE_FORMAT:
        named = ", ".join(wrong or ["format"])
        fields = sorted(map(str, state))
        raise PlanMismatch(
            f"not a state of format {STATE_FORMAT}: {named} missing or of the wrong kind; it has {fields}. Pass what "
            "state_dict() returned, unchanged",
            what="state",
            given=wrong or ["format"],
            accepted="what state_dict() returned",
        )
    return state


def _field_name(difference: str) -> str:
    """Return the name of the field that a sentence of `_differences` or `_segment_differences` is about."""
    if "segment(s)" in difference:
        return "segments"
    name, _, _ = difference.partition(":")
    return name


def _differences(saved: dict[str, Any], own: dict[str, Any]) -> list[str]:
    """Return a sentence for each field of the past, and of its sources, that differs."""
    differences = []
    for name in {**own, **saved}:
        if name == "sources":
            continue
        saved_value = saved.get(name)
        own_value = own.get(name)
        if saved_value != own_value:
            differences.append(_difference(name, saved_value, own_value))

    saved_sources = saved.get("sources")
    own_sources = own["sources"]
    if not isinstance(saved_sources, dict):
        return [*differences, "sources are missing from the state"]
    for name in sorted(saved_sources.keys() | own_sources.keys()):
        saved_source = saved_sources.get(name)
        own_source = own_sources.get(name)
        differences += _source_differences(name, saved_source, own_source)
    return differences


def _other_datasets(past: dict[str, Any], plan: PlanContent) -> list[str]:
    """Return a sentence for each dataset that you brought and that is another one now."""
    sentences = []
    saved_sources = past.get("sources")
    for name, source in plan.sources.items():
        view = source.view
        if not isinstance(view, ItemsView) or not isinstance(saved_sources, dict):
            continue
        saved = saved_sources.get(name)
        if isinstance(saved, list) and saved[:1] != [source.view_id]:
            sentences.append(
                f"source {name!r} is a dataset, here of {len(view)} items with the fingerprint {view.fingerprint!r}; "
                "the run had another: usual causes are added files, an unsorted os.listdir, and a shuffle() without a "
                "seed"
            )
    return sentences


def _source_differences(
    name: str,
    saved: object,
    own: list[object] | None,
) -> list[str]:
    """Return a sentence for each field of a source that differs. saved, own: its `_SOURCE_FIELDS`; None without it."""
    if saved == own:
        return []
    subject = f"source {name!r}"
    if own is None or not isinstance(saved, list) or len(saved) != len(own):
        # One of both lacks the source, or the state is damaged: there are no fields to compare.
        return [_difference(subject, saved, own)]
    differences = []
    for field, saved_value, own_value in zip(_SOURCE_FIELDS, saved, own, strict=True):
        if saved_value != own_value:
            difference = _difference(f"{subject} {field}", saved_value, own_value)
            differences.append(difference)
    return differences


def _segment_differences(saved: list[Any], own: list[Any]) -> list[str]:
    """Return a sentence for each segment that has begun and differs."""
    n_saved = len(saved)
    n_own = len(own)
    if n_saved != n_own:
        return [f"{n_saved} segment(s) had begun in the state, {n_own} in this plan"]
    differences = []
    for number, saved_segment in enumerate(saved):
        own_segment = own[number]
        if saved_segment != own_segment:
            difference = _difference(f"segments[{number}]", saved_segment, own_segment)
            differences.append(difference)
    return differences


def _difference(
    name: str,
    saved: object,
    own: object,
) -> str:
    return f"{name}: {saved!r} in the state, {own!r} in this plan"
