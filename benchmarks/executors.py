"""`python -m benchmarks.executors`: batches per second for a training that idles, or computes in Python.

Each run is a process of its own, and they take turns: threads, worker processes, the training's own thread, `auto`. The
training's Python is a fixed amount of work, which alone takes so many ms per step: 1000 / ms batches/s is the most
there can be beside it. The table goes to docs/benchmarks-executors.md.
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
from pathlib import Path
from typing import Any

import loader

from .contest import ROOT
from .data import make
from .page import shown
from .peers.penstock import FIELDS, prepare
from .throughput import say

PAGE = ROOT / "docs" / "benchmarks-executors.md"
WARM_S, TURN_S = 6.0, 3.0
"""Before the clock starts, `auto` has made up its mind: it looks every 2 s."""
WORK = {
    "decoded": ("images", 64, 6_000, (0, 13, 26)),
    "raw bytes": ("images", 64, 6_000, (0, 13)),
    "latents": ("latents", 64, 6_000, (0, 13)),
    "tokens": ("tokens", 32, 20_000, (0, 13)),
}
"""What is made of which samples: their kind, the batch, how many there are, ms of the training's Python per step."""
EXECUTORS: dict[str, dict[str, Any]] = {
    "the training's thread": {"workers": 0},
    "1 thread": {"executor": "threads", "workers": 1},
    "2 threads": {"executor": "threads", "workers": 2},
    "1 process": {"executor": "processes", "workers": 1},
    "auto": {},
}


RUNS = [(work, ms, name) for work, (*_, busy) in WORK.items() for ms in busy for name in EXECUTORS]


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m benchmarks.executors", description=__doc__)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--note", default="", help="a sentence for the page's head, about the machine")
    options.add_argument("--out", type=Path, default=PAGE)
    options.add_argument("--one", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.one:
        print(json.dumps(measured(**json.loads(given.one))))
        return 0
    found: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for kind, n in {(kind, n) for kind, _, n, _ in WORK.values()}:
            prepare(make(kind, Path(temporary, kind), n), Path(temporary, f"{kind}-root"))
        for number in range(given.rounds):
            for work, busy_ms, name in RUNS:
                ran = run(work=work, busy_ms=busy_ms, name=name, folder=temporary)
                found.setdefault((work, busy_ms, name), []).append(ran)
                say(f"round {number}: {work}, {busy_ms} ms of Python, {name}: {ran['rate']:.1f}/s")
    given.out.write_text(page(found, given.rounds, given.note))
    return 0


def run(**how: Any) -> dict[str, Any]:
    """`measured`, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.executors", "--one", json.dumps(how)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def measured(work: str, busy_ms: int, name: str, folder: str) -> dict[str, Any]:
    """rate: batches/s of one training; ended: what `auto` came to."""
    kind, batch, _, _ = WORK[work]
    fields, loops = FIELDS[kind], _loops(busy_ms) if busy_ms else 0
    view = loader.Root(f"{folder}/{kind}-root").open("bench@latest").select(*fields)
    plan = loader.plan({"bench": view}, seed=1, global_batch=batch, allow_repeats=True)
    with loader.Loader(
        plan, 0, 1, framework="numpy", decode=work != "raw bytes", **EXECUTORS[name]
    ) as batches:
        begun = time.perf_counter()
        while time.perf_counter() - begun < WARM_S:
            next(batches)
            _compute(loops)
        taken, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < TURN_S:
            next(batches)
            _compute(loops)
            taken += 1
        return {"rate": taken / spent, "ended": f"{batches.executor}"}


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


def page(found: dict[tuple[str, int, str], list[dict[str, Any]]], rounds: int, note: str) -> str:
    """The document."""
    lines = [
        "# Threads, processes and a busy training",
        "",
        f"Made by `python -m benchmarks.executors --rounds {rounds}` on {platform.machine()}, Python "
        f"{platform.python_version()}, {os.cpu_count()} cores. {note}",
        "",
        "Batches per second that one training gets: 64 JPEGs of 256 px, decoded or as bytes, 64 latents of 32 KiB, and",
        "32 rows of 2048 tokens. It does nothing with them, or computes in Python for some ms per step. Medians of",
        "rounds, in which all take turns, with their range. `auto` has its choice, and its rate as a part of the best",
        "rate of the others (medians of the ratio within a round).",
        "",
        f"| batches of | the training | {' | '.join(EXECUTORS)} | auto, of the best |",
        "| --- | --- |" + " --- |" * (len(EXECUTORS) + 1),
    ]
    for work, (*_, busy) in WORK.items():
        for ms in busy:
            runs = {name: found[work, ms, name] for name in EXECUTORS}
            rates = {name: [one["rate"] for one in some] for name, some in runs.items()}
            cells = [shown(rates[name], 1) for name in EXECUTORS]
            cells[-1] += f" {statistics.mode(one['ended'] for one in runs['auto'])}"
            others = [rates[name] for name in EXECUTORS if name != "auto"]
            of_best = [mine / max(rest) for mine, *rest in zip(rates["auto"], *others, strict=True)]
            training = f"{ms} ms of Python, at most {1000 / ms:.0f}" if ms else "idle"
            lines.append(f"| {work} | {training} | {' | '.join(cells)} | {shown(of_best, 2)} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    raise SystemExit(main())
