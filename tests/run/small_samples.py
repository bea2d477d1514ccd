"""Counts what batches of small samples cost, for tests that start this as a process of its own: prints them as JSON.

python small_samples.py FOLDER tokens|latents|raw EXECUTOR WORKERS  a warm version, per batch
python small_samples.py FOLDER cold                                 the first batch of a version outside the page cache
"""

import ctypes
import json
import os
import resource
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np

import loader

BATCH = 32
SHAPES = {"tokens": (4096, 2048), "latents": (512, 8192), "raw": (512, 8192), "cold": (2048, 8192)}
"""Kind -> samples, and int32 per sample."""
WARM, COUNTED, SPANS = 640, 256, 4
PR_SET_THP_DISABLE = 41


def write(folder, kind):
    n, width = SHAPES[kind]
    with loader.Root(folder) as root, root.write("d") as writer:
        for i in range(n):
            writer.add(f"{i:05d}", {"x.npy": np.arange(width, dtype=np.int32) * (2 * i + 1)})


def forget(folder):
    """Have no file of a folder in the page cache."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def io(name):
    """A count of /proc/self/io. Reading it is a system call too."""
    with open("/proc/self/io") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def faults():
    """Page faults of this process and its children so far."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in children]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt + sum(int(stat[7]) for stat in stats)


def calls(batches):
    """Calls of functions, Python's and C's, in the thread that takes batches."""
    events = []
    sys.setprofile(lambda frame, event, argument: events.append(event))
    for _ in range(COUNTED):
        next(batches)
    sys.setprofile(None)
    return events.count("call") + events.count("c_call")


def warm(folder, kind, executor, workers):
    ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)  # each page is a fault, as on many machines
    with loader.Root(folder) as root:
        plan = loader.plan({"d": root.open("d@latest")}, seed=3, global_batch=BATCH, allow_repeats=True)
        runtime = {"decode": kind != "raw", "framework": "numpy", "executor": executor, "workers": workers}
        with loader.Loader(plan, 0, 1, **runtime) as batches:
            for _ in range(WARM):
                next(batches)
            reads, pages = io("syscr"), [faults()]
            for _ in range(SPANS):
                for _ in range(COUNTED // SPANS):
                    next(batches)
                pages.append(faults())
            reads = io("syscr") - reads
            # A thread's heap may still grow in one span; memory that is taken anew is taken in each.
            least = min(after - before for before, after in pairwise(pages)) * SPANS
            counts = {"reads": reads, "faults": least, "calls": calls(batches)}
            return {name: count / COUNTED for name, count in counts.items()}


def cold(folder):
    wanted = BATCH * 4 * SHAPES["cold"][1]
    with loader.Root(folder) as root:
        plan = loader.plan({"d": root.open("d@latest")}, seed=3, global_batch=BATCH)
        with loader.Loader(plan, 0, 1, framework="numpy", workers=0, steps=1) as batches:
            batches.batch_at(20)  # imports, and indexes
            forget(folder)
            before = io("read_bytes")
            next(batches)
            return {"read_of_wanted": (io("read_bytes") - before) / wanted}


if __name__ == "__main__":
    place, kind = Path(sys.argv[1]) / sys.argv[2], sys.argv[2]
    write(place, kind)
    print(json.dumps(cold(place) if kind == "cold" else warm(place, kind, sys.argv[3], int(sys.argv[4]))))
