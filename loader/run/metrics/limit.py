"""The limit of a run: the one rule behind the status line and `penstock bench`.

Where batches are made ahead, the threads and the consumer work at the same time, and the slower side waits for nobody:

- the consumer waited for less than WAITS of its time: it is the limit, and a faster loader would gain it no more;
- else the stage in which the threads spent most of their time.

Where they are not (`workers=0`), everything takes its turn in one thread, and the largest share limits, the consumer's
own work among them.
"""

from collections.abc import Mapping

from ..batch.step_metrics import MAKING
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
