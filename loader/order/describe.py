"""A plan in words and numbers, for people."""

from .content import ORDER_VERSION, PlanContent, PlannedSource
from .mixture import Segment


def describe(plan: PlanContent) -> str:
    """Several lines: what is mixed, how long an epoch lasts, what a loader will hold at once."""
    lines = [
        f"plan {plan.hash}",
        f"seed {plan.seed}, global batch {plan.global_batch}, {len(plan.sources)} source(s), "
        f"{len(plan.segments)} segment(s), order version {ORDER_VERSION}",
    ]
    lines += [_source_line(planned) for planned in plan.sources.values()]
    for segment in plan.segments:
        lines += _segment_lines(plan, segment)
    return "\n".join(lines)


def _source_line(planned: PlannedSource) -> str:
    shape = planned.shape
    if shape.lanes == shape.rounds_h == shape.chunk == 1:
        reading = "full shuffle, every sample read alone"
    else:
        tail = 100 * (shape.n - shape.body) / shape.n
        reading = (
            f"chunks of {shape.chunk} samples, {shape.lanes} lanes x {shape.rounds_h}, "
            f"{shape.chunk_rounds} rounds, tail {tail:.2f} % of an epoch"
        )
    live_bytes = 0 if shape.chunk == 1 else shape.live_samples * planned.view.mean_sample_bytes
    live = f", working set {live_bytes} bytes over all ranks" if live_bytes else ""
    return f"source {planned.name!r}: {shape.n} samples of view {planned.view_id}; {reading}{live}"


def _segment_lines(plan: PlanContent, segment: Segment) -> list[str]:
    total = sum(segment.weights.values())
    lines = [f"from step {segment.start_step}:"]
    ends: list[tuple[int, str]] = []
    for name, weight in segment.weights.items():
        n = plan.sources[name].shape.n
        per_epoch = n * total / (weight * plan.global_batch)
        left = n - segment.base.get(name, 0) % n
        end = segment.start_step + -(-left * total // (weight * plan.global_batch))
        ends.append((end, name))
        lines.append(
            f"  {name!r}: {weight} of {total} slots ({100 * weight / total:.2f} %), an epoch is "
            f"{per_epoch:.1f} steps, exhausted (and begun again) about step {end}"
        )
    if len(ends) > 1:
        lines.append(f"  first exhausted: {min(ends)[1]!r}")
    return lines
