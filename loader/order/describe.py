"""A plan in words, for people: the numbers of `facts`, a line each."""

from collections.abc import Mapping
from typing import Any

from .boundary import MASK


def describe(facts: Mapping[str, Any]) -> str:
    """Several lines: what is mixed and bucketed, how long an epoch lasts, what a loader will hold and ask for."""
    bucketed = f", bucketed by {facts['bucket_by']}" if facts["bucket_by"] else ""
    bucketed += ", padded at the end of an epoch" if facts["boundary"] == MASK else ""
    lines = [
        f"plan {facts['plan']}",
        f"seed {facts['seed']}, global batch {facts['global_batch']}{bucketed}, {len(facts['sources'])} source(s), "
        f"{len(facts['segments'])} segment(s), order version {facts['order']}",
    ]
    lines += [_source_line(name, one) for name, one in facts["sources"].items()]
    lines.append(f"working set of all sources {facts['live_bytes']} bytes over all ranks")
    if len(facts["sources"]) > 1 and facts["first_exhausted"] is not None:
        lines.append(f"first exhausted: {facts['first_exhausted']!r}")
    for growth in facts["growths"]:
        lines += _growth_lines(growth)
    for segment in facts["segments"]:
        lines += _segment_lines(segment, facts)
    return "\n".join(lines)


def _source_line(name: str, one: Mapping[str, Any]) -> str:
    if one["lanes"] == one["h"] == one["chunk"] == 1:
        reading = "full shuffle, every sample read alone"
    else:
        reading = (
            f"chunks of {one['chunk']} samples, {one['lanes']} lanes x {one['h']}, {one['chunk_rounds']} rounds, "
            f"tail {100 * one['tail_share']:.2f} % of an epoch"
        )
    live = (
        f", working set {one['live_bytes']} bytes in {one['live_chunks']} chunks" if one["live_bytes"] else ""
    )
    end = one["exhausted_at_step"]
    exhausted = "never exhausted" if end is None else f"exhausted (and begun again) at step {end}"
    packed = one["pack"]
    samples = f"{one['samples']} samples" if packed is None else _packed(one["samples"], packed)
    return f"source {name!r}: {samples} of view {one['view']}; {reading}{live}; {exhausted}"


def _packed(n: int, one: Mapping[str, Any]) -> str:
    return (
        f"{n} sequences of {one['length']} tokens, packed from {one['documents']} documents with {one['tokens']} "
        f"tokens in {one['pieces']} pieces ({100 * one['efficiency']:.2f} % of the places hold a token)"
    )


def _growth_lines(one: Mapping[str, Any]) -> list[str]:
    whose = f"source {one['source']!r}"
    removed = f"; {one['removed']} removed samples are in no slot" if one["removed"] else ""
    if not one["buckets"]:
        return [_growth_line(one["step"], whose, one) + removed]
    lines = [f"from step {one['step']} {whose} grows to {one['samples']} samples, by bucket{removed}"]
    return lines + [
        "  " + _growth_line(one["step"], f"bucket {label!r}", part) for label, part in one["buckets"].items()
    ]


def _growth_line(step: int, whose: str, one: Mapping[str, Any]) -> str:
    mixed = f"{one['left_of_epoch']} samples left of its epoch are mixed with {one['new']} new ones, then"
    mixed = mixed if one["left_of_epoch"] else "its"
    start = (
        "never (it grows again before)"
        if one["whole_from_step"] is None
        else f"from step {one['whole_from_step']}"
    )
    return (
        f"from step {step} {whose} grows: {mixed} epochs are "
        f"of the {one['samples']} samples of view {one['view']}, {start}"
    )


def _segment_lines(segment: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
    until = "" if segment["end_step"] is None else f" up to step {segment['end_step'] - 1}"
    batch = "" if segment["buckets"] else f", global batch {segment['global_batch']}"
    lines = [f"from step {segment['start_step']}{until}{batch}:"]
    for label, one in segment["buckets"].items():
        lines.append(
            f"  bucket {label!r}: batches of {one['batch']}, {one['turns']} of {one['total_turns']} steps "
            f"({100 * one['turns'] / one['total_turns']:.2f} %)"
        )
    for name, one in segment["sources"].items():
        share = 100 * one["weight"] / one["total_weight"]
        lines.append(
            f"  {name!r}: {one['weight']} of {one['total_weight']} slots ({share:.2f} %), an epoch is "
            f"{one['steps_per_epoch']:.1f} steps"
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
