"""Counts what batches of small samples cost, for tests that start this as a process of its own: prints them as JSON.

    python small_samples.py FOLDER tokens|latents WORKERS       a warm version, per batch
    python small_samples.py FOLDER cold                         the first batch of a version outside the page cache
"""

import json
import os
import resource
import sys
from pathlib import Path

import numpy as np

import loader

BATCH = 32
SHAPES = {"tokens": (4096, 2048), "latents": (512, 8192), "cold": (2048, 8192)}
"""Kind -> samples, and int32 per sample."""
WARM, COUNTED = 300, 128


def write(folder, kind):
    n, width = SHAPES[kind]
    with loader.Root(folder) as root, root.write("d") as writer:
        for i in range(n):
            writer.add(f"{i:05d}", {"x.npy": np.arange(width, dtype=np.int32) * (2 * i + 1)})


def io(name):
    """A count of /proc/self/io. Reading it is a system call too."""
    with open("/proc/self/io") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def warm(folder, kind, workers):
    with loader.Root(folder) as root:
        plan = loader.plan({"d": root.open("d@latest")}, seed=3, global_batch=BATCH, allow_repeats=True)
        with loader.Loader(plan, 0, 1, framework="numpy", workers=workers, executor="threads") as batches:
            for _ in range(WARM):
                next(batches)
            reads, used = io("syscr"), resource.getrusage(resource.RUSAGE_SELF)
            for _ in range(COUNTED):
                next(batches)
            now = resource.getrusage(resource.RUSAGE_SELF)
            return {
                "reads": (io("syscr") - reads) / COUNTED,
                "faults": (now.ru_minflt - used.ru_minflt) / COUNTED,
            }


def cold(folder):
    wanted = BATCH * 4 * SHAPES["cold"][1]
    with loader.Root(folder) as root:
        plan = loader.plan({"d": root.open("d@latest")}, seed=3, global_batch=BATCH)
        with loader.Loader(plan, 0, 1, framework="numpy", workers=0, steps=1) as batches:
            batches.batch_at(20)  # imports, and indexes
            os.sync()
            for path in folder.rglob("*"):
                if path.is_file():
                    descriptor = os.open(path, os.O_RDONLY)
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                    os.close(descriptor)
            before = io("read_bytes")
            next(batches)
            return {"read_of_wanted": (io("read_bytes") - before) / wanted}


if __name__ == "__main__":
    place, kind = Path(sys.argv[1]) / sys.argv[2], sys.argv[2]
    write(place, kind)
    print(json.dumps(cold(place) if kind == "cold" else warm(place, kind, int(sys.argv[3]))))
