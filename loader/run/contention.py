"""Whether the training and the threads that make its batches are in each other's way."""

from collections.abc import Mapping

from .limit import LIMITS, WAITS, limited_by

LOOK_S = 2.0
"""Seconds of training between two looks: hundreds of steps of a small model, a few of a large one."""
COMPUTES = 0.1
"""Share of the time that the training's own thread must compute for the interpreter's lock to be what matters."""


class Contention:
    """Looks at a loader's metrics now and then. For the consumer's thread."""

    def __init__(self) -> None:
        self._before: Mapping[str, float] | None = None
        self._since_s = self._computed_s = 0.0

    def saw(self, waited_s: float, busy_s: float, computed_s: float) -> bool:
        """A step of the training: seconds that it waited and then worked, and CPU seconds of its thread. True when it
        is time for `found`."""
        self._since_s += waited_s + busy_s
        self._computed_s += computed_s
        return self._since_s >= LOOK_S

    def found(self, metrics: Mapping[str, float]) -> str | None:
        """Why processes would be faster, judged by the time since the call before; None where they would not."""
        before, self._before = self._before, metrics
        computes, self._since_s, self._computed_s = self._computed_s / self._since_s, 0.0, 0.0
        if before is None:
            return None  # imports, indexes and the first batches are not what the run will be like
        waited, busy = (
            metrics[name] - before[name]
            for name in ("consumer_wait_seconds_sum", "consumer_busy_seconds_sum")
        )
        waits = waited / (waited + busy)
        if waits < WAITS or computes < COMPUTES or limited_by(metrics, before) == LIMITS["fetch"]:
            return None
        return (
            f"the training waited for {waits:.0%} of its time and computed for {computes:.0%}, in which threads wait "
            "for the interpreter"
        )
