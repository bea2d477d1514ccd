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

FEW = 2
"""Number of cores or processes up to which threads decode as fast as processes; 3 processes beat 4 threads."""
DECODING_THREADS, COPYING_THREADS = 4, 2
"""Most threads that speed each other up: while decoding, and while copying."""
COPYING_PROCESSES = 2
"""Most worker processes for copies: what they save the training is its own wait for the lock."""
WAITS = 0.1
"""Share of its time that training waits, above which faster batches pay off."""
WORK = 0.5
"""Share of the work on batches above which a stage dominates it."""
LOAD = 0.25
"""Cores busy with batches, above which threads compete with training for the lock."""
COMPUTES = 0.1
"""Share of its time that training computes, above which decoding threads cost it the lock."""
LOCKED = 0.25
"""Share of the time that training holds the lock for long, above which threads starve."""
IDLE = 0.1
"""Share of its time that training works, below which it is idle; above twice that it is busy."""
HELD = 0.5
"""Share of the time that decoders hold the lock for long, above which a second thread gains nothing."""
ONE_CORE = 0.7, 1.25
"""Range of cores used by threads that take turns at the lock; with fewer they wait for something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    waits: float
    """Share of training's time spent waiting for batches."""
    computes: float
    """Share of training's time in which its thread used a core."""
    decodes: float
    """Share of decoding and transforming in the work on batches."""
    fetches: float
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


def first_threads(cores: int, *, local: bool, copies: bool = False) -> int:
    """Return the number of threads to begin with. copies: True if nothing is decoded or transformed."""
    if not local:
        return cores
    return min(cores, COPYING_THREADS if copies else DECODING_THREADS)


def choice(locked: float, room: Room, stages: Stages, now: Maker) -> tuple[Maker, str] | None:
    """Return (a better maker than `now`, why); None if `now` is as good as any.

    locked: share of time in which a thread waits long for the interpreter's lock.
    """
    if room.processes and now.name != "processes" and (why := _why_processes(locked, room, stages, now)):
        most = room.processes if stages.decodes >= WORK else COPYING_PROCESSES
        return Maker("processes", min(room.processes, most)), why
    if now.name == "processes" or not room.threads:
        return None
    if now.name == "caller":
        return _beside_a_training(stages)
    return _fewer_threads(room, stages, now.workers)


def _why_processes(locked: float, room: Room, stages: Stages, now: Maker) -> str | None:
    waits, decodes = stages.waits >= WAITS, stages.decodes >= WORK
    if stages.fetches >= WORK and not room.local:
        return None
    enough = room.processes > FEW or stages.waits <= 1 - IDLE
    if decodes and room.cores > FEW and enough and (waits or stages.load >= LOAD):
        return (
            f"decoders and transforms take {stages.decodes:.0%} of the work on batches, which keeps {stages.load:.2g} "
            f"of {room.cores} cores busy, and the training waited for {stages.waits:.0%} of its time"
        )
    are_several = min(now.workers, room.processes, room.cores) > 1
    if decodes and waits and are_several and _decoders_take_turns(locked, stages):
        return (
            f"decoders and transforms take {stages.decodes:.0%} of the work on batches and hold the lock: "
            f"{now.workers} threads used {stages.cores:.2g} cores, and the training waited for {stages.waits:.0%}"
        )
    # (other programs may leave less than a core)
    idle_share = min(1.0, stages.cores)
    loaded = decodes and stages.load >= LOAD * idle_share
    if not waits and not loaded:
        return None
    if decodes and stages.computes >= COMPUTES * idle_share:
        return (
            f"the training waited for {stages.waits:.0%} of its time and computed for {stages.computes:.0%}, in which "
            "threads that decode take the interpreter's lock from it, and it from them"
        )
    # While training waits it does not hold the lock: late threads have lost their core.
    if min(locked, 1 - stages.waits) < LOCKED:
        return None
    return (
        f"the training held the interpreter's lock for {locked:.0%} of the time, in which threads wait for it, and "
        f"waited for batches for {stages.waits:.0%}"
    )


def _decoders_take_turns(locked: float, stages: Stages) -> bool:
    """Return whether all threads together use one core, because decoders hold the interpreter's lock."""
    low, high = ONE_CORE
    if low <= stages.used < high:
        return True
    # On a busy machine, threads that wait for the lock also wait for a core. Only the probe separates the two.
    by_training = 1 - stages.waits
    return stages.cores < high and locked - by_training >= HELD


def _fewer_threads(room: Room, stages: Stages, threads: int) -> tuple[Maker, str] | None:
    decodes = stages.decodes >= WORK
    most = DECODING_THREADS if decodes else COPYING_THREADS
    low, high = ONE_CORE
    if threads > most and (decodes or (room.local and stages.cores >= low)):
        work = "decode" if decodes else "copy"
        return Maker(
            "threads", most
        ), f"more than {most} threads that {work} samples take the lock from each other"
    if decodes or not room.local or stages.waits < WAITS:
        return None
    if stages.used < low and room.more_threads and stages.fetches >= WORK and threads < DECODING_THREADS:
        more = min(room.cores, DECODING_THREADS)
        return Maker("threads", more), (
            f"{threads} thread{'s' * (threads > 1)} and the training used {stages.used:.2g} cores: they wait for a disk"
        )
    if not low <= stages.cores < high:
        return None
    why = f"{threads} thread{'s' * (threads > 1)} and the training used {stages.cores:.2g} cores"
    if room.caller and stages.waits > 1 - IDLE:
        idle = f"the training waited for {stages.waits:.0%} of its time: its own thread is faster without it"
        return Maker("caller", 0), f"{why}, and {idle}"
    return (Maker("threads", 1), f"{why}: they take turns at the interpreter") if threads > 1 else None


def _beside_a_training(stages: Stages) -> tuple[Maker, str] | None:
    busy = 1 - stages.waits
    why = f"the training works for {busy:.0%} of its time, beside which a thread can"
    return (Maker("threads", 1), why) if busy > 2 * IDLE else None


FIRST_LOOK_S, LOOK_S = 0.3, 0.5
"""Seconds of training before the first measurement, and between later ones."""
PROBED_LOOKS = 30
"""Number of measurements after which a run is steady, and the probe ends."""
PROBE_S = 0.08
"""Seconds between requests for the lock. One takes 70 us: less than 0.1 %."""
LEAST_ASKED = 8
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
        # (held until the end; an Event would cost several Python calls per request)
        self._running, self._pid = threading.Lock(), os.getpid()
        self._running.acquire()
        self._asked = self._late = 0
        self._share = 0.0
        ends_with_the_process(self)
        self._thread = threading.Thread(target=self._run, name="penstock-lock-probe", daemon=True)
        self._thread.start()

    def drain(self) -> float:
        """Return the share of late requests since the last call that had LEAST_ASKED of them; 0.0 before."""
        if self._asked >= LEAST_ASKED:
            self._share, self._asked, self._late = self._late / self._asked, 0, 0
        return self._share

    def dismiss(self) -> None:
        if os.getpid() == self._pid:
            with suppress(RuntimeError):  # already dismissed
                self._running.release()

    def join(self, timeout_s: float | None = None) -> None:
        self._thread.join(timeout_s)

    def _run(self) -> None:
        bound_s, delays = sys.getswitchinterval() / 5, RunDelay()
        delayed_s, start = delays.seconds(), perf_counter()
        while not self._running.acquire(timeout=PROBE_S):
            late_s, before_s = perf_counter() - start - PROBE_S, delayed_s
            delayed_s = delays.seconds()
            self._late += late_s - (delayed_s - before_s) >= bound_s
            self._asked += 1
            start = perf_counter()
        delays.close()


class Contention:
    """Measures a loader at intervals. For the consumer's thread, except `end_probe`."""

    def __init__(self, *, probed: bool) -> None:
        self._before: tuple[Mapping[str, float], float, float, float] | None = None
        self._since_s, self._computed_s, self._next_s, self._looks = 0.0, 0.0, 0.0, 0
        self._probed = probed
        self._probe: LockProbe | None = None

    def saw(self, waited_s: float, busy_s: float, computed_s: float) -> bool:
        """Add a step in which the training waited and worked. Return whether to measure now.

        computed_s: CPU seconds of the training's thread.
        """
        self._since_s += waited_s + busy_s
        self._computed_s += computed_s
        return self._since_s >= self._next_s

    def measure(
        self, metrics: Mapping[str, float], made_cpu_s: float, process_cpu_s: float, delay_s: float = 0.0
    ) -> Measurement | None:
        """Return the measured interval since the previous call; None on the first call.

        made_cpu_s: CPU seconds spent on the delivered batches; process_cpu_s: on the whole process. delay_s: seconds
        that its threads waited for a core.
        """
        locked = self._probe.drain() if self._probe is not None else 0.0
        before, self._before = self._before, (metrics, made_cpu_s, process_cpu_s, delay_s)
        computed_s, self._since_s, self._computed_s, self._looks = self._computed_s, 0.0, 0.0, self._looks + 1
        self._next_s = FIRST_LOOK_S if before is None else LOOK_S
        if self._looks > PROBED_LOOKS:
            self.end_probe()
        if before is None:  # the first batch waited for imports and indexes, unlike later ones
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
            # (a thread that has ended takes its seconds with it)
            delayed=max(0.0, delay_s - before[3]) / elapsed,
        )
        return Measurement(locked, stages)

    def _begin_probe(self) -> None:
        if self._probed:
            self._probe = LockProbe()
        if not self._probed and self._probe is not None:  # closed meanwhile by another thread
            self._probe.dismiss()

    def end_probe(self, *, wait: bool = False) -> None:
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
    return sum(spent[stage] for stage in stages) / max(sum(spent[stage] for stage in MAKING), 1e-9)
