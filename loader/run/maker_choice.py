"""Let `auto` choose among threads, worker processes and the training's own thread, from a measured interval of the run.

Decoders hold the interpreter's lock for a tenth of their time, so a few threads keep it busy. If samples are only
copied, a third thread costs more than it gains. "The lock" below is always the interpreter's.
"""

from dataclasses import dataclass
from typing import NamedTuple

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
    """Shares of time and used cores in an interval of the run."""

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
    """Number of worker processes that may be started; 0 if none may."""
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
        return cores  # threads that wait for a store leave the lock to each other
    if copies:
        most = COPYING_THREADS
    else:
        most = DECODING_THREADS
    return min(cores, most)


def better_maker(
    locked: float,
    room: Room,
    stages: Stages,
    now: Maker,
) -> tuple[Maker, str] | None:
    """Return (a better maker than `now`, why); None if `now` is as good as any.

    locked: share of time in which a thread waits long for the interpreter's lock.
    """
    if now.name == "processes":
        return None  # they share no lock with the training
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
    waits_for_a_store = stages.fetch_share >= DOMINANT_SHARE and not room.local
    if waits_for_a_store:
        return None  # which is no faster for processes
    is_waiting = stages.wait_share >= MIN_WAIT_SHARE
    is_decoding = stages.decode_share >= DOMINANT_SHARE

    # 1. Decoding could use more cores than threads that share the lock.
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

    # 2. Decoders hold the lock, so that several threads are no faster than one. As many processes, each on a core of
    # its own, could replace them.
    has_several_threads = min(now.workers, room.processes, room.cores) > 1
    waits_for_decoders = is_decoding and is_waiting
    if waits_for_decoders and has_several_threads and _decoders_take_turns(locked, stages):
        return (
            f"decoders and transforms take {stages.decode_share:.0%} of the work on batches and hold the lock: "
            f"{now.workers} threads used {stages.cores:.2g} cores, and the training waited for {stages.wait_share:.0%}"
        )

    # Both reasons below need batches that cost the training time. Their limits are shares of one core, or of what
    # other programs leave of it.
    available_core = min(1.0, stages.cores)
    is_decoding_much = is_decoding and stages.load >= MIN_LOAD_CORES * available_core
    if not is_waiting and not is_decoding_much:
        return None

    # 3. The training computes in Python, and takes the lock from decoding threads as they take it from the training.
    if is_decoding and stages.compute_share >= MIN_COMPUTE_SHARE * available_core:
        return (
            f"the training waited for {stages.wait_share:.0%} of its time and computed for "
            f"{stages.compute_share:.0%}, in which threads that decode take the interpreter's lock from it, "
            "and it from them"
        )

    # 4. The training holds the lock for long, whatever the threads do.
    # While the training waits it holds no lock. The probe's thread is late then for want of a core, not of the lock.
    locked_by_training = min(locked, 1 - stages.wait_share)
    if locked_by_training < MIN_TRAINING_LOCK_SHARE:
        return None
    return (
        f"the training held the interpreter's lock for {locked_by_training:.0%} of the time, in which threads wait for "
        f"it, and waited for batches for {stages.wait_share:.0%}"
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
    """Return (fewer threads, more for a disk, or the caller; why); None keeps the present threads."""
    low, high = ONE_CORE
    is_decoding = stages.decode_share >= DOMINANT_SHARE

    # Too many threads take the lock from each other. Those that copy from a bucket wait for it, and do not compete.
    most = COPYING_THREADS
    work = "copy"
    if is_decoding:
        most = DECODING_THREADS
        work = "decode"
    compete = is_decoding or (room.local and stages.cores >= low)
    if threads > most and compete:
        why = f"more than {most} threads that {work} samples take the lock from each other"
        return Maker("threads", most), why

    # The rest is about copies from this machine's disks that do not keep up with the training.
    copies_from_disk = room.local and not is_decoding
    is_waiting = stages.wait_share >= MIN_WAIT_SHARE
    if not copies_from_disk or not is_waiting:
        return None

    # Less than a core in use: the threads wait for the disk, and more of them wait at the same time.
    # `used`, not `cores`: a thread that waits because other programs have the cores waits for no disk.
    plural = ""
    if threads > 1:
        plural = "s"
    waits_for_a_disk = room.more_threads and stages.used < low and stages.fetch_share >= DOMINANT_SHARE
    if waits_for_a_disk and threads < DECODING_THREADS:
        why = f"{threads} thread{plural} and the training used {stages.used:.2g} cores: they wait for a disk"
        return Maker("threads", min(room.cores, DECODING_THREADS)), why

    # One core in use by all together: they take turns at the lock, so fewer of them lose less time to it.
    # `cores`, not `used`: on a busy machine, threads that wait for the lock wait for a core too.
    take_turns = low <= stages.cores < high
    if not take_turns:
        return None
    used = f"{threads} thread{plural} and the training used {stages.cores:.2g} cores"
    is_training_idle = stages.wait_share > 1 - IDLE_WORK_SHARE
    if room.caller and is_training_idle:
        idle = f"the training waited for {stages.wait_share:.0%} of its time: its own thread is faster without it"
        return Maker("caller", 0), f"{used}, and {idle}"
    if threads <= 1:
        return None
    return Maker("threads", 1), f"{used}: they take turns at the interpreter"


def _thread_during_training(stages: Stages) -> tuple[Maker, str] | None:
    """Return (a thread instead of the caller, why) if the training works; else None."""
    busy = 1 - stages.wait_share
    # The caller was chosen below IDLE_WORK_SHARE. Between that and twice as much it stays.
    if busy <= 2 * IDLE_WORK_SHARE:
        return None
    why = f"the training works for {busy:.0%} of its time, and a thread makes batches meanwhile"
    return Maker("threads", 1), why
