"""Restore a plan from its JSON: check everything, without making any choice again."""

from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import Any

from ..errors import FormatTooNew, InvalidPlan, PlanMismatch
from .bucket_sources import bucketed_segments, interleave_parts
from .content import ORDER_VERSION, PLAN_FORMAT
from .grow import growths_again
from .mixture import chain_segments
from .plan import Plan, segment_starts
from .planned_source import PlannedSource
from .random.lanes import MAX_SAMPLES, LaneShape
from .random.plan_hash import MAX_GLOBAL_BATCH, content_hash, whole
from .sources.growth import Growth
from .sources.packing import Packing
from .sources.quarantine import Quarantine, QuarantineList
from .sources.views import OrderView
from .weights import cut_at, in_force


def plan_from_json(d: dict[str, Any], reopen: Callable[[dict[str, Any]], OrderView]) -> Plan:
    """Return the plan whose `to_json()` is `d`. reopen: function from a view's spec to the view.

    Raises FormatTooNew (a newer plan format or order version), InvalidPlan (damaged JSON), PlanMismatch (a view, a base
    count or the final hash differs).
    """
    if not isinstance(d, dict):
        raise InvalidPlan(f"a plan is a JSON object, got {type(d).__name__}")
    for name, known in (("format", PLAN_FORMAT), ("order", ORDER_VERSION)):
        value = d.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidPlan(f"not a plan: {name} = {value!r}, a whole number from 1 to {known} is needed")
        if value > known:
            raise FormatTooNew(
                f"the plan has {name} {value}; this package reads up to {known}: upgrade penstock-data"
            )
    _check_fields(d)
    sources = {name: _reopened(name, d["sources"][name], reopen) for name in sorted(d["sources"])}
    schedule = [(one["start_step"], one["weights"]) for one in d["segments"]]
    whole("global_batch", d["global_batch"], 1, MAX_GLOBAL_BATCH)
    starts = segment_starts(dict.fromkeys((one.source for one in sources.values()), 0), schedule)
    content: dict[str, Any] = {
        name: d[name] for name in ("seed", "global_batch", "boundary", "allow_repeats")
    }
    versions = {(part.source, part.growth) for part in sources.values()}
    content["quarantine"] = Quarantine(tuple(_quarantine_list(one, versions) for one in d["quarantine"]))
    content["pack"] = None if d.get("pack") is None else Packing.from_json(d["pack"])
    by, grown = d.get("bucket_by"), _growths(d.get("grown", []), sources)
    content["grown"] = grown
    if isinstance(by, dict):
        sizes = _bucket_sizes(by)
        starts = cut_at(starts, (*dict(sizes), *(one.step for one in grown)))
        slots = _batches(d["segments"], d["global_batch"])
        edges = None if by["edges"] is None else tuple(map(str, by["edges"]))
        batches = [in_force(sizes, start) for start, _ in starts]
        buckets = interleave_parts(by["by"], edges, sources, starts, batches, grown)
        plan = Plan(
            sources=sources,
            segments=bucketed_segments(starts, cut_at(slots, dict(starts))),
            buckets=buckets,
            **content,
        )
    else:
        names = [name for name, one in sources.items() if not one.growth]
        segments = chain_segments(
            starts, names, d["global_batch"], dict(_batches(d["segments"], d["global_batch"]))
        )
        plan = Plan(sources=sources, segments=segments, **content)
    expected = content_hash("p", d)
    if plan.hash != expected:
        raise PlanMismatch(
            f"the plan comes out as {plan.hash}, its JSON is {expected}: {_changed(d, plan.to_json())} differs"
        )
    return plan


def _check_fields(d: dict[str, Any]) -> None:
    _need("the plan", d, {"seed": int, "global_batch": int, "boundary": str, "allow_repeats": bool})
    _need("the plan", d, {"sources": dict, "segments": list, "quarantine": list})
    for name, entry in d["sources"].items():
        _need(
            f"source {name!r}",
            entry,
            {"view": dict, "id": str, "n": int, "chunk": int, "lanes": int, "h": int},
        )
    if isinstance(by := d.get("bucket_by"), dict):
        _need("bucket_by", by, {"by": str, "edges": list | None, "batch": dict, "turns": list})
        labels = {entry.get("bucket") for entry in d["sources"].values()}
        if labels != set(by["batch"]):
            raise InvalidPlan(
                f"the plan's JSON is damaged: its sources have the buckets {labels}, bucket_by.batch has {by['batch']}"
            )
    for number, entry in enumerate(d["segments"]):
        _need(f"segments[{number}]", entry, {"start_step": int, "weights": dict, "base": dict})


def _growths(entries: object, sources: Mapping[str, PlannedSource]) -> tuple[Growth, ...]:
    if not isinstance(entries, list):
        raise InvalidPlan(f"the plan's JSON is damaged: grown is {entries!r}, not a list")
    steps: list[tuple[int, str]] = []
    for number, entry in enumerate(entries):
        _need(f"grown[{number}]", entry, {"step": int, "source": str})
        steps.append((whole(f"grown[{number}]: step", entry["step"], 0, 2**53), entry["source"]))
    return growths_again(sources, steps)


def _batches(segments: Sequence[Mapping[str, Any]], first: int) -> list[tuple[int, int]]:
    return [
        (one["start_step"], whole(f"segments[{number}]: batch", one.get("batch", first), 1, MAX_GLOBAL_BATCH))
        for number, one in enumerate(segments)
    ]


def _bucket_sizes(by: Mapping[str, Any]) -> list[tuple[int, dict[str, int]]]:
    out: list[tuple[int, dict[str, int]]] = []
    ramp = by.get("ramp", [])
    if not isinstance(ramp, list):
        raise InvalidPlan(f"the plan's JSON is damaged: bucket_by.ramp is {ramp!r}, not a list")
    for entry in ({"start_step": 0, "batch": by["batch"]}, *ramp):
        _need("bucket_by.ramp", entry, {"start_step": int, "batch": dict})
        sizes = {
            label: whole(f"batch of {label!r}", n, 1, MAX_GLOBAL_BATCH) for label, n in entry["batch"].items()
        }
        low = out[-1][0] + 1 if out else 0
        before = out[-1][1] if out else {}
        out.append(
            (whole("bucket_by.ramp: start_step", entry["start_step"], low, 2**53), {**before, **sizes})
        )
    return out


def _quarantine_list(entry: object, versions: set[tuple[str, int]]) -> QuarantineList:
    what = "an entry of quarantine"
    _need(what, entry, {"start_step": int, "source": str, "samples": list})
    assert isinstance(entry, dict)
    try:
        samples = tuple(
            (whole("ordinal", ordinal, 0, MAX_SAMPLES), str(key)) for ordinal, key in entry["samples"]
        )
    except (TypeError, ValueError):
        raise InvalidPlan(
            f"the plan's JSON is damaged: {what} has samples that are no [ordinal, key]"
        ) from None
    source, growth = entry["source"], whole(f"{what}: growth", entry.get("growth", 0), 0, 2**31)
    if (source, growth) not in versions:
        version = f" and its growth {growth}" if growth else ""
        raise InvalidPlan(f"the plan's JSON is damaged: {what} names the source {source!r}{version}")
    return QuarantineList(start_step=entry["start_step"], source=source, samples=samples, growth=growth)


def _need(what: str, entry: object, kinds: Mapping[str, type | UnionType]) -> None:
    if not isinstance(entry, dict):
        raise InvalidPlan(f"the plan's JSON is damaged: {what} is {entry!r}, not an object")
    for name, kind in kinds.items():
        if not isinstance(entry.get(name), kind):
            raise InvalidPlan(
                f"the plan's JSON is damaged: {what} has {name} = {entry.get(name)!r}, "
                f"a value of type {getattr(kind, '__name__', kind)} is needed"
            )


def _reopened(
    name: str, entry: dict[str, Any], reopen: Callable[[dict[str, Any]], OrderView]
) -> PlannedSource:
    shape = LaneShape(n=entry["n"], chunk=entry["chunk"], lanes=entry["lanes"], rounds_h=entry["h"])
    view = reopen(entry["view"])
    facts = {"id": view.id, "n": len(view)}
    differences = [
        f"{field} was {entry[field]!r} and is {value!r}"
        for field, value in facts.items()
        if entry[field] != value
    ]
    if differences:
        raise PlanMismatch(
            f"source {name!r} is not the view that was planned: {', '.join(differences)}. Open the version "
            "that the plan names, or make a new plan"
        )
    return PlannedSource(
        name=name,
        view=view,
        view_id=view.id,
        shape=shape,
        bucket=entry.get("bucket"),
        growth=whole(f"source {name!r}: growth", entry.get("growth", 0), 0, 2**31),
        delta=entry.get("delta") is True,
        begins=entry.get("begins") is True,
    )


def _changed(saved: dict[str, Any], rebuilt: dict[str, Any]) -> str:
    names = sorted(saved.keys() | rebuilt.keys())
    return (
        ", ".join(name for name in names if saved.get(name) != rebuilt.get(name)) or "nothing that JSON shows"
    )
