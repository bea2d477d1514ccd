"""Let `auto` choose among threads, worker processes and the training's own thread, by measuring the run.

Decoders hold the interpreter's lock for a tenth of their time, so a few threads keep it busy. If samples are only
copied, a third thread costs more than it gains. A probe thread measures the wait for the lock.
"""

import os
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

from ..storage.threads import ends_with_the_process
from .batch.batch import MAKING
from .metrics import stage_seconds
from .run_delay import RunDelay

MAX_CORES_FOR_THREADS = 2
"""Number of cores or processes up to which threads decode as fast as processes; 3 processes beat 4 threads."""
DECODING_THREADS = 4
"""Most threads that speed each other up while decoding."""
COPYING_THREADS = 2
"""Most threads that speed each other up while copying."""
COPYING_PROCESSES = 2
"""Most worker processes for copies: what they save the training is its own wait for the lock."""
MIN_WAIT_SHARE = 0.1
"""Share of its time that training waits, above which faster batches pay off."""
DOMINANT_SHARE = 0.5
"""Share of the work on batches above which a stage dominates it."""
MIN_LOAD_CORES = 0.25
"""Cores busy with batches, above which threads compete with training for the lock."""
MIN_COMPUTE_SHARE = 0.1
"""Share of its time that training computes, above which decoding threads cost it the lock."""
MIN_TRAINING_LOCK_SHARE = 0.25
"""Share of the time that training holds the lock for long, above which threads starve."""
IDLE_WORK_SHARE = 0.1
"""Share of its time that training works, below which it is idle; above twice that it is busy."""
MIN_DECODER_LOCK_SHARE = 0.5
"""Share of the time that decoders hold the lock for long, above which a second thread gains nothing."""
ONE_CORE = 0.7, 1.25
"""Range of cores used by threads that take turns at the lock; with fewer they wait for something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    wait_share: float
    """Share of training's time spent waiting for batches."""
    compute_share: float
    """Share of training's time in which its thread used a core."""
    decode_share: float
    """Share of decoding and transforming in the work on batches."""
    fetch_share: float
    """Share of reading in the work on batches: waiting for a store, or copying."""
    load: float
    """Cores kept busy by making batches: CPU seconds per second."""
    cores: float
    """Cores kept busy by the process."""
    delayed: float = 0.0
    """Cores for which the process's threads waited, because other programs had them."""

    @property
    def used(self) -> float:
        """Cores that the process would keep busy on a machine without other programs."""
        return self.cores + self.delayed


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Makers of batches that may be chosen."""

    cores: int
    """Cores of this rank's share of the machine."""
    processes: int
    """Number of worker processes that may be started."""
    threads: bool
    """True if the number of threads may change."""
    local: bool
    """True if all samples are on this machine's own disks."""
    caller: bool
    """True allows the training's own thread."""
    more_threads: bool = False
    """True allows more threads for copies than speed each other up: they wait for a disk at the same time."""


class Maker(NamedTuple):
    """A maker of batches."""

    name: str
    """"threads", "processes" or "caller"."""
    workers: int
    """Number of threads or processes; 0 for the caller."""


def first_threads(
    cores: int,
    *,
    local: bool,
    copies: bool = False,
) -> int:
    """Return the number of threads to begin with. copies: True if nothing is decoded or transformed."""
    if not local:
        return cores
    most = COPYING_THREADS if copies else DECODING_THREADS
    return min(cores, most)


def choice(
    locked: float,
    room: Room,
    stages: Stages,
    now: Maker,
) -> tuple[Maker, str] | None:
    """Return (a better maker than `now`, why); None if `now` is as good as any.

    locked: share of time in which a thread waits long for the interpreter's lock.
    """
    if now.name == "processes":
        return None
    if room.processes:
        why = _why_processes(locked, room, stages, now)
        if why is not None:
            most = room.processes
            if stages.decode_share < DOMINANT_SHARE:
                most = min(most, COPYING_PROCESSES)
            return Maker("processes", most), why
    if not room.threads:
        return None
    if now.name == "caller":
        return _thread_during_training(stages)
    return _better_without_processes(room, stages, now.workers)


def _why_processes(
    locked: float,
    room: Room,
    stages: Stages,
    now: Maker,
) -> str | None:
    """Return the reason why worker processes would be faster; None if there is none."""
    is_waiting = stages.wait_share >= MIN_WAIT_SHARE
    is_decoding = stages.decode_share >= DOMINANT_SHARE
    waits_for_a_store = stages.fetch_share >= DOMINANT_SHARE and not room.local
    if waits_for_a_store:
        return None

    # Two processes are no faster than threads for a loop that only waits: see MAX_CORES_FOR_THREADS.
    pays_for_processes = room.processes > MAX_CORES_FOR_THREADS or stages.wait_share <= 1 - IDLE_WORK_SHARE
    is_costly = is_waiting or stages.load >= MIN_LOAD_CORES
    has_many_cores = room.cores > MAX_CORES_FOR_THREADS
    if is_decoding and has_many_cores and pays_for_processes and is_costly:
        return (
            f"decoders and transforms take {stages.decode_share:.0%} of the work on batches, "
            f"which keeps {stages.load:.2g} of {room.cores} cores busy, and the training "
            f"waited for {stages.wait_share:.0%} of its time"
        )

    has_several_threads = min(now.workers, room.processes, room.cores) > 1
    waits_for_decoders = is_decoding and is_waiting
    if waits_for_decoders and has_several_threads and _decoders_take_turns(locked, stages):
        return (
            f"decoders and transforms take {stages.decode_share:.0%} of the work on batches and hold the lock: "
            f"{now.workers} threads used {stages.cores:.2g} cores, and the training waited for {stages.wait_share:.0%}"
        )

    # Other programs may leave the process less than a core.
    cores_at_most_one = min(1.0, stages.cores)
    has_decoding_load = is_decoding and stages.load >= MIN_LOAD_CORES * cores_at_most_one
    if not is_waiting and not has_decoding_load:
        return None
    if is_decoding and stages.compute_share >= MIN_COMPUTE_SHARE * cores_at_most_one:
        return (
            f"the training waited for {stages.wait_share:.0%} of its time and computed for "
            f"{stages.compute_share:.0%}, in which threads that decode take the interpreter's lock from it, "
            "and it from them"
        )

    # While training waits it does not hold the lock: late threads have lost their core.
    locked_by_training = min(locked, 1 - stages.wait_share)
    if locked_by_training < MIN_TRAINING_LOCK_SHARE:
        return None
    return (
        f"the training held the interpreter's lock for {locked:.0%} of the time, in which threads wait for it, and "
        f"waited for batches for {stages.wait_share:.0%}"
    )


def _decoders_take_turns(locked: float, stages: Stages) -> bool:
    """Return whether all threads together use one core, because decoders hold the interpreter's lock."""
    low, high = ONE_CORE
    if low <= stages.used < high:
        return True
    # On a busy machine, threads that wait for the lock also wait for a core. Only the probe separates the two.
    training_share = 1 - stages.wait_share  # the lock's share that the training may hold
    return stages.cores < high and locked - training_share >= MIN_DECODER_LOCK_SHARE


def _better_without_processes(
    room: Room,
    stages: Stages,
    threads: int,
) -> tuple[Maker, str] | None:
    """Return (fewer threads, more for a disk, or the caller; why); None if their number is good."""
    low, high = ONE_CORE
    is_decoding = stages.decode_share >= DOMINANT_SHARE
    most = COPYING_THREADS
    work = "copy"
    if is_decoding:
        most = DECODING_THREADS
        work = "decode"
    # Threads that copy from a bucket wait for it, and do not compete.
    compete = is_decoding or (room.local and stages.cores >= low)
    if threads > most and compete:
        why = f"more than {most} threads that {work} samples take the lock from each other"
        return Maker("threads", most), why
    if is_decoding or not room.local or stages.wait_share < MIN_WAIT_SHARE:
        return None

    plural = "s" if threads > 1 else ""
    waits_for_a_disk = room.more_threads and stages.used < low and stages.fetch_share >= DOMINANT_SHARE
    if waits_for_a_disk and threads < DECODING_THREADS:
        why = f"{threads} thread{plural} and the training used {stages.used:.2g} cores: they wait for a disk"
        return Maker("threads", min(room.cores, DECODING_THREADS)), why

    take_turns = low <= stages.cores < high
    if not take_turns:
        return None
    used = f"{threads} thread{plural} and the training used {stages.cores:.2g} cores"
    if room.caller and stages.wait_share > 1 - IDLE_WORK_SHARE:
        idle = f"the training waited for {stages.wait_share:.0%} of its time: its own thread is faster without it"
        return Maker("caller", 0), f"{used}, and {idle}"
    if threads <= 1:
        return None
    return Maker("threads", 1), f"{used}: they take turns at the interpreter"


def _thread_during_training(stages: Stages) -> tuple[Maker, str] | None:
    """Return (a thread instead of the caller, why) if the training works; else None."""
    busy = 1 - stages.wait_share
    if busy <= 2 * IDLE_WORK_SHARE:
        return None
    why = f"the training works for {busy:.0%} of its time, and a thread makes batches meanwhile"
    return Maker("threads", 1), why


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
        self._thread = threading.Thread(target=self._run, name="penstock-lock-probe", daemon=True)
        self._thread.start()

    def drain(self) -> float:
        """Return the share of late requests and reset the counts.

        With fewer than MIN_REQUESTS, return the previous share (0.0 at first) and keep counting.
        """
        if self._requests >= MIN_REQUESTS:
            self._share = self._late / self._requests
            self._requests = 0
            self._late = 0
        return self._share

    def dismiss(self) -> None:
        if os.getpid() == self._pid:
            with suppress(RuntimeError):  # already dismissed
                self._running.release()

    def join(self, timeout_s: float | None = None) -> None:
        self._thread.join(timeout_s)

    def _run(self) -> None:
        late_after_s = sys.getswitchinterval() / 5
        delays = RunDelay()
        delayed_s = delays.seconds()
        start_s = perf_counter()
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
        self._before: _Costs | None = None
        self._since_s = 0.0  # of training, since the last measurement
        self._computed_s = 0.0  # of its thread's CPU, since the last measurement
        self._next_s = 0.0
        self._n_measurements = 0
        self._probed = probed
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
        self._since_s += waited_s + busy_s
        self._computed_s += computed_s
        return self._since_s >= self._next_s

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
        before = self._before
        now = _Costs(metrics, made_cpu_s, process_cpu_s, delay_s)
        computed_s = self._computed_s
        self._before = now
        self._since_s = 0.0
        self._computed_s = 0.0
        self._next_s = FIRST_MEASUREMENT_S if before is None else MEASUREMENT_S
        self._n_measurements += 1
        if self._n_measurements > PROBED_MEASUREMENTS:
            self.end_probe()
        if before is None:  # the first batch waited for imports and indexes, unlike later ones
            self._begin_probe()
            return None
        return Measurement(locked, _stages(before, now, computed_s))

    def _begin_probe(self) -> None:
        if self._probed:
            self._probe = LockProbe()
        # end_probe, in another thread, may have run since the first test.
        if not self._probed and self._probe is not None:
            self._probe.dismiss()

    def end_probe(self, *, wait: bool = False) -> None:
        self._probed = False
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
    """Return the share of decoding and transforming in the work on batches since the start."""
    return _share(stage_seconds(metrics), "decode", "transform")


def _share(spent_s: Mapping[str, float], *stages: str) -> float:
    of_stages = sum(spent_s[stage] for stage in stages)
    of_all = sum(spent_s[stage] for stage in MAKING)
    return of_stages / max(of_all, 1e-9)
