"""A plan's expected sizes, rates and costs, computed before anything is read; as numbers and as text."""

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidRuntime
from .content import ORDER_VERSION, PlanContent
from .mixture import MASK, epoch_steps
from .planned_source import PlannedSource
from .slots import rank_slice
from .sources.growth import Growth
from .sources.packing import PackedView


def describe(facts: Mapping[str, Any]) -> str:
    """Return lines of text: the mixture, the buckets, the length of an epoch, the loader's memory and requests."""
    bucketed = f", bucketed by {facts['bucket_by']}" if facts["bucket_by"] else ""
    bucketed += ", padded at the end of an epoch" if facts["boundary"] == MASK else ""
    lines = [
        f"plan {facts['plan']}",
        f"seed {facts['seed']}, global batch {facts['global_batch']}{bucketed}, {len(facts['sources'])} source(s), "
        f"{len(facts['segments'])} segment(s), order version {facts['order']}",
    ]
    lines += [_source_line(name, source) for name, source in facts["sources"].items()]
    lines.append(f"working set of all sources {facts['live_bytes']} bytes over all ranks")
    if len(facts["sources"]) > 1 and facts["first_exhausted"] is not None:
        lines.append(f"first exhausted: {facts['first_exhausted']!r}")
    for growth in facts["growths"]:
        lines += _growth_lines(growth)
    for segment in facts["segments"]:
        lines += _segment_lines(segment, facts)
    return "\n".join(lines)


def _source_line(name: str, facts: Mapping[str, Any]) -> str:
    if facts["lanes"] == facts["h"] == facts["chunk"] == 1:
        reading = "full shuffle, every sample read by itself"
    else:
        reading = (
            f"chunks of {facts['chunk']} samples, {facts['lanes']} lanes x {facts['h']}, "
            f"{facts['chunk_rounds']} rounds, tail {100 * facts['tail_share']:.2f} % of an epoch"
        )
    live = (
        f", working set {facts['live_bytes']} bytes in {facts['live_chunks']} chunks"
        if facts["live_bytes"]
        else ""
    )
    end = facts["exhausted_at_step"]
    exhausted = "never exhausted" if end is None else f"exhausted (and begun again) at step {end}"
    packed = facts["pack"]
    samples = f"{facts['samples']} samples" if packed is None else _packed(facts["samples"], packed)
    return f"source {name!r}: {samples} of view {facts['view']}; {reading}{live}; {exhausted}"


def _packed(n: int, facts: Mapping[str, Any]) -> str:
    return (
        f"{n} sequences of {facts['length']} tokens, packed from {facts['documents']} documents with {facts['tokens']} "
        f"tokens in {facts['pieces']} pieces ({100 * facts['efficiency']:.2f} % of the places hold a token)"
    )


def _growth_lines(facts: Mapping[str, Any]) -> list[str]:
    whose = f"source {facts['source']!r}"
    removed = f"; {facts['removed']} removed samples are in no slot" if facts["removed"] else ""
    if not facts["buckets"]:
        return [_growth_line(facts["step"], whose, facts) + removed]
    lines = [f"from step {facts['step']} {whose} grows to {facts['samples']} samples, by bucket{removed}"]
    return lines + [
        "  " + _growth_line(facts["step"], f"bucket {label!r}", part)
        for label, part in facts["buckets"].items()
    ]


def _growth_line(step: int, whose: str, facts: Mapping[str, Any]) -> str:
    mixed = f"{facts['left_of_epoch']} samples left of its epoch are mixed with {facts['new']} new ones, then"
    mixed = mixed if facts["left_of_epoch"] else "its"
    start = (
        "never (it grows again before)"
        if facts["whole_from_step"] is None
        else f"from step {facts['whole_from_step']}"
    )
    return (
        f"from step {step} {whose} grows: {mixed} epochs are "
        f"of the {facts['samples']} samples of view {facts['view']}, {start}"
    )


def _segment_lines(segment: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
    until = "" if segment["end_step"] is None else f" up to step {segment['end_step'] - 1}"
    batch = "" if segment["buckets"] else f", global batch {segment['global_batch']}"
    lines = [f"from step {segment['start_step']}{until}{batch}:"]
    for label, numbers in segment["buckets"].items():
        lines.append(
            f"  bucket {label!r}: batches of {numbers['batch']}, {numbers['turns']} of {numbers['total_turns']} steps "
            f"({100 * numbers['turns'] / numbers['total_turns']:.2f} %)"
        )
    for name, numbers in segment["sources"].items():
        share = 100 * numbers["weight"] / numbers["total_weight"]
        lines.append(
            f"  {name!r}: {numbers['weight']} of {numbers['total_weight']} slots ({share:.2f} %), an epoch is "
            f"{numbers['steps_per_epoch']:.1f} steps"
        )
    if segment["buckets"]:
        lines += [
            f"  {name!r}: an epoch is {n:.1f} steps in all" for name, n in segment["steps_per_epoch"].items()
        ]
    all_ranks, rank = segment["per_s"], segment["per_rank_per_s"]
    lines.append(
        f"  a step has {segment['samples_per_step']:.1f} samples, {segment['bytes_per_step']:.0f} bytes; at "
        f"{facts['steps_per_s']:g} steps/s {all_ranks['samples']:.1f} samples/s, {all_ranks['bytes']:.0f} bytes/s, "
        f"per group of fields {all_ranks['requests']:.1f} requests/s by sample or "
        f"{all_ranks['chunk_requests']:.2f} by chunk"
    )
    if facts["world_size"] > 1:
        lines.append(
            f"  of these each of {facts['world_size']} ranks: {rank['samples']:.1f} samples/s, {rank['bytes']:.0f} "
            f"bytes/s, {rank['requests']:.1f} requests/s by sample or {rank['chunk_requests']:.2f} by chunk"
        )
    return lines


def plan_facts(plan: PlanContent, *, world_size: int = 1, steps_per_s: float = 1.0) -> dict[str, Any]:
    """Return the numbers that `Plan.describe` prints.

    world_size: data-parallel ranks.
    steps_per_s: optimizer steps per second.

    - sources: name -> samples, mean_sample_bytes, chunk (samples), lanes, h, chunk_rounds, tail_share, live_chunks,
      live_bytes, exhausted_at_step.
    - tail_share: share of an epoch that is read less evenly.
    - live_chunks, live_bytes: what all ranks together hold in memory to read every chunk once.
    - exhausted_at_step: step with the last sample of the first epoch; None if there is none.
    - pack (of a source): None, or documents, length, tokens, pieces, and efficiency: the share of positions with a
      token.
    - growths: step, source, removed; and for the new view: view, samples, left_of_epoch and new (samples mixed),
      whole_from_step.
    - whole_from_step: first step of an epoch of the whole view; None if the source grows again earlier. With buckets
    these are sums, whole_from_step is the latest, view is None, and buckets maps labels to such numbers.
    - segments: start_step, end_step (None: endless), global_batch (without buckets); for each bucket, its batch, and
    its turns out of total_turns steps. For each source, its weight out of total_weight slots, samples_per_step and
    steps_per_epoch. Overall, as means: samples_per_step, bytes_per_step, per_s and per_rank_per_s.
    - per_s, per_rank_per_s: samples, bytes, requests (one per sample and group of fields), chunk_requests (one per
      chunk and group: if chunks are read whole).

    Costs a few quota tables at any N.
    """
    rank_slice(plan.batch_range[0], 0, world_size)
    if (
        isinstance(steps_per_s, bool)
        or not isinstance(steps_per_s, int | float)
        or not 0 < steps_per_s < float("inf")
    ):
        raise InvalidRuntime(f"steps_per_s = {steps_per_s!r}: a number above 0 is needed")
    sources = {name: _source_facts(plan, source) for name, source in plan.sources.items()}
    ends = [(facts["exhausted_at_step"], name) for name, facts in sources.items()]
    known = [(step, name) for step, name in ends if step is not None]
    return {
        "plan": plan.hash,
        "order": ORDER_VERSION,
        "seed": plan.seed,
        "global_batch": plan.global_batch,
        "boundary": plan.boundary,
        "bucket_by": None if plan.buckets is None else plan.buckets.by,
        "world_size": world_size,
        "steps_per_s": steps_per_s,
        "sources": sources,
        "growths": [_growth_facts(plan, growth) for growth in plan.grown],
        "live_bytes": sum(facts["live_bytes"] for facts in sources.values()),
        "first_exhausted": min(known)[1] if known else None,
        "segments": [
            _segment_facts(plan, number, world_size, steps_per_s) for number in range(len(plan.segments))
        ],
    }


def _source_facts(plan: PlanContent, source: PlannedSource) -> dict[str, Any]:
    shape = source.shape
    live_chunks = 0 if shape.chunk == 1 else -(-shape.live_samples // shape.chunk)
    return {
        "source": source.source,
        "bucket": source.bucket,
        "view": source.view_id,
        "samples": shape.n,
        "mean_sample_bytes": source.view.mean_sample_bytes,
        "chunk": shape.chunk,
        "lanes": shape.lanes,
        "h": shape.rounds_h,
        "chunk_rounds": shape.chunk_rounds,
        "tail_share": (shape.n - shape.body) / shape.n,
        "live_chunks": live_chunks,
        "live_bytes": shape.live_samples * source.view.mean_sample_bytes if live_chunks else 0,
        "exhausted_at_step": None
        if (last := _last_position(plan, source)) is None
        else plan.step_of(source.name, last),
        "pack": _pack_facts(source.view) if isinstance(source.view, PackedView) else None,
    }


def _last_position(plan: PlanContent, source: PlannedSource) -> int | None:
    return plan.stream_of(source.stream).last_of(source.growth, source.delta)


def _growth_facts(plan: PlanContent, growth: Growth) -> dict[str, Any]:
    parts = {
        source.bucket: _view_growth(plan, source)
        for source in plan.sources.values()
        if (source.source, source.growth, source.delta) == (growth.source, growth.number, False)
    }
    wholes = [facts["whole_from_step"] for facts in parts.values()]
    return {
        "step": growth.step,
        "source": growth.source,
        "view": parts[None]["view"] if None in parts else None,
        **{
            name: sum(facts[name] for facts in parts.values()) for name in ("samples", "left_of_epoch", "new")
        },
        "removed": len(growth.removed),
        "whole_from_step": None if None in wholes else max(wholes),
        "buckets": {bucket: facts for bucket, facts in parts.items() if bucket is not None},
    }


def _view_growth(plan: PlanContent, source: PlannedSource) -> dict[str, Any]:
    stage = plan.grown_streams[source.stream].stages[source.growth]
    is_read = _last_position(plan, source) is not None
    return {
        "view": source.view_id,
        "samples": source.shape.n,
        "left_of_epoch": stage.origin - stage.start - stage.delta,
        "new": stage.delta,
        "whole_from_step": plan.step_of(source.name, stage.origin) if is_read else None,
    }


def _pack_facts(view: PackedView) -> dict[str, Any]:
    return {
        "documents": len(view.documents),
        "length": view.packing.length,
        "tokens": view.table.n_tokens,
        "pieces": view.table.n_pieces,
        "efficiency": view.efficiency,
    }


def _reads(source: PlannedSource) -> float:
    return source.view.table.n_pieces / len(source.view) if isinstance(source.view, PackedView) else 1.0


def _segment_facts(plan: PlanContent, number: int, world_size: int, steps_per_s: float) -> dict[str, Any]:
    segment = plan.segments[number]
    turns: dict[str | None, int] = {None: 1}
    if plan.buckets is not None:
        turns = dict(plan.buckets.turns.segments[number].weights.items())
    views = {
        source.stream: source
        for name in segment.weights
        for source in plan.views_at(name, segment.start_step)
    }
    rates = {
        name: rate for label in turns for name, rate in _rates(plan, number, label, turns, views).items()
    }
    per_step = {
        "samples": sum(facts["samples_per_step"] for facts in rates.values()),
        "bytes": sum(
            facts["samples_per_step"] * views[name].view.mean_sample_bytes for name, facts in rates.items()
        ),
        "requests": sum(facts["samples_per_step"] * _reads(views[name]) for name, facts in rates.items()),
        "chunk_requests": sum(
            facts["samples_per_step"] * _reads(views[name]) / views[name].shape.chunk
            for name, facts in rates.items()
        ),
    }
    following = plan.segments[number + 1 :]
    return {
        "start_step": segment.start_step,
        "end_step": following[0].start_step if following else None,
        "global_batch": segment.batch or plan.global_batch,
        "sources": rates,
        "steps_per_epoch": _steps_per_epoch(rates, views),
        "buckets": {
            label: {"batch": _slots(plan, number, label), "turns": share, "total_turns": sum(turns.values())}
            for label, share in turns.items()
            if label is not None
        },
        "samples_per_step": per_step["samples"],
        "bytes_per_step": per_step["bytes"],
        "per_s": {name: value * steps_per_s for name, value in per_step.items()},
        "per_rank_per_s": {name: value * steps_per_s / world_size for name, value in per_step.items()},
    }


def _rates(
    plan: PlanContent,
    number: int,
    label: str | None,
    turns: Mapping[str | None, int],
    views: Mapping[str, PlannedSource],
) -> dict[str, dict[str, Any]]:
    stream, segment = plan.streams[label], plan.segments[number]
    weights = {name: segment.weights[views[name].source] for name in stream.names if name in views}
    slots = _slots(plan, number, label) * turns[label] / sum(turns.values())
    if plan.boundary == MASK:  # a mean step of its only source, padding left out
        n = plan.sources[stream.names[0]].shape.n
        slots = n / epoch_steps(n, stream.batch)
    total = sum(weights.values())
    return {
        name: {
            "weight": weight,
            "total_weight": total,
            "samples_per_step": slots * weight / total,
            "steps_per_epoch": views[name].shape.n * total / (slots * weight),
        }
        for name, weight in weights.items()
    }


def _slots(plan: PlanContent, number: int, label: str | None) -> int:
    if plan.buckets is None or label is None:
        return plan.segments[number].batch or plan.global_batch
    return plan.buckets.batches[number][label]


def _steps_per_epoch(
    rates: Mapping[str, Mapping[str, Any]], views: Mapping[str, PlannedSource]
) -> dict[str, float]:
    used: dict[str, float] = {}
    held: dict[str, int] = {}
    for name, rate in rates.items():
        planned = views[name]
        used[planned.source] = used.get(planned.source, 0.0) + rate["samples_per_step"]
        held[planned.source] = held.get(planned.source, 0) + planned.shape.n
    return {source: held[source] / used[source] for source in used}
