"""Metrics as text for Prometheus."""

from collections.abc import Mapping, Sequence

from .metrics import BOUNDS_S, COUNTERS, STAGES, Totals

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "penstock_"
HELP = {
    "plan": "Per batch: which samples it holds.",
    "address": "Per batch: where its samples lie, from the indexes.",
    "fetch": "Per batch: waiting for the store, or for other nodes.",
    "peers": "Per batch: the part of fetch that waited for other nodes.",
    "verify": "Per batch: CRC-32C of what was read.",
    "decode": "Per batch: decoding.",
    "transform": "Per batch: the user's transform.",
    "collate": "Per batch: stacking into one memory.",
    "handover": "Per batch: finished, and not yet requested.",
    "room": "A thread waited until the consumer took a batch: back-pressure.",
    "copy": "Per batch: copied to the device, beside the consumer.",
    "consumer": "The consumer waited for a batch.",
    "busy": "The consumer worked between two batches.",
}
"""Stage -> what its histogram observes."""


def exposition(totals: Totals, *, rank: int, step: int) -> str:
    """Return text exposition format 0.0.4, labelled with the rank; samples also by source.

    https://prometheus.io/docs/instrumenting/exposition_formats/
    """
    lines: list[str] = []
    labels = {"rank": str(rank)}
    lines += _head("step", "gauge", "Global step of the next batch.")
    lines.append(_value("step", labels, step))
    for name, text in COUNTERS.items():
        counter = f"{name}_total"
        lines += _head(counter, "counter", text)
        if name == "samples" and totals.samples:
            for source, amount in totals.samples.items():
                source_labels = {**labels, "source": source}
                lines.append(_value(counter, source_labels, amount))
            continue
        lines.append(_value(counter, labels, totals.counts[name]))
    for stage, name in STAGES.items():
        lines += _head(name, "histogram", HELP[stage])
        lines += _histogram(
            name,
            labels,
            totals.buckets[stage],
            totals.sums[stage],
        )
    lines.append("")
    return "\n".join(lines)


def _histogram(
    name: str,
    labels: Mapping[str, str],
    buckets: Sequence[int],
    total_s: float,
) -> list[str]:
    """Return the lines of a histogram. buckets: counts, not cumulative, with the one above all bounds last."""
    lines: list[str] = []
    bounds = [f"{bound:g}" for bound in BOUNDS_S]
    bounds.append("+Inf")
    count = 0
    for bound, in_bucket in zip(bounds, buckets, strict=True):
        count += in_bucket
        bucket_labels = {**labels, "le": bound}
        lines.append(_value(f"{name}_bucket", bucket_labels, count))
    lines.append(_value(f"{name}_sum", labels, total_s))
    lines.append(_value(f"{name}_count", labels, count))
    return lines


def _head(
    name: str,
    kind: str,
    text: str,
) -> list[str]:
    """Return the lines that describe a metric. kind: counter, gauge or histogram."""
    return [
        f"# HELP {PREFIX}{name} {text}",
        f"# TYPE {PREFIX}{name} {kind}",
    ]


def _value(
    name: str,
    labels: Mapping[str, str],
    value: float,
) -> str:
    """Return the line of one value, with its labels escaped."""
    pairs: list[str] = []
    for label, text in labels.items():
        escaped = text.replace("\\", "\\\\")
        escaped = escaped.replace('"', '\\"')
        escaped = escaped.replace("\n", "\\n")
        pairs.append(f'{label}="{escaped}"')
    all_labels = ",".join(pairs)
    return f"{PREFIX}{name}{{{all_labels}}} {value!r}"
