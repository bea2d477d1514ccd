"""Metrics as Prometheus reads them: text exposition format 0.0.4.

https://prometheus.io/docs/instrumenting/exposition_formats/
There is no server here: whoever has one serves this text, or writes it to a file for node_exporter
(docs/observability.md).
"""

from collections.abc import Iterator, Mapping
from itertools import accumulate

from .metrics import BOUNDS_S, COUNTERS, STAGES, Totals

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "penstock_"
HELP = {
    "plan": "Per batch: which samples it holds.",
    "address": "Per batch: where its samples lie, from the indexes.",
    "fetch": "Per batch: waiting for the store.",
    "verify": "Per batch: CRC-32C of what was read.",
    "decode": "Per batch: decoding.",
    "transform": "Per batch: the user's transform.",
    "collate": "Per batch: into one memory.",
    "handover": "Per batch: finished, and not yet asked for.",
    "room": "A thread waited until a batch was taken: back-pressure.",
    "copy": "Per batch: copied to the device, beside the consumer.",
    "consumer": "The consumer waited for a batch.",
    "busy": "The consumer worked between two batches.",
}
"""Stage -> what its histogram observes."""


def exposition(totals: Totals, *, rank: int, step: int) -> str:
    """Return counters, one histogram per stage and the next step, labelled with the rank; samples by source too."""
    return "".join(f"{line}\n" for line in _lines(totals, rank, step))


def _lines(totals: Totals, rank: int, step: int) -> Iterator[str]:
    labels = {"rank": str(rank)}
    yield from _head("step", "gauge", "Global step of the next batch.")
    yield f"{PREFIX}step{_labelled(labels)} {step}"
    for name, text in COUNTERS.items():
        yield from _head(f"{name}_total", "counter", text)
        by_source = totals.samples if name == "samples" else {}
        for source, value in by_source.items():
            yield f"{PREFIX}{name}_total{_labelled({**labels, 'source': source})} {value}"
        if not by_source:
            yield f"{PREFIX}{name}_total{_labelled(labels)} {totals.counts[name]}"
    for stage, name in STAGES.items():
        yield from _head(name, "histogram", HELP[stage])
        bounds = [*(f"{bound:g}" for bound in BOUNDS_S), "+Inf"]
        for bound, count in zip(bounds, accumulate(totals.buckets[stage]), strict=True):
            yield f"{PREFIX}{name}_bucket{_labelled({**labels, 'le': bound})} {count}"
        yield f"{PREFIX}{name}_sum{_labelled(labels)} {totals.sums[stage]!r}"
        yield f"{PREFIX}{name}_count{_labelled(labels)} {sum(totals.buckets[stage])}"


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {PREFIX}{name} {text}"
    yield f"# TYPE {PREFIX}{name} {kind}"


def _labelled(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    """Return a label's value: a backslash, a quote and a line feed are written with a backslash before them."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
