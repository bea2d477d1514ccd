"""A plan's expected sizes, rates and costs (`plan_facts`) as text."""

from collections.abc import Mapping
from typing import Any

from .mixture import MASK


def describe(facts: Mapping[str, Any]) -> str:
    """Return lines of text: the mixture, the buckets, the length of an epoch, the loader's memory and requests."""
    sources = facts["sources"]
    segments = facts["segments"]
    n_sources = len(sources)
    n_segments = len(segments)
    bucket_by = facts["bucket_by"]
    batch = f"global batch {facts['global_batch']}"
    if bucket_by:
        batch += f", bucketed by {bucket_by}"
    if facts["boundary"] == MASK:
        batch += ", padded at the end of an epoch"
    lines = [
        f"plan {facts['plan']}",
        f"seed {facts['seed']}, "
        f"{batch}, "
        f"{n_sources} source(s), "
        f"{n_segments} segment(s), "
        f"order version {facts['order']}",
    ]
    for name, source in sources.items():
        lines.append(_source_line(name, source))
    live_bytes = facts["live_bytes"]
    lines.append(f"working set of all sources {live_bytes} bytes over all ranks")
    first_exhausted = facts["first_exhausted"]
    if n_sources > 1 and first_exhausted is not None:
        lines.append(f"first exhausted: {first_exhausted!r}")
    for growth in facts["growths"]:
        lines += _growth_lines(growth)
    for segment in segments:
        lines += _segment_lines(segment, facts)
    return "\n".join(lines)


def _source_line(
    name: str,
    facts: Mapping[str, Any],
) -> str:
    """Return the line of a source. facts: its entry in `sources` of `plan_facts`."""
    n = facts["samples"]
    pack = facts["pack"]
    samples = f"{n} samples"
    if pack is not None:
        samples = _describe_packing(n, pack)

    chunk = facts["chunk"]
    lanes = facts["lanes"]
    h = facts["h"]  # chunks that a lane reads side by side
    if lanes == h == chunk == 1:  # the whole epoch is then one permutation of samples
        reading = "full shuffle, every sample read by itself"
    else:
        tail = 100 * facts["tail_share"]
        reading = (
            f"chunks of {chunk} samples, "
            f"{lanes} lanes x {h}, "
            f"{facts['chunk_rounds']} rounds, "
            f"tail {tail:.2f} % of an epoch"
        )

    live = ""
    live_bytes = facts["live_bytes"]
    if live_bytes:
        live = f", working set {live_bytes} bytes in {facts['live_chunks']} chunks"

    end = facts["exhausted_at_step"]
    exhausted = "never exhausted"
    if end is not None:
        exhausted = f"exhausted (and begun again) at step {end}"
    view = f"view {facts['view']}"
    if facts["dataset"] is not None:
        view = f"{facts['dataset']} ({view})"
    return f"source {name!r}: {samples} of {view}; {reading}{live}; {exhausted}"


def _describe_packing(n: int, facts: Mapping[str, Any]) -> str:
    """Return how a source is packed. n: sequences. facts: `pack` of the source's facts."""
    efficiency = 100 * facts["efficiency"]
    return (
        f"{n} sequences of {facts['length']} tokens, "
        f"packed from {facts['documents']} documents "
        f"with {facts['tokens']} tokens "
        f"in {facts['pieces']} pieces "
        f"({efficiency:.2f} % of the places hold a token)"
    )


def _growth_lines(facts: Mapping[str, Any]) -> list[str]:
    """Return the lines of a growth: one, or with buckets a heading and one for each bucket that grows."""
    step = facts["step"]
    source = f"source {facts['source']!r}"
    n_removed = facts["removed"]
    removed = ""
    if n_removed:
        removed = f"; {n_removed} removed samples are in no slot"
    buckets = facts["buckets"]
    if not buckets:
        line = _growth_line(step, source, facts)
        return [line + removed]

    samples = facts["samples"]
    lines = [f"from step {step} {source} grows to {samples} samples, by bucket{removed}"]
    for label, bucket_facts in buckets.items():
        bucket = f"bucket {label!r}"
        line = _growth_line(step, bucket, bucket_facts)
        lines.append(f"  {line}")
    return lines


def _growth_line(
    step: int,
    subject: str,
    facts: Mapping[str, Any],
) -> str:
    n_remaining = facts["left_of_epoch"]
    n_new = facts["new"]
    epochs = "its epochs"
    if n_remaining:
        epochs = f"{n_remaining} samples left of its epoch are mixed with {n_new} new ones, then epochs"
    whole_from_step = facts["whole_from_step"]
    start = "never (it grows again before)"
    if whole_from_step is not None:
        start = f"from step {whole_from_step}"
    return (
        f"from step {step} {subject} grows: "
        f"{epochs} are of the {facts['samples']} samples "
        f"of view {facts['view']}, {start}"
    )


def _segment_lines(
    segment: Mapping[str, Any],
    facts: Mapping[str, Any],
) -> list[str]:
    """Return the lines of a segment: shares of buckets and sources, epochs in steps, rates. facts: the plan's."""
    start_step = segment["start_step"]
    end_step = segment["end_step"]
    buckets = segment["buckets"]
    until = ""
    if end_step is not None:
        last_step = end_step - 1
        until = f" up to step {last_step}"
    batch = ""
    if not buckets:  # each bucket has its own
        batch = f", global batch {segment['global_batch']}"
    lines = [f"from step {start_step}{until}{batch}:"]

    for label, bucket in buckets.items():
        turns = bucket["turns"]
        total_turns = bucket["total_turns"]
        share = 100 * turns / total_turns
        lines.append(
            f"  bucket {label!r}: batches of {bucket['batch']}, "
            f"{turns} of {total_turns} steps ({share:.2f} %)"
        )
    for name, source in segment["sources"].items():
        weight = source["weight"]
        total_weight = source["total_weight"]
        share = 100 * weight / total_weight
        lines.append(
            f"  {name!r}: {weight} of {total_weight} slots ({share:.2f} %), "
            f"an epoch is {source['steps_per_epoch']:.1f} steps"
        )
    if buckets:
        for name, steps in segment["steps_per_epoch"].items():
            lines.append(f"  {name!r}: an epoch is {steps:.1f} steps in all")

    lines += _rate_lines(segment, facts)
    return lines


def _rate_lines(
    segment: Mapping[str, Any],
    facts: Mapping[str, Any],
) -> list[str]:
    """Return a segment's rates over all ranks and, if there are several, of each rank. facts: the plan's."""
    all_ranks = segment["per_s"]
    total = (
        f"  a step has {segment['samples_per_step']:.1f} samples, "
        f"{segment['bytes_per_step']:.0f} bytes; "
        f"at {facts['steps_per_s']:g} steps/s "
        f"{all_ranks['samples']:.1f} samples/s, "
        f"{all_ranks['bytes']:.0f} bytes/s, "
        f"per group of fields {all_ranks['requests']:.1f} requests/s by sample "
        f"or {all_ranks['chunk_requests']:.2f} by chunk"
    )
    if facts["world_size"] == 1:
        return [total]

    rank = segment["per_rank_per_s"]
    of_rank = (
        f"  of these each of {facts['world_size']} ranks: "
        f"{rank['samples']:.1f} samples/s, "
        f"{rank['bytes']:.0f} bytes/s, "
        f"{rank['requests']:.1f} requests/s by sample "
        f"or {rank['chunk_requests']:.2f} by chunk"
    )
    return [total, of_rank]
