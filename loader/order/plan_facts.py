"""A plan's expected sizes, rates and costs, computed before anything is read."""

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidRuntime
from .content import ORDER_VERSION, PlanContent
from .mixture import MASK, epoch_steps
from .planned_source import PlannedSource
from .slots import rank_slice
from .sources.growth import Growth
from .sources.items_view import ItemsView
from .sources.packing import PackedView


def plan_facts(
    plan: PlanContent,
    *,
    world_size: int = 1,
    steps_per_s: float = 1.0,
) -> dict[str, Any]:
    """Return the numbers that `Plan.describe` prints.

    world_size: data-parallel ranks.
    steps_per_s: optimizer steps per second.

    - sources: name -> samples, mean_sample_bytes, chunk (samples), lanes, h, chunk_rounds, tail_share, live_chunks,
      live_bytes, exhausted_at_step.
    - dataset (of a source): None, or the dataset and its fingerprint as text.
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
    smallest_batch = plan.batch_range[0]
    rank_slice(smallest_batch, 0, world_size)  # raises if there are more ranks than slots
    is_number = isinstance(steps_per_s, int | float) and not isinstance(steps_per_s, bool)
    if not is_number or not 0 < steps_per_s < float("inf"):
        raise InvalidRuntime(
            f"steps_per_s = {steps_per_s!r}: a number above 0 is needed",
            what="steps_per_s",
            given=steps_per_s,
            accepted="a number above 0",
        )
    return _all_facts(plan, world_size, steps_per_s)


def _all_facts(
    plan: PlanContent,
    world_size: int,
    steps_per_s: float,
) -> dict[str, Any]:
    sources: dict[str, dict[str, Any]] = {}
    live_bytes = 0
    ends: list[tuple[int, str]] = []
    for name, source in plan.sources.items():
        facts = _source_facts(plan, source)
        sources[name] = facts
        live_bytes += facts["live_bytes"]
        if facts["exhausted_at_step"] is not None:
            ends.append((facts["exhausted_at_step"], name))
    first_exhausted = None
    if ends:
        _, first_exhausted = min(ends)

    bucket_by = None
    if plan.buckets is not None:
        bucket_by = plan.buckets.by
    segments: list[dict[str, Any]] = []
    for number in range(len(plan.segments)):
        segment = _segment_facts(
            plan,
            number,
            world_size,
            steps_per_s,
        )
        segments.append(segment)
    return {
        "plan": plan.hash,
        "order": ORDER_VERSION,
        "seed": plan.seed,
        "global_batch": plan.global_batch,
        "boundary": plan.boundary,
        "bucket_by": bucket_by,
        "world_size": world_size,
        "steps_per_s": steps_per_s,
        "sources": sources,
        "growths": [_growth_facts(plan, growth) for growth in plan.grown],
        "live_bytes": live_bytes,
        "first_exhausted": first_exhausted,
        "segments": segments,
    }


def _source_facts(
    plan: PlanContent,
    source: PlannedSource,
) -> dict[str, Any]:
    shape = source.shape
    sample_bytes = source.view.mean_sample_bytes
    live_chunks = 0
    live_bytes = 0
    if shape.chunk > 1:  # single samples are not held for later slots
        live_chunks = -(-shape.live_samples // shape.chunk)
        live_bytes = shape.live_samples * sample_bytes

    exhausted_at_step = None
    last = _last_position(plan, source)
    if last is not None:
        exhausted_at_step = plan.step_of(source.name, last)
    pack = None
    if isinstance(source.view, PackedView):
        pack = _pack_facts(source.view)
    dataset = None
    if isinstance(source.view, ItemsView):
        dataset = source.view.describe()
    return {
        "source": source.source,
        "bucket": source.bucket,
        "view": source.view_id,
        "dataset": dataset,
        "samples": shape.n,
        "mean_sample_bytes": sample_bytes,
        "chunk": shape.chunk,
        "lanes": shape.lanes,
        "h": shape.rounds_h,
        "chunk_rounds": shape.chunk_rounds,
        "tail_share": (shape.n - shape.body) / shape.n,
        "live_chunks": live_chunks,
        "live_bytes": live_bytes,
        "exhausted_at_step": exhausted_at_step,
        "pack": pack,
    }


def _last_position(
    plan: PlanContent,
    source: PlannedSource,
) -> int | None:
    """Return the stream position of the last sample of a view's first epoch; None if it has none."""
    stream = plan.stream_of(source.stream)
    return stream.last_position(source.growth, source.delta)


def _pack_facts(view: PackedView) -> dict[str, Any]:
    return {
        "documents": len(view.documents),
        "length": view.packing.length,
        "tokens": view.table.n_tokens,
        "pieces": view.table.n_pieces,
        "efficiency": view.efficiency,
    }


def _growth_facts(
    plan: PlanContent,
    growth: Growth,
) -> dict[str, Any]:
    """Return the facts of a growth: sums over its buckets, and each bucket's own."""
    by_bucket: dict[str | None, dict[str, Any]] = {}
    for source in plan.sources.values():
        is_of_growth = source.source == growth.source and source.growth == growth.number
        if is_of_growth and not source.delta:
            by_bucket[source.bucket] = _view_growth(plan, source)

    totals = {"samples": 0, "left_of_epoch": 0, "new": 0}
    for facts in by_bucket.values():
        for name in totals:
            totals[name] += facts[name]
    view = None
    if None in by_bucket:  # without buckets
        view = by_bucket[None]["view"]
    # One bucket that grows again before its new epoch is enough: the source has no such step.
    first_steps = [facts["whole_from_step"] for facts in by_bucket.values()]
    whole_from_step = None
    if None not in first_steps:
        whole_from_step = max(first_steps)
    return {
        "step": growth.step,
        "source": growth.source,
        "view": view,
        **totals,
        "removed": len(growth.removed),
        "whole_from_step": whole_from_step,
        "buckets": {bucket: facts for bucket, facts in by_bucket.items() if bucket is not None},
    }


def _view_growth(
    plan: PlanContent,
    source: PlannedSource,
) -> dict[str, Any]:
    """Return the facts of the view that a growth brings to a source, or to one bucket of it."""
    stage = plan.grown_streams[source.stream].stages[source.growth]
    # The mixed stretch has the rest of the former view's epoch, and all new samples.
    n_left_of_epoch = stage.count_former(stage.n_mixed)
    whole_from_step = None
    is_ever_read = (
        _last_position(plan, source) is not None
    )  # else the source grows again before the view begins
    if is_ever_read:
        whole_from_step = plan.step_of(source.name, stage.origin)
    return {
        "view": source.view_id,
        "samples": source.shape.n,
        "left_of_epoch": n_left_of_epoch,
        "new": stage.delta,
        "whole_from_step": whole_from_step,
    }


def _segment_facts(
    plan: PlanContent,
    number: int,
    world_size: int,
    steps_per_s: float,
) -> dict[str, Any]:
    """Return the facts of a segment, by its number: sizes, and rates of a mean step."""
    segment = plan.segments[number]
    views: dict[str, PlannedSource] = {}  # stream -> its view in force
    for name in segment.weights:
        for source in plan.views_at(name, segment.start_step):
            views[source.stream] = source

    # Without buckets the plan counts as a single one, with the label None.
    turns = _turns(plan, number)
    total_turns = sum(turns.values())
    rates: dict[str, dict[str, Any]] = {}
    buckets: dict[str, dict[str, int]] = {}
    for label, own_turns in turns.items():
        batch = _slots(plan, number, label)
        slots_per_step = batch * own_turns / total_turns  # mean over the plan's steps
        rates |= _rates(
            plan,
            number,
            label,
            slots_per_step,
            views,
        )
        if label is not None:
            buckets[label] = {
                "batch": batch,
                "turns": own_turns,
                "total_turns": total_turns,
            }

    per_step = _per_step(rates, views)
    per_s = {name: value * steps_per_s for name, value in per_step.items()}
    end_step = None
    if number + 1 < len(plan.segments):
        end_step = plan.segments[number + 1].start_step
    return {
        "start_step": plan.first_step + segment.start_step,
        "end_step": end_step,
        "global_batch": segment.batch or plan.global_batch,
        "sources": rates,
        "steps_per_epoch": _steps_per_epoch(rates, views),
        "buckets": buckets,
        "samples_per_step": per_step["samples"],
        "bytes_per_step": per_step["bytes"],
        "per_s": per_s,
        "per_rank_per_s": {name: value / world_size for name, value in per_s.items()},
    }


def _turns(
    plan: PlanContent,
    number: int,
) -> dict[str | None, int]:
    """Return bucket label -> its turns in a segment; {None: 1} without buckets."""
    if plan.buckets is None:
        return {None: 1}
    segment = plan.buckets.turns.segments[number]
    return dict(segment.weights.items())


def _rates(
    plan: PlanContent,
    number: int,
    label: str | None,
    slots_per_step: float,
    views: Mapping[str, PlannedSource],
) -> dict[str, dict[str, Any]]:
    """Return stream -> rates, for the streams of one bucket. slots_per_step: the bucket's slots of a mean step."""
    mixture = plan.streams[label]
    segment = plan.segments[number]
    if plan.boundary == MASK:  # a mean step of its only source, padding left out
        n = plan.sources[mixture.names[0]].shape.n
        slots_per_step = n / epoch_steps(n, mixture.batch)

    weights: dict[str, int] = {}
    for stream in mixture.names:
        if stream in views:
            weights[stream] = segment.weights[views[stream].source]
    total_weight = sum(weights.values())
    rates: dict[str, dict[str, Any]] = {}
    for stream, weight in weights.items():
        n = views[stream].shape.n
        rates[stream] = {
            "weight": weight,
            "total_weight": total_weight,
            "samples_per_step": slots_per_step * weight / total_weight,
            "steps_per_epoch": n * total_weight / (slots_per_step * weight),
        }
    return rates


def _slots(
    plan: PlanContent,
    number: int,
    label: str | None,
) -> int:
    """Return the slots of a batch, or of a bucket's batch, in a segment."""
    if plan.buckets is None or label is None:
        return plan.segments[number].batch or plan.global_batch
    return plan.buckets.batches[number][label]


def _per_step(
    rates: Mapping[str, Mapping[str, Any]],
    views: Mapping[str, PlannedSource],
) -> dict[str, float]:
    """Return what a mean step reads: samples, bytes, requests by sample and by chunk.

    rates, views: by stream, as in `_segment_facts`.
    """
    samples: list[float] = []
    nbytes: list[float] = []
    requests: list[float] = []
    chunk_requests: list[float] = []
    for stream, rate in rates.items():
        source = views[stream]
        own_samples = rate["samples_per_step"]
        own_requests = own_samples * _requests_per_sample(source)
        samples.append(own_samples)
        nbytes.append(own_samples * source.view.mean_sample_bytes)
        requests.append(own_requests)
        chunk_requests.append(own_requests / source.shape.chunk)
    return {
        "samples": sum(samples),
        "bytes": sum(nbytes),
        "requests": sum(requests),
        "chunk_requests": sum(chunk_requests),
    }


def _requests_per_sample(source: PlannedSource) -> float:
    if not isinstance(source.view, PackedView):
        return 1.0
    return source.view.table.n_pieces / len(source.view)


def _steps_per_epoch(
    rates: Mapping[str, Mapping[str, Any]],
    views: Mapping[str, PlannedSource],
) -> dict[str, float]:
    """Return source -> mean steps of an epoch of all its buckets. rates, views: by stream, as in `_segment_facts`."""
    totals: dict[str, tuple[int, float]] = {}  # source -> (samples, samples of a mean step)
    for stream, rate in rates.items():
        planned = views[stream]
        n, per_step = totals.get(planned.source, (0, 0.0))
        n += planned.shape.n
        per_step += rate["samples_per_step"]
        totals[planned.source] = (n, per_step)
    # Above 0: a segment's weights are positive, and so are the slots of its batches.
    return {source: n / per_step for source, (n, per_step) in totals.items()}
