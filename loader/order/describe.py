"""A plan's expected sizes, rates and costs (`plan_facts`) as text."""

from collections.abc import Mapping
from typing import Any

from .mixture import MASK


def describe(facts: Mapping[str, Any]) -> str:
    """Return lines of text: the mixture, the buckets, the length of an epoch, the loader's memory and requests."""
    sources = facts["sources"]
    segments = facts["segments"]
    bucketed = ""
    if facts["bucket_by"]:
        bucketed = f", bucketed by {facts['bucket_by']}"
    if facts["boundary"] == MASK:
        bucketed += ", padded at the end of an epoch"
    lines = [
        f"plan {facts['plan']}",
        f"seed {facts['seed']}, "
        f"global batch {facts['global_batch']}{bucketed}, "
        f"{len(sources)} source(s), "
        f"{len(segments)} segment(s), "
        f"order version {facts['order']}",
    ]
    for name, source in sources.items():
        lines.append(_source_line(name, source))
    lines.append(f"working set of all sources {facts['live_bytes']} bytes over all ranks")
    if len(sources) > 1 and facts["first_exhausted"] is not None:
        lines.append(f"first exhausted: {facts['first_exhausted']!r}")
    for growth in facts["growths"]:
        lines += _growth_lines(growth)
    for segment in segments:
        lines += _segment_lines(segment, facts)
    return "\n".join(lines)


def _source_line(
    name: str,
    facts: Mapping[str, Any],
) -> str:
    samples = f"{facts['samples']} samples"
    if facts["pack"] is not None:
        samples = _packed(facts["samples"], facts["pack"])

    if facts["lanes"] == facts["h"] == facts["chunk"] == 1:
        reading = "full shuffle, every sample read by itself"
    else:
        tail = 100 * facts["tail_share"]
        reading = (
            f"chunks of {facts['chunk']} samples, "
            f"{facts['lanes']} lanes x {facts['h']}, "
            f"{facts['chunk_rounds']} rounds, "
            f"tail {tail:.2f} % of an epoch"
        )

    live = ""
    if facts["live_bytes"]:
        live = f", working set {facts['live_bytes']} bytes in {facts['live_chunks']} chunks"

    end = facts["exhausted_at_step"]
    exhausted = "never exhausted"
    if end is not None:
        exhausted = f"exhausted (and begun again) at step {end}"
    return f"source {name!r}: {samples} of view {facts['view']}; {reading}{live}; {exhausted}"


def _packed(n: int, facts: Mapping[str, Any]) -> str:
    efficiency = 100 * facts["efficiency"]
    return (
        f"{n} sequences of {facts['length']} tokens, "
        f"packed from {facts['documents']} documents "
        f"with {facts['tokens']} tokens "
        f"in {facts['pieces']} pieces "
        f"({efficiency:.2f} % of the places hold a token)"
    )


def _growth_lines(facts: Mapping[str, Any]) -> list[str]:
    step = facts["step"]
    source = f"source {facts['source']!r}"
    removed = ""
    if facts["removed"]:
        removed = f"; {facts['removed']} removed samples are in no slot"
    if not facts["buckets"]:
        return [_growth_line(step, source, facts) + removed]

    samples = facts["samples"]
    lines = [f"from step {step} {source} grows to {samples} samples, by bucket{removed}"]
    for label, bucket_facts in facts["buckets"].items():
        bucket = f"bucket {label!r}"
        line = _growth_line(step, bucket, bucket_facts)
        lines.append(f"  {line}")
    return lines


def _growth_line(
    step: int,
    subject: str,
    facts: Mapping[str, Any],
) -> str:
    mixed = "its"
    if facts["left_of_epoch"]:
        mixed = (
            f"{facts['left_of_epoch']} samples left of its epoch are mixed with {facts['new']} new ones, then"
        )
    start = "never (it grows again before)"
    if facts["whole_from_step"] is not None:
        start = f"from step {facts['whole_from_step']}"
    return (
        f"from step {step} {subject} grows: "
        f"{mixed} epochs are of the {facts['samples']} samples "
        f"of view {facts['view']}, {start}"
    )


def _segment_lines(
    segment: Mapping[str, Any],
    facts: Mapping[str, Any],
) -> list[str]:
    until = ""
    if segment["end_step"] is not None:
        until = f" up to step {segment['end_step'] - 1}"
    batch = ""
    if not segment["buckets"]:  # each bucket has its own
        batch = f", global batch {segment['global_batch']}"
    lines = [f"from step {segment['start_step']}{until}{batch}:"]

    for label, bucket in segment["buckets"].items():
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
    if segment["buckets"]:
        for name, steps in segment["steps_per_epoch"].items():
            lines.append(f"  {name!r}: an epoch is {steps:.1f} steps in all")

    lines += _rate_lines(segment, facts)
    return lines


def _rate_lines(
    segment: Mapping[str, Any],
    facts: Mapping[str, Any],
) -> list[str]:
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
