"""`python -m benchmarks.run_steps`: what `run.steps` costs a training of many ranks.

Ranks with gloo take steps of 50 ms: a sleep, then an all-reduce that each rank waits for, as for gradients. In each
round all ranks take the same steps over the loader's batches, over the same with another all-reduce that nobody waits
for at once, and over `run.steps` with a record and an interval every five seconds, twelve times as many as usual. The
table goes to docs/benchmarks.md.
"""

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from . import sections
from .contest import ROOT
from .page import judged

RANKS, STEPS, STEP_S, INTERVAL_S = (2, 8), 100, 0.05, 5.0
GOAL = 0.01
BARE, REDUCE, RUN = WAYS = "ms a step", "with an all-reduce", "with `run.steps`"


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m benchmarks.run_steps", description=__doc__)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    options.add_argument("--steps", type=int, default=STEPS, help="a round and way")
    options.add_argument("--note", default="", help="a sentence for the section's head, about the machine")
    options.add_argument("--out", type=Path, help="write here, not to docs/benchmarks.md")
    options.add_argument("--folder", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.folder:
        as_rank(given.folder, given.rounds, given.steps)
        return 0
    turns = {size: turns_of(size, given.rounds, given.steps) for size in given.ranks}
    page = page_of(turns, given)
    sections.write("benchmarks.run_steps", page, given.out)
    print(page)
    return 0


def turns_of(size: int, rounds: int, steps: int) -> list[dict[str, Any]]:
    """Return the turns of each rank of a training. Raises: CalledProcessError for a rank that fails."""
    with tempfile.TemporaryDirectory() as folder:
        write_points(folder, size * steps)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        common |= {"WORLD_SIZE": str(size), "PENSTOCK_RUN": "run-steps", "PENSTOCK_RECORD": folder}
        command = [sys.executable, "-m", "benchmarks.run_steps", "--folder", folder]
        command += ["--rounds", str(rounds), "--steps", str(steps)]
        numbers = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]
        ranks = [subprocess.Popen(command, cwd=ROOT, env=common | own) for own in numbers]
        for rank in ranks:
            if code := rank.wait():
                raise subprocess.CalledProcessError(code, command)
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(size)]


def write_points(folder: str, samples: int) -> None:
    import loader

    with loader.Root(folder) as root, root.write("points") as writer:
        for number in range(samples):
            writer.add(f"{number:05d}", {"cls": number})


def as_rank(folder: str, rounds: int, steps: int) -> None:
    """Take one rank's turns; what they cost goes to `folder`."""
    import torch
    from torch import distributed

    import loader
    from penstock.train import Run, intervals

    intervals.EVERY_S = INTERVAL_S
    turns: dict[str, list[tuple[float, ...]]] = {way: [] for way in WAYS}
    with Run.joined() as run:
        size = run.world.world_size
        plan = run.first(
            lambda: loader.plan({"points": loader.Root(folder).open("points@1")}, seed=7, global_batch=size)
        )
        for number in range(rounds + 1):
            for way in (*WAYS[number % 3 :], *WAYS[: number % 3]):
                with loader.Loader(plan, run.world, workers=1, steps=steps) as batches:
                    next(batches)
                    distributed.barrier()
                    work, begun_s = None, clocks_s()
                    for _ in run.steps(batches) if way == RUN else batches:
                        time.sleep(STEP_S)
                        distributed.all_reduce(torch.zeros(1))
                        if way == REDUCE:
                            if work is not None:
                                work.wait()
                            work = distributed.all_reduce(torch.zeros(2), async_op=True)
                    turn = [end - begin for end, begin in zip(clocks_s(), begun_s, strict=True)]
                    if number:  # the first round is for caches
                        turns[way].append((*turn,))
    Path(folder, f"{run.world.rank}.json").write_text(json.dumps(turns))


def clocks_s() -> tuple[float, float]:
    """Return time, and processor time of the process."""
    return time.perf_counter(), time.process_time()


def page_of(turns: dict[int, list[dict[str, Any]]], given: argparse.Namespace) -> str:
    n_steps = given.steps - 1
    rows = []
    for size, ranks in turns.items():
        used_s = dict[str, float]()
        slowest_s = {way: [max(turn[0] for turn in each) for each in by_round(ranks, way)] for way in WAYS}
        for way in WAYS:
            of_round = (statistics.mean(turn[1] for turn in each) for each in by_round(ranks, way))
            used_s[way] = statistics.median(of_round) / n_steps
        more = [ours / bare - 1 for ours, bare in zip(slowest_s[RUN], slowest_s[BARE], strict=True)]
        cost = statistics.median(more)
        times = (f"{1e3 * statistics.median(slowest_s[way]) / n_steps:.2f}" for way in WAYS)
        added = f"{100 * cost:.2f} % ({100 * min(more):.2f} to {100 * max(more):.2f})"
        used = 100 * (used_s[RUN] - used_s[BARE]) / STEP_S
        rows.append(f"| {size} | {' | '.join(times)} | {judged(added, cost <= GOAL)} | {used:.2f} % |")
    machine = f"{platform.machine()}, Python {platform.python_version()}, {os.cpu_count()} cores"
    return "\n".join(
        [
            "# Cost of a run's steps",
            "",
            f"Made by `python -m benchmarks.run_steps --rounds {given.rounds}` on {machine}: ranks with gloo, "
            f"{n_steps} steps of {1e3 * STEP_S:.0f} ms by turns. {given.note}".rstrip(),
            "",
            "`run.steps` adds a share of a step of the slowest rank, and one of a rank's processor time. "
            f"The aim: {100 * GOAL:.0f} %.",
            "",
            f"| ranks | {' | '.join(WAYS)} | it adds | processor |",
            "| --- | --- | --- | --- | --- | --- |",
            *rows,
        ]
    )


def by_round(ranks: list[dict[str, Any]], way: str) -> list[tuple[Any, ...]]:
    """Return the turns of all ranks, round by round."""
    return list(zip(*(rank[way] for rank in ranks), strict=True))


if __name__ == "__main__":
    raise SystemExit(main())
