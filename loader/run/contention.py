"""Contention: the training and the threads that make its batches in each other's way, or the threads in their own."""

from collections.abc import Mapping
from typing import NamedTuple

from .batch.step_metrics import MAKING
from .metrics.limit import LIMITS, WAITS, limited_by, stage_seconds

LOOK_S = 2.0
"""Seconds of training between two looks: hundreds of steps of a small model, a few of a large one."""
COMPUTES = 0.1
"""Share of the time that the training's own thread must compute for the interpreter's lock to be what matters."""
ONE_CORE = 0.7, 1.25
"""Cores that a process uses whose threads take turns at the interpreter's lock: one, more or less. With fewer they wait
for something else, a disk or other programs."""
IDLE = 0.1
"""Share of the time that the training works, below which there is nothing to do beside it; above twice that there
is."""


class Seen(NamedTuple):
    """Shares and rates of a stretch of a run."""

    waits: float
    """Share of the training's time in which it waited for batches."""
    computes: float
    """Share of the training's time in which its own thread computed."""
    cores: float
    """CPU seconds of the whole process per second."""
    decodes: float
    """Share of decoding and transforming in the work on batches."""
    limit: str | None
    """Value of `limited_by`; None while there is nothing to judge by."""


class Contention:
    """Looks at a loader's metrics now and then. For the consumer's thread."""

    def __init__(self) -> None:
        self._before: tuple[Mapping[str, float], float] | None = None
        self._since_s = self._computed_s = 0.0

    def saw(self, waited_s: float, busy_s: float, computed_s: float) -> bool:
        """Count a step of the training. Return whether it is time for `look`.

        waited_s, busy_s: seconds that it waited and then worked.
        computed_s: CPU seconds of its thread.
        """
        self._since_s += waited_s + busy_s
        self._computed_s += computed_s
        return self._since_s >= LOOK_S

    def look(self, metrics: Mapping[str, float], process_s: float) -> Seen | None:
        """Return the stretch since the call before; None the first time.

        process_s: CPU seconds of the process so far.
        """
        computes, self._since_s, self._computed_s = self._computed_s / self._since_s, 0.0, 0.0
        before, self._before = self._before, (metrics, process_s)
        if before is None:
            return None  # imports, indexes and the first batches are not what the run will be like
        spent = stage_seconds(metrics, before[0])
        elapsed, made = spent["consumer"] + spent["busy"], sum(spent[stage] for stage in MAKING)
        return Seen(
            waits=spent["consumer"] / elapsed,
            computes=computes,
            cores=(process_s - before[1]) / elapsed,
            decodes=(spent["decode"] + spent["transform"]) / max(made, 1e-9),
            limit=limited_by(metrics, before[0]),
        )


def better_processes(seen: Seen) -> str | None:
    """Return the reason why processes would be faster than threads; None where they would not."""
    if seen.waits < WAITS or seen.computes < COMPUTES or seen.limit == LIMITS["fetch"]:
        return None
    return (
        f"the training waited for {seen.waits:.0%} of its time and computed for {seen.computes:.0%}, in which threads "
        "wait for the interpreter"
    )


def better_threads(seen: Seen, threads: int, least: int = 0) -> tuple[int, str] | None:
    """Return (number of threads that would do as much or more, why); None where `threads` are as good as any.

    At least `least`, 0 being the training's own thread. For samples that lie on this machine. Decoders let go of the
    interpreter's lock; copies and checksums of small samples do not, and threads that share it lose more by handing it
    over than they gain.
    """
    busy = 1 - seen.waits
    if not threads:
        why = f"the training works for {busy:.0%} of its time, beside which a thread can"
        return (1, why) if busy > 2 * IDLE else None
    low, high = ONE_CORE
    if seen.waits < WAITS or seen.decodes >= 0.5 or not low <= seen.cores < high:
        return None
    why = f"{threads} thread{'s' * (threads > 1)} and the training used {seen.cores:.2g} cores"
    if not least and busy < IDLE:
        return (
            0,
            f"{why}, and the training waited for {seen.waits:.0%} of its time: its own thread is quicker alone",
        )
    return (1, f"{why}: they take turns at the interpreter") if threads > 1 else None
