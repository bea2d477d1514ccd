"""Counts of a loader at work: Python calls, page faults and system calls per batch, in a process of its own.

    python tests/run/counts.py '{"root": ..., "workload": "tokens", "executor": "caller"}'      one line of JSON

Page faults and reads are counted in a first pass, and calls under a profiler in a second one. System calls are counted
in a process under strace.
"""

import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.servers.patience import PATIENCE_S

WORKERS = Path(__file__).parent / "in_workers"
MARK = "/penstock-counts-"
"""A name that is looked up where a count of system calls begins and ends: it shows in the log of strace."""
TRACED = 96
"""Batches that are counted under strace, at most: it stops the process twice at each call."""
STEPS_TOGETHER_S = 60
"""Seconds of work that steps may take that are made together, in place of the loader's: a busy machine makes fewer."""
SPANS = 3
"""Spans of batches whose faults and reads are counted; the least counts: on a busy machine threads get further ahead
of one another, once, and their batches need new memory."""
PR_SET_THP_DISABLE = 41
"""Of prctl: each page of memory is a fault of its own, as where the kernel has no huge ones."""
PHOTO_PX = 96


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Samples of one kind, and what of the Loader's arguments they are read with.

    Small steps are made together, up to 64. So many `batches` are counted, after as many that warm, that those ahead
    at either end matter little; `prefetch=0` makes every step by itself.
    """

    field: str
    size: int
    """Samples of the data set."""
    batch: int
    batches: int
    arguments: dict[str, object] = field(default_factory=dict)


WORKLOADS = {
    "photos": Workload(field="jpg", size=512, batch=32, batches=24, arguments={"prefetch": 0}),
    "own decoder": Workload(
        field="jpg", size=512, batch=32, batches=24, arguments={"prefetch": 0, "decode": "draw_nothing"}
    ),
    "tokens": Workload(field="tokens.npy", size=4096, batch=32, batches=512),
    "latents": Workload(field="latent.npy", size=512, batch=64, batches=96),
    "raw": Workload(field="jpg", size=4096, batch=64, batches=512, arguments={"decode": False}),
}
"""`decode` by name is a function of in_workers/worker_transforms.py."""
EXECUTORS = {
    "caller": {"executor": "threads", "workers": 0},
    "threads": {"executor": "threads", "workers": 2},
    "processes": {"executor": "processes", "workers": 2},
}


@dataclass(frozen=True, kw_only=True)
class Counts:
    """The cost of one batch, on average. "Own" is the training's process, or its thread."""

    calls: float
    """Calls of Python functions in all threads of the own process."""
    c_calls: float
    """Calls of C functions by Python there."""
    own_calls: float
    """Calls of Python functions in the own thread."""
    faults: float
    """Page faults, minor and major, of the own process."""
    worker_faults: float
    """Page faults of its worker processes."""
    reads: float
    """System calls of the own process that read or write."""


def write(folder):
    """Write the data sets of all workloads below a folder, which is returned."""
    import simplejpeg

    import loader

    rng = np.random.default_rng(0)
    light = (rng.random((PHOTO_PX // 8, PHOTO_PX // 8, 3)) * 255).astype(np.uint8).repeat(8, 0).repeat(8, 1)

    def photo(i):
        light[:8, :8] = rng.integers(0, 256, 3, np.uint8)
        return simplejpeg.encode_jpeg(light, quality=90)

    values = {
        "jpg": photo,
        "tokens.npy": lambda i: rng.integers(0, 50257, 2048).astype(np.uint16),
        "latent.npy": lambda i: rng.standard_normal((4, 64, 64), np.float32).astype(np.float16),
    }
    with loader.Root(str(folder)) as root:
        root.create()
        for field, value in values.items():
            n = max(one.size for one in WORKLOADS.values() if one.field == field)
            with root.write(field.partition(".")[0]) as writer:
                for i in range(n):
                    writer.add(f"{i:05d}", {field: value(i)})
    return folder


def count(root, workload, executor, times=1, **runtime):
    """Return the `Counts` of a workload ("photos", "tokens", ...) with an executor ("caller", "threads", "processes").

    times: so many times the workload's batches are taken. runtime: more of the Loader's arguments, as JSON can hold
    them.
    """
    asked = {"root": str(root), "workload": workload, "executor": executor, "runtime": runtime}
    return Counts(**_child([], asked | {"times": times}))


def count_system_calls(root, workload, executor, **runtime):
    """Return name -> system calls per batch of the training's process and its workers, by Debian's strace."""
    asked = {"root": str(root), "workload": workload, "executor": executor, "runtime": runtime}
    with tempfile.NamedTemporaryFile() as log:
        strace = ["strace", "-f", "-qq", "-e", "signal=none", "-s", "32", "-o", log.name]
        n = _child(strace, asked | {"traced": True})["batches"]
        return {name: times / n for name, times in times_called(Path(log.name)).items()}


def _child(before, asked):
    done = subprocess.run(
        [*before, sys.executable, __file__, json.dumps(asked)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(WORKERS), *sys.path])},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    if done.returncode:
        raise AssertionError(f"{asked} ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout)


def times_called(log):
    """Return name -> system calls between the two marks of a log of strace."""
    inside, times = False, Counter()
    for line in log.read_text(errors="replace").splitlines():
        if MARK in line:
            inside = f"{MARK}begin" in line
        elif inside and (name := re.match(r"\d+ +(\w+)\(", line)):
            times[name[1]] += 1
    return times


class Calls:
    """Counts calls from `begin` to `end`: in this thread, and in every thread that began since this was made."""

    def __init__(self):
        self._counting = False
        self._of_threads = []
        threading.setprofile(lambda *_: self._count_here())
        self._count_here()

    def begin(self):
        for counts in self._of_threads:
            counts.clear()
        self._counting = True

    def end(self):
        """Return (calls of Python functions in this thread, in all threads; calls of C functions in all threads)."""
        self._counting = False
        threading.setprofile(None)
        sys.setprofile(None)
        threads = self._of_threads
        return threads[0]["call"], sum(one["call"] for one in threads), sum(one["c_call"] for one in threads)

    def _count_here(self):
        counts = Counter()
        self._of_threads.append(counts)

        def profile(frame, event, _):
            if self._counting:
                counts[event] += 1

        sys.setprofile(profile)


def page_faults(pid):
    """Page faults of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[7]) + int(fields[9])


def children():
    """Process ids of this process's children."""
    return [
        int(one)
        for task in Path("/proc/self/task").iterdir()
        for one in (task / "children").read_text().split()
    ]


def reads():
    """System calls of this process so far that read or write."""
    found = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(found["syscr"]) + int(found["syscw"])


def span(workers, work):
    """Return page faults of this process, of its workers, and reads of this process, while it does some work."""
    before = page_faults("self"), sum(map(page_faults, workers)), reads()
    work()
    after = page_faults("self"), sum(map(page_faults, workers)), reads()
    return [b - a for a, b in zip(before, after, strict=True)]


def measure(root, workload, executor, runtime, times=1, traced=False):
    """Return the fields of `Counts`, measured in this process; traced: batches between the marks alone."""
    import worker_transforms

    import loader
    from loader.run.making import prefetch

    ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
    assert prefetch.STRIDE_S < STEPS_TOGETHER_S
    prefetch.STRIDE_S = STEPS_TOGETHER_S
    work = WORKLOADS[workload]
    version = loader.Root(root).open(f"{work.field.partition('.')[0]}@latest")
    plan = loader.plan({"d": version.select(work.field)}, seed=1, global_batch=work.batch)
    arguments = {"framework": "numpy", **work.arguments, **EXECUTORS[executor], **runtime}
    if isinstance(arguments.get("decode"), str):
        arguments["decode"] = {work.field: getattr(worker_transforms, arguments["decode"])}
    n = min(work.batches, TRACED) if traced else times * work.batches
    held = deque(
        maxlen=2
    )  # as a training does that copies one batch to its device while it computes with the other

    def take(batches):
        for _ in range(n):
            held.append(next(batches))

    with loader.Loader(plan, 0, 1, **arguments) as batches:
        take(batches)
        if traced:
            os.path.exists(f"{MARK}begin")
            take(batches)
            os.path.exists(f"{MARK}end")
            return {"batches": n}
        workers = children()
        spans = [span(workers, lambda: take(batches)) for _ in range(SPANS)]
    calls = Calls()
    with loader.Loader(plan, 0, 1, **arguments) as batches:
        take(batches)
        calls.begin()
        take(batches)
        of_calls = calls.end()
    names = ("faults", "worker_faults", "reads", "own_calls", "calls", "c_calls")
    sums = (*map(min, zip(*spans, strict=True)), *of_calls)
    return {name: one / n for name, one in zip(names, sums, strict=True)}


if __name__ == "__main__":
    print(json.dumps(measure(**json.loads(sys.argv[1]))))
