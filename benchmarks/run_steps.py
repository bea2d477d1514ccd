"""`python -m benchmarks.run_steps`: what `run.steps` costs a training of many ranks.

Eight ranks with gloo take steps of 50 ms: a sleep, then an all-reduce that each rank waits for, as for gradients. In
each round all ranks take the same steps over the loader's batches, and over `run.steps` with a record and a window
every five seconds, twelve times as many as usual. The table goes to docs/benchmarks.md.
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

RANKS, STEPS, STEP_S, WINDOW_S = 8, 100, 0.05, 5.0
GOAL = 0.01
BARE, RUN = "the loader's batches", "`run.steps`"


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m benchmarks.run_steps", description=__doc__)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--ranks", type=int, default=RANKS)
    options.add_argument("--steps", type=int, default=STEPS, help="a round and way")
    options.add_argument("--note", default="", help="a sentence for the section's head, about the machine")
    options.add_argument("--out", type=Path, help="write here, not to docs/benchmarks.md")
    options.add_argument("--folder", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.folder:
        as_rank(given.folder, given.rounds, given.steps)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        write_points(folder, given.steps)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        common |= {"WORLD_SIZE": str(given.ranks), "PENSTOCK_RUN": "run-steps", "PENSTOCK_RECORD": folder}
        command = [sys.executable, "-m", "benchmarks.run_steps", "--folder", folder]
        command += ["--rounds", str(given.rounds), "--steps", str(given.steps)]
        numbers = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(given.ranks)]
        ranks = [subprocess.Popen(command, cwd=ROOT, env=common | own) for own in numbers]
        codes = [rank.wait() for rank in ranks]
        if any(codes):
            return 1
        turns = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(given.ranks)]
    page = page_of(turns, given)
    sections.write("benchmarks.run_steps", page, given.out)
    print(page)
    return 0


def write_points(folder: str, steps: int) -> None:
    import loader

    with loader.Root(folder) as root, root.write("points") as writer:
        for number in range(RANKS * steps):
            writer.add(f"{number:05d}", {"cls": number})


def as_rank(folder: str, rounds: int, steps: int) -> None:
    """Take one rank's turns; what they cost goes to `folder`."""
    import torch
    from torch import distributed

    import loader
    from penstock.train import Run, windows

    windows.EVERY_S = WINDOW_S
    turns: dict[str, list[tuple[float, float]]] = {BARE: [], RUN: []}
    with Run.joined() as run:
        size = run.world.world_size
        plan = run.first(
            lambda: loader.plan({"points": loader.Root(folder).open("points@1")}, seed=7, global_batch=size)
        )
        for number in range(rounds + 1):
            for way in (BARE, RUN) if number % 2 else (RUN, BARE):
                with loader.Loader(plan, run.world, workers=1, steps=steps) as batches:
                    next(batches)
                    distributed.barrier()
                    begun_s, cpu_s = time.perf_counter(), time.process_time()
                    for _ in run.steps(batches) if way == RUN else batches:
                        time.sleep(STEP_S)
                        distributed.all_reduce(torch.zeros(1))
                    turn = time.perf_counter() - begun_s, time.process_time() - cpu_s
                    if number:  # the first round is for caches
                        turns[way].append(turn)
    Path(folder, f"{run.world.rank}.json").write_text(json.dumps(turns))


def page_of(turns: list[dict[str, Any]], given: argparse.Namespace) -> str:
    n_steps = given.steps - 1
    rows, seconds = [], {}
    for way in (BARE, RUN):
        seconds[way] = [max(rank[way][number][0] for rank in turns) for number in range(given.rounds)]
        cpu_s = [
            statistics.mean(rank[way][number][1] for rank in turns) / n_steps
            for number in range(given.rounds)
        ]
        step_ms = 1e3 * statistics.median(seconds[way]) / n_steps
        rows.append(f"| {way} | {step_ms:.2f} ms | {1e3 * statistics.median(cpu_s):.2f} ms |")
    more = [ours / bare - 1 for ours, bare in zip(seconds[RUN], seconds[BARE], strict=True)]
    cost = statistics.median(more)
    verdict = "reached" if cost <= GOAL else "missed"
    machine = f"{platform.machine()}, Python {platform.python_version()}, {os.cpu_count()} cores"
    return "\n".join(
        [
            "# Cost of a run's steps",
            "",
            f"{given.ranks} ranks with gloo, steps of {1e3 * STEP_S:.0f} ms, {given.rounds} rounds of {n_steps} steps "
            f"by turns; {machine}. {given.note}".rstrip(),
            "",
            "| a step over | time, of the slowest rank | processor time of a rank |",
            "| --- | --- | --- |",
            *rows,
            "",
            f"`run.steps` costs {100 * cost:.2f} % of a step (rounds: {100 * min(more):.2f} to "
            f"{100 * max(more):.2f} %); the goal of {100 * GOAL:.0f} % is {verdict}.",
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
