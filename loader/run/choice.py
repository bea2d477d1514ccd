"""The choice of `auto`: threads, worker processes, or the training's own thread.

A pure function of what was measured. Decoders hold the interpreter's lock for a tenth of their time, so that a few
threads keep it busy. On 16 cores 4 threads made 4,204 photos/s, 16 threads 2,738, and 16 processes 18,672. If samples
are only copied, a third thread costs more than it brings.
"""

from dataclasses import dataclass
from typing import NamedTuple

FEW = 2
"""Cores, and processes, up to which threads decode as fast, unless the training computes: 3 of them beat 4 threads."""
DECODING_THREADS, COPYING_THREADS = 4, 2
"""Threads at most that gain from each other, where samples are decoded and where they are copied."""
WAITS = 0.1
"""Share of its time that the training waits for batches, from which it would gain by faster ones."""
WORK = 0.5
"""Share of the work on batches from which a stage is what the work consists of."""
LOAD = 0.25
"""Cores that making batches keeps busy, from which their threads cost a training time that it wants the lock in."""
COMPUTES = 0.1
"""Share of its time that the training's thread computes, from which it loses the lock to threads that decode."""
LOCKED = 0.25
"""Share of the time that the training holds the lock for long, from which threads starve beside it."""
IDLE = 0.1
"""Share of the time that the training works, below which there is nothing to do beside it; above twice that there
is."""
ONE_CORE = 0.7, 1.25
"""Cores that a process uses whose threads take turns at the interpreter's lock: one, more or less. With fewer they wait
for something else, a disk or other programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Costs of a stretch of a run."""

    waits: float
    """Share of the training's time in which it waited for batches."""
    computes: float
    """Share of the training's time in which its own thread kept a core busy, in Python or not."""
    decodes: float
    """Share of decoding and transforming in the work on batches."""
    fetches: float
    """Share of reading in the work on batches: of waiting for a remote store, of copying on this machine."""
    load: float
    """Cores that making the batches that were taken kept busy: CPU seconds per second."""
    cores: float
    """Cores that the whole process kept busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Makers that may be chosen."""

    cores: int
    """Cores of this rank's share of the machine."""
    processes: int
    """Worker processes that may be started; 0 for none."""
    threads: bool
    """True allows another number of threads, which the user did not give."""
    local: bool
    """True if all samples lie on this machine. Threads that wait for a store do not wait for each other."""
    caller: bool
    """True allows the training's own thread."""


class Maker(NamedTuple):
    """A maker of batches."""

    name: str
    """"threads", "processes" or "caller"."""
    workers: int
    """Threads or processes; 0 for the caller."""


def first_threads(cores: int, *, local: bool) -> int:
    """Return the number of threads to begin with, before anything is measured."""
    return min(cores, DECODING_THREADS) if local else cores


def choice(locked: float, room: Room, stages: Stages, now: Maker) -> tuple[Maker, str] | None:
    """Return (a better maker than `now`, why); None where `now` is as good as any.

    locked: Share of the time in which a thread that wants the interpreter's lock waits for it for long.
    """
    if room.processes and now.name != "processes" and (why := _why_processes(locked, room, stages)):
        return Maker("processes", room.processes), why
    if now.name == "processes" or not room.threads:
        return None
    if now.name == "caller":
        return _beside_a_training(stages)
    return _fewer_threads(room, stages, now.workers)


def _why_processes(locked: float, room: Room, stages: Stages) -> str | None:
    """Return the reason why processes would be faster than threads; None where they would not."""
    waits, decodes = stages.waits >= WAITS, stages.decodes >= WORK
    if stages.fetches >= WORK and not room.local:
        return None
    enough = room.processes > FEW or stages.waits <= 1 - IDLE
    if decodes and room.cores > FEW and enough and (waits or stages.load >= LOAD):
        return (
            f"decoders and transforms take {stages.decodes:.0%} of the work on batches, which keeps {stages.load:.2g} "
            f"of {room.cores} cores busy, and the training waited for {stages.waits:.0%} of its time"
        )
    # (where other programs leave less than a core, all of it is less)
    idle_share = min(1.0, stages.cores)
    loaded = decodes and stages.load >= LOAD * idle_share
    if not waits and not loaded:
        return None
    if decodes and stages.computes >= COMPUTES * idle_share:
        return (
            f"the training waited for {stages.waits:.0%} of its time and computed for {stages.computes:.0%}, in which "
            "threads that decode take the interpreter's lock from it, and it from them"
        )
    # A training that waits holds no lock: what then looks like it are threads that lost their core.
    if min(locked, 1 - stages.waits) < LOCKED:
        return None
    return (
        f"the training held the interpreter's lock for {locked:.0%} of the time, in which threads wait for it, and "
        f"waited for batches for {stages.waits:.0%}"
    )


def _fewer_threads(room: Room, stages: Stages, threads: int) -> tuple[Maker, str] | None:
    """Return fewer threads, or the caller, if they do as much."""
    decodes = stages.decodes >= WORK
    most = DECODING_THREADS if decodes else COPYING_THREADS
    low, high = ONE_CORE
    if threads > most and (decodes or (room.local and stages.cores >= low)):
        work = "decode" if decodes else "copy"
        return Maker(
            "threads", most
        ), f"more than {most} threads that {work} samples take the lock from each other"
    if decodes or not room.local or stages.waits < WAITS or not low <= stages.cores < high:
        return None
    why = f"{threads} thread{'s' * (threads > 1)} and the training used {stages.cores:.2g} cores"
    if room.caller and stages.waits > 1 - IDLE:
        idle = f"the training waited for {stages.waits:.0%} of its time: its own thread is quicker alone"
        return Maker("caller", 0), f"{why}, and {idle}"
    return (Maker("threads", 1), f"{why}: they take turns at the interpreter") if threads > 1 else None


def _beside_a_training(stages: Stages) -> tuple[Maker, str] | None:
    """Return one thread, if the training works while it could make batches."""
    busy = 1 - stages.waits
    why = f"the training works for {busy:.0%} of its time, beside which a thread can"
    return (Maker("threads", 1), why) if busy > 2 * IDLE else None
