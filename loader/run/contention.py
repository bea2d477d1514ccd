"""Measures a run for the choice of its maker: the costs of its batches, and the wait for the interpreter's lock.

A training loses the lock inside its own step, where it waits for no batch. Each operation that releases the lock must
then wait for the thread that took it. So a thread of its own asks for the lock now and then, and measures its wait.
"""

import os
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from time import perf_counter
from typing import NamedTuple

from ..storage.shared.threads import ends_with_the_process
from .batch.batch import MAKING
from .choice import Stages
from .metrics.status import stage_seconds

FIRST_LOOK_S, LOOK_S = 0.3, 0.5
"""Seconds of training until the first look, which must not come late, and between two others."""
PROBED_LOOKS = 30
"""Looks after which a run is what it will be, and the lock is not asked for any more."""
PROBE_S = 0.08
"""Seconds between two questions for the lock. One took 70 us on a busy virtual machine: less than 0.1 %."""
LEAST_ASKED = 8
"""Questions that a share of them needs."""


class Seen(NamedTuple):
    """A stretch of a run."""

    locked: float
    """Share of the questions for the interpreter's lock that were answered late; 0 without a probe."""
    stages: Stages
    """Costs of its batches."""


class LockProbe:
    """A thread that sleeps, wakes, and counts how often it got the interpreter's lock late.

    Late is a fifth of the time after which the interpreter takes the lock from its holder (5 ms). So a thread that
    computes in Python counts, and one that holds the lock for a call does not. Time in which all cores were busy with
    other threads is not the lock's: the kernel counts it for each thread, and it is taken off.
    """

    def __init__(self) -> None:
        # (held until the end; an Event would cost several calls of Python per question)
        self._running, self._pid = threading.Lock(), os.getpid()
        self._running.acquire()
        self._asked = self._late = 0
        self._share = 0.0
        ends_with_the_process(self)
        self._thread = threading.Thread(target=self._run, name="penstock-lock-probe", daemon=True)
        self._thread.start()

    def drain(self) -> float:
        """Return the share of late answers of the last questions, at least LEAST_ASKED; 0.0 before."""
        if self._asked >= LEAST_ASKED:
            self._share, self._asked, self._late = self._late / self._asked, 0, 0
        return self._share

    def dismiss(self) -> None:
        """Let the thread end. Does not wait. A forked child has no thread, and perhaps a lock that it held."""
        if os.getpid() == self._pid:
            with suppress(RuntimeError):  # dismissed before
                self._running.release()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the thread's end, so long at most, after `dismiss`."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        bound_s, delays = sys.getswitchinterval() / 5, _RunDelay()
        delayed_s, start = delays.seconds(), perf_counter()
        while not self._running.acquire(timeout=PROBE_S):
            late_s, before_s = perf_counter() - start - PROBE_S, delayed_s
            delayed_s = delays.seconds()
            self._late += late_s - (delayed_s - before_s) >= bound_s
            self._asked += 1
            start = perf_counter()
        delays.close()


class _RunDelay:
    """The seconds that this thread was ready to run and had no core, where the kernel counts them."""

    def __init__(self) -> None:
        try:
            self._file = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        except OSError:
            self._file = -1

    def seconds(self) -> float:
        try:
            return int(os.pread(self._file, 64, 0).split()[1]) / 1e9
        except (OSError, ValueError, IndexError):  # no such file: not Linux, or a kernel without it
            return 0.0

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)


class Contention:
    """Looks at a loader's metrics now and then. For the consumer's thread, but for `end_probe`."""

    def __init__(self, *, probed: bool) -> None:
        """probed: whether to ask for the interpreter's lock."""
        self._before: tuple[Mapping[str, float], float, float] | None = None
        self._since_s, self._computed_s, self._next_s, self._looks = 0.0, 0.0, 0.0, 0
        self._probed = probed
        self._probe: LockProbe | None = None

    def saw(self, waited_s: float, busy_s: float, computed_s: float) -> bool:
        """Count a step in which the training waited and worked. Return whether it is time for `look`.

        computed_s: CPU seconds of its thread, as it worked.
        """
        self._since_s += waited_s + busy_s
        self._computed_s += computed_s
        return self._since_s >= self._next_s

    def measure(self, metrics: Mapping[str, float], made_cpu_s: float, process_cpu_s: float) -> Seen | None:
        """Return the stretch since the call before; None the first time.

        made_cpu_s: CPU seconds of making the batches that were taken so far; process_cpu_s: of the whole process.
        """
        locked = self._probe.drain() if self._probe is not None else 0.0
        before, self._before = self._before, (metrics, made_cpu_s, process_cpu_s)
        computed_s, self._since_s, self._computed_s, self._looks = self._computed_s, 0.0, 0.0, self._looks + 1
        self._next_s = FIRST_LOOK_S if before is None else LOOK_S
        if self._looks > PROBED_LOOKS:
            self.end_probe()
        if before is None:  # the first batch waited for imports and indexes, which the run does not
            self._begin_probe()
            return None
        spent = stage_seconds(metrics, before[0])
        elapsed = max(spent["consumer"] + spent["busy"], 1e-9)
        stages = Stages(
            waits=spent["consumer"] / elapsed,
            computes=computed_s / elapsed,
            decodes=_share(spent, "decode", "transform"),
            fetches=_share(spent, "fetch"),
            load=(made_cpu_s - before[1]) / elapsed,
            cores=(process_cpu_s - before[2]) / elapsed,
        )
        return Seen(locked, stages)

    def _begin_probe(self) -> None:
        if self._probed:
            self._probe = LockProbe()
        if not self._probed and self._probe is not None:  # closed meanwhile, by another thread
            self._probe.dismiss()

    def end_probe(self, *, wait: bool = False) -> None:
        """Ask for the lock no more. wait: for the end of the thread that did."""
        self._probed = False
        probe, self._probe = self._probe, None
        if probe is not None:
            probe.dismiss()
            if wait:
                probe.join()


def decodes(metrics: Mapping[str, float]) -> float:
    """Return the share of decoding and transforming in the work on batches since the start."""
    return _share(stage_seconds(metrics), "decode", "transform")


def _share(spent: Mapping[str, float], *stages: str) -> float:
    """Return the share of stages in the work on batches."""
    return sum(spent[stage] for stage in stages) / max(sum(spent[stage] for stage in MAKING), 1e-9)
