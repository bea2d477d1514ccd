"""Restore a plan from its JSON: check everything, without making any choice again."""

from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import Any

from ..errors import FormatTooNew, InvalidPlan, PlanMismatch
from .bucket_sources import bucket_segments, interleave_parts
from .content import ORDER_VERSION, PLAN_FORMAT
from .grow import restore_growths
from .mixture import chain_segments
from .plan import Plan
from .planned_source import PlannedSource
from .random.lanes import MAX_SAMPLES, LaneShape
from .random.plan_hash import MAX_GLOBAL_BATCH, content_hash, int_in_range
from .sources.growth import Growth
from .sources.packing import Packing
from .sources.quarantine import Quarantine, QuarantineList
from .sources.views import OrderView
from .weights import in_force, integer_schedule, split_schedule

_DAMAGED = "the plan's JSON is damaged"
_MAX_STEP = 2**53  # JSON readers with floats have whole numbers up to here


def plan_from_json(
    d: dict[str, Any],
    reopen: Callable[[dict[str, Any]], OrderView],
) -> Plan:
    """Return the plan whose `to_json()` is `d`. reopen: function from a view's spec to the view.

    Raises FormatTooNew (a newer plan format or order version), InvalidPlan (damaged JSON), PlanMismatch (a view, a base
    count or the final hash differs).
    """
    if not isinstance(d, dict):
        raise InvalidPlan(
            f"a plan is a JSON object, got {type(d).__name__}",
            what="plan",
            given=type(d).__name__,
            accepted="a JSON object",
        )
    # Before anything else: a newer format may lack fields that this one has.
    _check_version("format", d.get("format"), PLAN_FORMAT)
    _check_version("order", d.get("order"), ORDER_VERSION)
    _check_fields(d)

    sources: dict[str, PlannedSource] = {}
    for name, entry in sorted(d["sources"].items()):
        sources[name] = _reopen_source(name, entry, reopen)
    schedule = [(entry["start_step"], entry["weights"]) for entry in d["segments"]]
    int_in_range("global_batch", d["global_batch"], 1, MAX_GLOBAL_BATCH)
    names = [source.source for source in sources.values()]
    no_weights = dict.fromkeys(names, 0)  # refused, if the JSON has no segment from step 0 on
    weight_schedule = integer_schedule(no_weights, schedule)

    content: dict[str, Any] = {
        "seed": d["seed"],
        "global_batch": d["global_batch"],
        "boundary": d["boundary"],
        "allow_repeats": d["allow_repeats"],
        "quarantine": _quarantine(d["quarantine"], sources),
        "pack": None,
        "first_step": d.get("first_step", 0),
    }
    if d.get("pack") is not None:
        content["pack"] = Packing.from_json(d["pack"])
    _check_packing(content["pack"], sources)
    content["grown"] = _growths(d.get("grown", []), sources)
    bucket_by = d.get("bucket_by")
    if isinstance(bucket_by, dict):
        plan = _parse_buckets(d, bucket_by, sources, weight_schedule, content)
    else:
        plan = _plan_without_buckets(d, sources, weight_schedule, content)

    # Base counts and turns are computed above, not read: they must come out as the JSON has them.
    expected = content_hash("p", d)
    if plan.hash != expected:
        raise PlanMismatch(
            f"the plan comes out as {plan.hash}, its JSON is {expected}: "
            f"{_differences(d, plan.to_json())} differs",
            what="plan",
            given=_differences(d, plan.to_json()),
        )
    return plan


def _check_packing(
    packing: Packing | None,
    sources: Mapping[str, PlannedSource],
) -> None:
    """Raise InvalidPlan unless the plan and each view are packed alike. A view has no values without a token."""
    for name, source in sources.items():
        own: Packing | None = getattr(source.view, "packing", None)
        if own is None and packing is None:
            continue
        if own is None or packing is None or own.without_fills() != packing.without_fills():
            own_json = own and own.to_json()
            plan_json = packing and packing.to_json()
            raise InvalidPlan(
                f"{_DAMAGED}: source {name!r} is packed as {own_json}, the plan's pack is {plan_json}",
                what="pack",
                where=f"source {name!r}",
                given=own_json,
                accepted=plan_json,
            )


def _plan_without_buckets(
    d: Mapping[str, Any],
    sources: Mapping[str, PlannedSource],
    weight_schedule: Sequence[tuple[int, dict[str, int]]],
    content: Mapping[str, Any],
) -> Plan:
    """Return the plan of JSON `d`. weight_schedule: (start step, weights) of each segment. content: other fields."""
    streams = [name for name, source in sources.items() if not source.growth]  # named by their first views
    batch_schedule = _batch_schedule(d["segments"], d["global_batch"])
    segments = chain_segments(
        weight_schedule,
        streams,
        d["global_batch"],
        dict(batch_schedule),
    )
    return Plan(
        sources=sources,
        segments=segments,
        **content,
    )


def _parse_buckets(
    d: Mapping[str, Any],
    bucket_by: Mapping[str, Any],
    sources: Mapping[str, PlannedSource],
    weight_schedule: Sequence[tuple[int, dict[str, int]]],
    content: Mapping[str, Any],
) -> Plan:
    """Return the plan of JSON `d`, whose buckets are `bucket_by`.

    weight_schedule: (start step, weights) of each segment. content: the plan's other fields.
    """
    growths: Sequence[Growth] = content["grown"]
    size_schedule = _size_schedule(bucket_by)
    batch_schedule = _batch_schedule(d["segments"], d["global_batch"])

    # A segment begins wherever the weights or a bucket's batch size change, or a source grows.
    size_steps = [start for start, _ in size_schedule]
    growth_steps = [growth.step for growth in growths]
    weight_schedule = split_schedule(weight_schedule, (*size_steps, *growth_steps))
    segment_steps = [start for start, _ in weight_schedule]
    segment_batches = split_schedule(batch_schedule, segment_steps)
    segment_sizes = [in_force(size_schedule, start) for start in segment_steps]

    edges = None
    if bucket_by["edges"] is not None:
        edges = tuple(map(str, bucket_by["edges"]))
    buckets = interleave_parts(
        bucket_by["by"],
        edges,
        sources,
        weight_schedule,
        segment_sizes,
        growths,
    )
    segments = bucket_segments(weight_schedule, segment_batches)
    return Plan(
        sources=sources,
        segments=segments,
        buckets=buckets,
        **content,
    )


def _check_version(
    name: str,
    value: Any,
    newest: int,
) -> None:
    is_int = isinstance(value, int) and not isinstance(value, bool)
    if not is_int or value < 1:
        raise InvalidPlan(
            f"not a plan: {name} = {value!r}, a whole number from 1 to {newest} is needed",
            what=name,
            given=value,
            accepted=f"a whole number from 1 to {newest}",
        )
    if value > newest:
        raise FormatTooNew(
            f"the plan has {name} {value}; this package reads up to {newest}: upgrade penstock-data",
            what=name,
            given=value,
            accepted=f"at most {newest}",
        )


def _check_fields(d: dict[str, Any]) -> None:
    _check_entry(
        "the plan",
        d,
        {
            "seed": int,
            "global_batch": int,
            "boundary": str,
            "allow_repeats": bool,
            "sources": dict,
            "segments": list,
            "quarantine": list,
        },
    )
    for name, entry in d["sources"].items():
        _check_entry(
            f"source {name!r}",
            entry,
            {
                "view": dict,
                "id": str,
                "n": int,
                "chunk": int,
                "lanes": int,
                "h": int,
            },
        )
    # Other values than an object give a plan without buckets, whose hash then differs from the JSON's: PlanMismatch.
    bucket_by = d.get("bucket_by")
    if isinstance(bucket_by, dict):
        _check_entry(
            "bucket_by",
            bucket_by,
            {
                "by": str,
                "edges": list | None,
                "batch": dict,
                "turns": list,
            },
        )
        labels = {entry.get("bucket") for entry in d["sources"].values()}
        if labels != set(bucket_by["batch"]):
            raise InvalidPlan(
                f"{_DAMAGED}: its sources have the buckets {labels}, bucket_by.batch has {bucket_by['batch']}",
                what="bucket_by.batch",
                given=sorted(bucket_by["batch"]),
                accepted=sorted(labels),
            )
    for number, entry in enumerate(d["segments"]):
        _check_entry(
            f"segments[{number}]",
            entry,
            {
                "start_step": int,
                "weights": dict,
                "base": dict,
            },
        )


def _check_entry(
    name: str,
    entry: object,
    kinds: Mapping[str, type | UnionType],
) -> None:
    """Raise InvalidPlan unless an entry is an object with these fields. kinds: field -> type."""
    if not isinstance(entry, dict):
        raise InvalidPlan(
            f"{_DAMAGED}: {name} is {entry!r}, not an object", what=name, given=entry, accepted="an object"
        )
    for field, kind in kinds.items():
        value = entry.get(field)
        if not isinstance(value, kind):
            kind_name = getattr(kind, "__name__", kind)
            raise InvalidPlan(
                f"{_DAMAGED}: {name} has {field} = {value!r}, a value of type {kind_name} is needed",
                what=field,
                where=name,
                given=value,
                accepted=kind_name,
            )


def _growths(
    entries: object,
    sources: Mapping[str, PlannedSource],
) -> tuple[Growth, ...]:
    """Return a plan's growths. entries: its JSON's "grown". sources: by name, with the views of all growths."""
    if not isinstance(entries, list):
        raise InvalidPlan(
            f"{_DAMAGED}: grown is {entries!r}, not a list", what="grown", given=entries, accepted="a list"
        )
    steps: list[tuple[int, str]] = []
    for number, entry in enumerate(entries):
        name = f"grown[{number}]"
        _check_entry(name, entry, {"step": int, "source": str})
        step = int_in_range(f"{name}: step", entry["step"], 0, _MAX_STEP)
        steps.append((step, entry["source"]))
    return restore_growths(sources, steps)


def _batch_schedule(
    segments: Sequence[Mapping[str, Any]],
    global_batch: int,
) -> list[tuple[int, int]]:
    """Return (start step, slots of a batch) of each segment. global_batch: slots of segments without an entry."""
    schedule: list[tuple[int, int]] = []
    for number, entry in enumerate(segments):
        batch = int_in_range(
            f"segments[{number}]: batch",
            entry.get("batch", global_batch),
            1,
            MAX_GLOBAL_BATCH,
        )
        schedule.append((entry["start_step"], batch))
    return schedule


def _size_schedule(bucket_by: Mapping[str, Any]) -> list[tuple[int, dict[str, int]]]:
    """Return (start step, label -> slots of a batch) from step 0 on; an entry of the ramp names only what changes."""
    ramp = bucket_by.get("ramp", [])
    if not isinstance(ramp, list):
        raise InvalidPlan(
            f"{_DAMAGED}: bucket_by.ramp is {ramp!r}, not a list",
            what="bucket_by.ramp",
            given=ramp,
            accepted="a list",
        )
    first = {"start_step": 0, "batch": bucket_by["batch"]}
    sizes: dict[str, int] = {}
    out: list[tuple[int, dict[str, int]]] = []
    first_allowed = 0
    for entry in (first, *ramp):
        _check_entry("bucket_by.ramp", entry, {"start_step": int, "batch": dict})
        sizes = dict(sizes)  # a copy: `out` has the former one
        for label, slots in entry["batch"].items():
            sizes[label] = int_in_range(f"batch of {label!r}", slots, 1, MAX_GLOBAL_BATCH)
        start = int_in_range(
            "bucket_by.ramp: start_step",
            entry["start_step"],
            first_allowed,
            _MAX_STEP,
        )
        out.append((start, sizes))
        first_allowed = start + 1
    return out


def _quarantine(
    entries: Sequence[object],
    sources: Mapping[str, PlannedSource],
) -> Quarantine:
    growths = {(source.source, source.growth) for source in sources.values()}
    lists = [_quarantine_list(entry, growths) for entry in entries]
    return Quarantine(tuple(lists))


def _quarantine_list(
    entry: object,
    growths: set[tuple[str, int]],
) -> QuarantineList:
    """Return the list of a JSON entry. growths: (source, growth) of all versions; growth 0 is the first one."""
    name = "an entry of quarantine"
    _check_entry(
        name,
        entry,
        {
            "start_step": int,
            "source": str,
            "samples": list,
        },
    )
    assert isinstance(entry, dict)
    samples: list[tuple[int, str]] = []
    try:
        for ordinal, key in entry["samples"]:
            sample = (int_in_range("ordinal", ordinal, 0, MAX_SAMPLES), str(key))
            samples.append(sample)
    except (TypeError, ValueError):
        raise InvalidPlan(f"{_DAMAGED}: {name} has samples that are no [ordinal, key]") from None

    source = entry["source"]
    growth = int_in_range(f"{name}: growth", entry.get("growth", 0), 0, 2**31)
    if (source, growth) not in growths:
        version = ""
        if growth:
            version = f" and its growth {growth}"
        raise InvalidPlan(
            f"{_DAMAGED}: {name} names the source {source!r}{version}",
            what="source",
            where=name,
            given=[source, growth],
        )
    return QuarantineList(
        start_step=entry["start_step"],
        source=source,
        samples=tuple(samples),
        growth=growth,
    )


def _reopen_source(
    name: str,
    entry: dict[str, Any],
    reopen: Callable[[dict[str, Any]], OrderView],
) -> PlannedSource:
    """Return a source with its view. Raises: PlanMismatch if the view is not the one that was planned."""
    shape = LaneShape(
        n=entry["n"],
        chunk=entry["chunk"],
        lanes=entry["lanes"],
        rounds_h=entry["h"],
    )
    view = reopen(entry["view"])
    facts = {"id": view.id, "n": len(view)}
    differences: list[str] = []
    for field, value in facts.items():
        if entry[field] != value:
            differences.append(f"{field} was {entry[field]!r} and is {value!r}")
    if differences:
        raise PlanMismatch(
            f"source {name!r} is not the view that was planned: {', '.join(differences)}. Open the version "
            "that the plan names, or make a new plan",
            what="view",
            where=f"source {name!r}",
            given=differences,
        )
    return PlannedSource(
        name=name,
        view=view,
        view_id=view.id,
        shape=shape,
        bucket=entry.get("bucket"),
        growth=int_in_range(f"source {name!r}: growth", entry.get("growth", 0), 0, 2**31),
        delta=entry.get("delta") is True,
        begins=entry.get("begins") is True,
    )


def _differences(
    saved: dict[str, Any],
    rebuilt: dict[str, Any],
) -> str:
    """Return the names of the plan's fields that differ, for the error's message."""
    names = sorted(saved.keys() | rebuilt.keys())
    different = [name for name in names if saved.get(name) != rebuilt.get(name)]
    if not different:
        # Equal in Python, but not in the hashed JSON: 1 and 1.0, or null and an absent field.
        return "nothing that JSON shows"
    return ", ".join(different)
