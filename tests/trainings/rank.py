"""A rank of the training that is disturbed. Arguments: folder for its lines, seconds of a step, steps per checkpoint.

Each step is a line in a file of this process, so that no output of a killed node is lost: rank, ranks, step, digest,
state, time. SIGUSR2 makes it pass the memory that Slurm grants.
"""

import mmap
import os
import signal
import sys
import time
from pathlib import Path

import torch

import loader
from penstock.checkpoints import Checkpoints
from penstock.train import Run, intervals, stop

WINDOW_BYTES = 64 * 2**20
WINDOWS = 80
"""So many windows on the same pages count as 5 GiB, more than a node's ranks have, and take 64 MiB."""


def pass_the_memory_limit(_signal: int, _frame: object) -> None:
    """Map the same pages again and again, until Slurm's accounting sees too many."""
    pages = os.memfd_create("pages")
    os.ftruncate(pages, WINDOW_BYTES)
    flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
    mapped.extend(mmap.mmap(pages, WINDOW_BYTES, flags=flags) for _ in range(WINDOWS))


mapped = list[mmap.mmap]()
signal.signal(signal.SIGUSR2, pass_the_memory_limit)
URL = os.environ["PENSTOCK_RECORD"]
folder, step_s, save_every = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
stop.LOOK_S, intervals.EVERY_S = 1.0, 5.0
start = f"{os.environ['SLURM_JOB_ID']}-{os.environ.get('SLURM_RESTART_COUNT', '0')}-{os.environ['PENSTOCK_ATTEMPT']}"

with Run.joined() as run:
    plan = run.first(
        lambda: loader.plan({"points": loader.Root(URL).open("points@1")}, seed=7, global_batch=24)
    )
    state = {"weight": torch.zeros(1, dtype=torch.int64)}
    facts = f"{run.world.rank} {run.world.world_size}"
    with (
        (folder / f"{start}-{run.world.rank}").open("a", buffering=1) as lines,
        loader.Loader(plan, run.world, trail=run.trail(), workers=1, cache=0) as batches,
        Checkpoints(run.checkpoints, run.name, keep_last=3) as saved,
    ):
        for batch in run.steps(batches, saved, state, save_every=save_every):
            state["weight"] += batch.step
            lines.write(
                f"{facts} {batch.step} {batch.digest} {int(state['weight'])} {time.time_ns() // 1000}\n"
            )
            time.sleep(step_s)
