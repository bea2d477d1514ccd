"""`python -m benchmarks.cluster.near_rank SETTINGS`: one rank of a training with near checkpoints. Prints JSON.

A step sleeps, as a training waits for its GPU, and exchanges a number with the other ranks.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import distributed

import loader
from penstock.checkpoints import Checkpoints

RUN = "run"
STEP_S = 0.05
STEPS = 120
EVERY = 20
ROUNDS = 3
"""Turns of steps alone and beside near checkpoints: a step of another process of the machine may be the slowest."""


def main(settings: dict[str, Any]) -> None:
    """Time steps alone, beside near checkpoints, and beside checkpoints in a root."""
    torch.set_num_threads(1)
    rank = settings["rank"]
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{settings['meet']}",
        rank=rank,
        world_size=settings["ranks"],
    )
    near = loader.NodeCache(
        path=settings["folder"],
        limit_bytes=settings["limit_bytes"],
        peers=settings["peers"],
    )
    elements = settings["nbytes"] // 4
    state = {f"rank{rank}": torch.zeros(elements)}
    with Checkpoints(settings["root"], RUN, near=near, near_every=EVERY) as saved:
        saved.save_near(1, state)  # checks the disks
        saved.wait()
        alone = []
        beside_near = []
        beside_hashing = []
        near_copies = []
        for number in range(ROUNDS):
            steps_s, _ = _timed_steps(lambda step: None)
            alone.append(steps_s)
            first = number * STEPS
            steps_s, copies_s = _timed_steps(lambda step, first=first: saved.save_near(first + step, state))
            beside_near.append(steps_s)
            near_copies += copies_s
            saved.wait()
            with _hashing():
                steps_s, _ = _timed_steps(lambda step: None)
            beside_hashing.append(steps_s)
        counts = saved.near_counts()
        assert counts is not None

        def save(step: int) -> None:
            if step % EVERY == 0:
                saved.save(step, state, wait=False)

        steps_s, root_copies = _timed_steps(save)
        beside_root = [steps_s]
    distributed.destroy_process_group()
    figures = {
        "alone": alone,
        "beside_near": beside_near,
        "beside_hashing": beside_hashing,
        "beside_root": beside_root,
        "near_copies": near_copies,
        "root_copies": root_copies,
        "saved": counts.saved,
        "skipped": counts.skipped,
        "failed": counts.failed,
    }
    print(json.dumps(figures), flush=True)


@contextmanager
def _hashing() -> Iterator[None]:
    """Run a program that hashes at a near checkpoint's priority."""
    program = subprocess.Popen([sys.executable, "-m", "benchmarks.cluster.hashing"])
    try:
        yield
    finally:
        program.kill()
        program.wait()


def _timed_steps(save: Callable[[int], object]) -> tuple[list[float], list[float]]:
    """Return the seconds of each step, and of each call of `save` after it that may copy the state."""
    number = torch.zeros(1)
    steps_s: list[float] = []
    copies_s: list[float] = []
    for step in range(1, STEPS + 1):
        begun_s = time.perf_counter()
        time.sleep(STEP_S)
        distributed.all_reduce(number)
        ended_s = time.perf_counter()
        steps_s.append(ended_s - begun_s)
        save(step)
        if step % EVERY == 0:
            distributed.barrier()  # else the next step waits for the slowest copy
            copies_s.append(time.perf_counter() - ended_s)
    return steps_s, copies_s


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
