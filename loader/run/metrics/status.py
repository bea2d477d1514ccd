"""The state of a run in one line, and the limit of a run.

If batches are made ahead, the training and the threads work at the same time, and the slower side waits:

- the training waited for less than WAITS of its time: it is the limit;
- else the limit is the stage in which the threads spent most of their time.

With `workers=0` everything runs in one thread, and the largest share is the limit, the training's own work included.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from time import monotonic
from typing import TextIO

from ..batch.batch import MAKING, Batch
from .metrics import STAGES

WAITS = 0.1
"""Share of the consumer's time. Below it are the hand-over and threads that hold the interpreter for a moment."""

CONSUMER = "consumer"
LIMITS = {
    "plan": "plan",
    "address": "indexes",
    "fetch": "store",
    "verify": "checksums",
    "decode": "decoder",
    "transform": "transform",
    "collate": "collate",
}
"""Stage -> what limits when it takes most."""


def limited_by(
    metrics: Mapping[str, float], before: Mapping[str, float] | None = None, *, ahead: bool = True
) -> str | None:
    """Return a value of LIMITS, or "consumer"; None while there is nothing to judge by.

    metrics: as `Loader.metrics` gives them; before: an earlier one, to judge what happened since. ahead: whether
    batches are made ahead of the consumer (`workers` is not 0).
    """
    spent = stage_seconds(metrics, before)
    waited, busy = spent["consumer"], spent["busy"]
    slowest = max(MAKING, key=lambda stage: spent[stage])
    if waited + busy <= 0 or spent[slowest] <= 0:
        return None
    consumer = waited < WAITS * (waited + busy) if ahead else busy > spent[slowest]
    return CONSUMER if consumer else LIMITS[slowest]


def stage_seconds(
    metrics: Mapping[str, float], before: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Return stage -> seconds between two `Loader.metrics`, or since the loader was made."""
    # Copies to a device go on beside both sides.
    names = {stage: f"{name}_sum" for stage, name in STAGES.items() if stage != "copy"}
    return {stage: metrics[name] - (before[name] if before else 0.0) for stage, name in names.items()}


EVERY_S = 0.5
"""Seconds between two writes to a terminal."""
_SHOWN = 3


class Status:
    """Remembers what was told last: every line speaks of the time since the line before."""

    def __init__(self) -> None:
        self._before: Mapping[str, float] | None = None

    def line(self, step: int, metrics: Mapping[str, float], *, executor: str, ahead: bool = True) -> str:
        """Return a line such as this one.

        step 1,234  812 samples/s  95.0 MB/s  training waits 61 %  workers: fetch 58 % ...  limited by: store

        executor: as `Loader.executor`; processes are named. ahead: whether batches are made while the training works.
        Of the workers' time the largest stages are named ("room": they wait until a batch is taken). MB are 10^6 bytes
        of stored fields.
        """
        before, self._before = self._before, dict(metrics)
        spent = stage_seconds(metrics, before)
        elapsed_s = spent["consumer"] + spent["busy"]
        if elapsed_s <= 0:
            return f"step {step:,}"

        def rate(counter: str) -> float:
            return (metrics[counter] - (before[counter] if before else 0.0)) / elapsed_s

        work = {stage: spent[stage] for stage in (*MAKING, "room")}
        whole = sum(work.values())
        largest = sorted(work, key=lambda stage: -work[stage])[:_SHOWN]
        shares = " ".join(
            f"{stage} {work[stage] / whole:.0%}" for stage in largest if work[stage] > 0.005 * whole
        )
        who = "worker processes" if executor == "processes" else "workers"
        parts = [
            f"step {step:,}",
            f"{rate('consumed_samples_total'):,.0f} samples/s",
            f"{rate('fetched_bytes_total') / 1e6:,.1f} MB/s",
            f"training waits {spent['consumer'] / elapsed_s:.0%}",
            f"{who}: {shares}" if shares else "",
            f"limited by: {limit}" if (limit := limited_by(metrics, before, ahead=ahead)) else "",
        ]
        return "  ".join(part for part in parts if part).replace("%", " %")


def shown(
    batches: Iterator[Batch], line: Callable[[], str], stream: TextIO | None = None, every_s: float = EVERY_S
) -> Iterator[Batch]:
    """Yield the batches; where `stream` (stderr) is a terminal, write `line()` there at most once per `every_s`.

    It is written over the line before, and the terminal is left with the last one.
    """
    out = sys.stderr if stream is None else stream
    if not out.isatty():
        yield from batches
        return
    width, last_s = 0, monotonic()
    try:
        for batch in batches:
            yield batch
            del batch  # the next one needs the memory
            if monotonic() - last_s >= every_s:
                text, last_s = line(), monotonic()
                out.write(f"\r{text:<{width}}")
                out.flush()
                width = len(text)
    finally:
        if width:
            out.write("\n")
            out.flush()
