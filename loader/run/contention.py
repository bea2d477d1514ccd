"""Measure a run at intervals: where its time goes, and how often threads wait for the interpreter's lock."""

import os
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from time import perf_counter
from typing import NamedTuple

from ..storage.threads import AwaitedThread, ends_with_the_process
from .batch.batch import MAKING
from .maker_choice import Stages
from .metrics import stage_seconds
from .run_delay import RunDelay

FIRST_MEASUREMENT_S = 0.3
"""Seconds of training before the first measurement."""
MEASUREMENT_S = 0.5
"""Seconds of training between later measurements."""
PROBED_MEASUREMENTS = 30
"""Number of measurements after which a run is steady, and the probe ends."""
PROBE_S = 0.08
"""Seconds between requests for the lock. One takes 70 us: less than 0.1 %."""
MIN_REQUESTS = 8
"""Fewest requests that give a share of late ones."""


class Measurement(NamedTuple):
    locked: float
    """Share of late requests for the interpreter's lock; 0 without a probe."""
    stages: Stages
    """Costs of the interval's batches."""


class LockProbe:
    """A thread that counts how often it got the interpreter's lock late.

    A request is late after a fifth of the interpreter's switch interval (5 ms). Threads that compute in Python cause
    that; threads that hold the lock for one call do not.
    """

    def __init__(self) -> None:
        # Locked until the end. An Event would cost several Python calls per request.
        self._running = threading.Lock()
        self._running.acquire()
        self._pid = os.getpid()
        self._requests = 0
        self._late = 0
        self._share = 0.0
        ends_with_the_process(self)
        self._thread = AwaitedThread(self._run, name="penstock-lock-probe")
        self._thread.start()

    def drain(self) -> float:
        """Return the share of late requests since the last reset, and reset the counts.

        With fewer than MIN_REQUESTS, return the previous share (0.0 at first) and keep counting.
        """
        if self._requests >= MIN_REQUESTS:
            self._share = self._late / self._requests
            self._requests = 0
            self._late = 0
        return self._share

    def dismiss(self) -> None:
        """Let the thread end, without waiting. May be called twice."""
        if os.getpid() == self._pid:  # a forked child has the lock, but no thread
            with suppress(RuntimeError):  # already dismissed
                self._running.release()

    def join(self, timeout_s: float | None = None) -> None:
        self._thread.join(timeout_s)

    def _run(self) -> None:
        """Request the interpreter's lock every PROBE_S seconds, and count the late answers."""
        late_after_s = sys.getswitchinterval() / 5
        delays = RunDelay()
        delayed_s = delays.seconds()
        start_s = perf_counter()
        # Each wait ends after PROBE_S, until `dismiss` releases the lock. To return, it needs the interpreter's lock.
        while not self._running.acquire(timeout=PROBE_S):
            waited_s = perf_counter() - start_s - PROBE_S
            delayed_before_s = delayed_s
            delayed_s = delays.seconds()
            # Other programs had the core for that long: the lock is not to blame.
            without_core_s = delayed_s - delayed_before_s
            is_late = waited_s - without_core_s >= late_after_s
            if is_late:
                self._late += 1
            self._requests += 1
            start_s = perf_counter()
        delays.close()


class _Costs(NamedTuple):
    """Totals since the start of the process."""

    metrics: Mapping[str, float]
    """As `Metrics.snapshot`."""
    made_cpu_s: float
    """CPU seconds spent on the delivered batches."""
    process_cpu_s: float
    """CPU seconds of the whole process."""
    delay_s: float
    """Seconds that its threads waited for a core."""


class Contention:
    """Measures a loader at intervals. For the consumer's thread, except `end_probe`."""

    def __init__(self, *, probed: bool) -> None:
        self._before: _Costs | None = None  # at the last measurement
        self._interval_s = 0.0  # of training, since the last measurement
        self._computed_s = 0.0  # of its thread's CPU, since the last measurement
        self._measure_after_s = 0.0  # of training: the first measurement is due at the first step
        self._n_measurements = 0
        self._may_probe = probed
        self._probe: LockProbe | None = None

    def add_step(
        self,
        waited_s: float,
        busy_s: float,
        computed_s: float,
    ) -> bool:
        """Add a step in which the training waited and worked. Return whether to measure now.

        computed_s: CPU seconds of the training's thread.
        """
        self._interval_s += waited_s + busy_s
        self._computed_s += computed_s
        return self._interval_s >= self._measure_after_s

    def measure(
        self,
        metrics: Mapping[str, float],
        made_cpu_s: float,
        process_cpu_s: float,
        delay_s: float = 0.0,
    ) -> Measurement | None:
        """Return the measured interval since the previous call; None on the first call.

        The first call starts the probe; the call after PROBED_MEASUREMENTS ends it.

        made_cpu_s: CPU seconds spent on the delivered batches; process_cpu_s: on the whole process. delay_s: seconds
        that its threads waited for a core.
        """
        locked = 0.0
        if self._probe is not None:
            locked = self._probe.drain()
        computed_s = self._computed_s
        before = self._before
        now = _Costs(metrics, made_cpu_s, process_cpu_s, delay_s)

        # Begin the next interval.
        self._before = now
        self._interval_s = 0.0
        self._computed_s = 0.0
        self._n_measurements += 1
        if self._n_measurements > PROBED_MEASUREMENTS:
            self.end_probe()

        if before is None:  # the first batch waited for imports and indexes, unlike later ones
            self._measure_after_s = FIRST_MEASUREMENT_S
            self._begin_probe()
            return None
        self._measure_after_s = MEASUREMENT_S
        return Measurement(locked, _stages(before, now, computed_s))

    def _begin_probe(self) -> None:
        if self._may_probe:
            self._probe = LockProbe()
        # If end_probe ran in another thread since the first test, it did not end this probe.
        if not self._may_probe and self._probe is not None:
            self._probe.dismiss()

    def end_probe(self, *, wait: bool = False) -> None:
        """End the probe, and start none later. For any thread."""
        self._may_probe = False
        probe = self._probe
        self._probe = None
        if probe is not None:
            probe.dismiss()
            if wait:
                probe.join()


def _stages(
    before: _Costs,
    now: _Costs,
    computed_s: float,
) -> Stages:
    """Return the costs between two measurements. computed_s: CPU seconds of the training's thread."""
    spent_s = stage_seconds(now.metrics, before.metrics)
    elapsed_s = max(spent_s["consumer"] + spent_s["busy"], 1e-9)
    # A thread that has ended takes its seconds of waiting with it.
    delayed_s = max(0.0, now.delay_s - before.delay_s)
    return Stages(
        wait_share=spent_s["consumer"] / elapsed_s,
        compute_share=computed_s / elapsed_s,
        decode_share=_share(spent_s, "decode", "transform"),
        fetch_share=_share(spent_s, "fetch"),
        load=(now.made_cpu_s - before.made_cpu_s) / elapsed_s,
        cores=(now.process_cpu_s - before.process_cpu_s) / elapsed_s,
        delayed=delayed_s / elapsed_s,
    )


def decode_share(metrics: Mapping[str, float]) -> float:
    """Return the share of decoding and transforming in the work on batches since the loader began."""
    return _share(stage_seconds(metrics), "decode", "transform")


def _share(spent_s: Mapping[str, float], *stages: str) -> float:
    """Return the stages' share of the work on batches. spent_s: stage -> its seconds."""
    stages_s = sum(spent_s[stage] for stage in stages)
    all_s = sum(spent_s[stage] for stage in MAKING)
    return stages_s / max(all_s, 1e-9)
