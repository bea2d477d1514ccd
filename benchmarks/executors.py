"""`python -m benchmarks.executors`: batches per second for a training that idles, computes in Python, or sleeps.

Each run is a process of its own, and they take turns: threads, worker processes, the training's own thread, `auto`. The
training's Python is a fixed amount of work, which alone takes so many ms per step: 1000 / ms batches/s is the most
there can be beside it. A training that sleeps lets go of the interpreter's lock, as one that waits for a GPU does. The
table goes to docs/benchmarks.md.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import loader

from . import sections
from .contest import ROOT
from .data import make
from .page import shown
from .peers.penstock import FIELDS, prepare
from .throughput import say

WARM_S, TURN_S = 4.0, 3.0
"""Before the clock starts, `auto` has made its choice: it has 2 s for that."""
IDLE, PYTHON, SLEEP = "idle", "13 ms of Python", "13 ms asleep"
STEP_MS = {IDLE: 0, PYTHON: 13, SLEEP: 13}
WORK = {
    "decoded": ("images", 64, 6_000, (IDLE, PYTHON, SLEEP)),
    "raw bytes": ("images", 64, 6_000, (IDLE, PYTHON)),
    "latents": ("latents", 64, 6_000, (IDLE, PYTHON, SLEEP)),
    "tokens": ("tokens", 32, 20_000, (IDLE, PYTHON, SLEEP)),
}
"""What is made of which samples: their kind, the batch, how many there are, what the training does in a step."""
EXECUTORS: dict[str, dict[str, Any]] = {
    "the training's thread": {"workers": 0},
    "1 thread": {"executor": "threads", "workers": 1},
    "2 threads": {"executor": "threads", "workers": 2},
    "1 process": {"executor": "processes", "workers": 1},
    "a process per core": {"executor": "processes"},
    "auto": {},
}


RUNS = [(work, step, name) for work, (*_, steps) in WORK.items() for step in steps for name in EXECUTORS]


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m benchmarks.executors", description=__doc__)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--note", default="", help="a sentence for the page's head, about the machine")
    options.add_argument("--out", type=Path, help="write here, not to docs/benchmarks.md")
    options.add_argument("--one", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.one:
        print(json.dumps(measured(**json.loads(given.one))))
        return 0
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for kind, n in {(kind, n) for kind, _, n, _ in WORK.values()}:
            prepare(make(kind, Path(temporary, kind), n), Path(temporary, f"{kind}-root"))
        for number in range(given.rounds):
            for work, step, name in RUNS:
                ran = run(work=work, step=step, name=name, folder=temporary)
                found.setdefault((work, step, name), []).append(ran)
                say(f"round {number}: {work}, {step}, {name}: {ran['rate']:.1f}/s, {ran['ended']}")
    sections.write("benchmarks.executors", page(found, given.rounds, given.note), given.out)
    return 0


def run(**how: Any) -> dict[str, Any]:
    """`measured`, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.executors", "--one", json.dumps(how)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def measured(work: str, step: str, name: str, folder: str) -> dict[str, Any]:
    """rate: batches/s of one training; ended: what `auto` came to, and after how many seconds."""
    kind, batch, _, _ = WORK[work]
    fields, train = FIELDS[kind], _training(step)
    view = loader.Root(f"{folder}/{kind}-root").open("bench@latest").select(*fields)
    plan = loader.plan({"bench": view}, seed=1, global_batch=batch, allow_repeats=True)
    with loader.Loader(
        plan, 0, 1, framework="numpy", decode=work != "raw bytes", **EXECUTORS[name]
    ) as batches:
        begun, maker, chosen_s = time.perf_counter(), (batches.executor, batches.workers), 0.0
        while (since := time.perf_counter() - begun) < WARM_S:
            next(batches)
            train()
            if (now := (batches.executor, batches.workers)) != maker:
                maker, chosen_s = now, since
        taken, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < TURN_S:
            next(batches)
            train()
            taken += 1
        ended = f"{batches.workers} {batches.executor}" if batches.workers else batches.executor
        return {"rate": taken / spent, "ended": f"{ended}, {chosen_s:.1f} s"}


def _training(step: str) -> Callable[[], object]:
    if step == PYTHON:
        return partial(_compute, _loops(STEP_MS[step]))
    return partial(time.sleep, STEP_MS[step] / 1000) if step == SLEEP else lambda: None


def _compute(loops: int) -> int:
    """Work that holds the interpreter's lock."""
    total = 0
    for number in range(loops):
        total += number & 7
    return total


def _loops(busy_ms: int) -> int:
    """As much work as takes so long when nothing else runs."""
    n = 100_000
    took = []
    for _ in range(20):
        start = time.perf_counter()
        _compute(n)
        took.append(time.perf_counter() - start)
    return int(n * busy_ms / 1000 / min(took))


def page(found: dict[tuple[str, str, str], list[dict[str, Any]]], rounds: int, note: str) -> str:
    """The document."""
    lines = [
        "# Threads, processes and a busy training",
        "",
        f"Made by `python -m benchmarks.executors --rounds {rounds}` on {platform.machine()}, Python "
        f"{platform.python_version()}, {os.cpu_count()} cores. {note}",
        "",
        "A training idles, computes in Python, or sleeps, with batches of 64 JPEGs or latents, or 32 rows of tokens.",
        "",
        "| batches of | training | auto chose | times the best fixed choice |",
        "| --- | --- | --- | --- |",
    ]
    for work, (*_, steps) in WORK.items():
        for at, step in enumerate(steps):
            rates = {name: [one["rate"] for one in found[work, step, name]] for name in EXECUTORS}
            auto = rates.pop("auto")
            best = max(rates, key=lambda name: statistics.median(rates[name]))
            chosen = statistics.mode(
                one["ended"].partition(",")[0].split()[-1] for one in found[work, step, "auto"]
            )
            of_best = [ours / max(others) for ours, *others in zip(auto, *rates.values(), strict=True)]
            lines.append(f"|{'' if at else f' {work}'} | {step} | {chosen} | {shown(of_best)}, {best} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    raise SystemExit(main())
