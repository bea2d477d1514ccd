"""`python -m benchmarks.executors`: batches per second for a training that idles, or computes in Python.

Each run is a process of its own, and they take turns: threads, worker processes, the training's own thread, `auto`. The
training's Python is a fixed amount of work, which alone takes BUSY_MS per step: 1000 / BUSY_MS batches/s is the most
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
BUSY_MS, WARM_S, TURN_S = 13.0, 6.0, 3.0
"""Before the clock starts, `auto` has made up its mind: it looks every 2 s."""
WORK = {
    "decoded": ("images", 64, 6_000),
    "raw bytes": ("images", 64, 6_000),
    "tokens": ("tokens", 32, 20_000),
}
"""What is made of which samples: their kind, the batch, how many there are."""
EXECUTORS: dict[str, dict[str, Any]] = {
    "the training's thread": {"workers": 0},
    "1 thread": {"executor": "threads", "workers": 1},
    "2 threads": {"executor": "threads", "workers": 2},
    "1 process": {"executor": "processes", "workers": 1},
    "auto": {},
}


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
    found: dict[tuple[str, bool, str], list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for kind, n in {(kind, n) for kind, _, n in WORK.values()}:
            prepare(make(kind, Path(temporary, kind), n), Path(temporary, f"{kind}-root"))
        for number in range(given.rounds):
            for work in WORK:
                for busy in (False, True):
                    for name in EXECUTORS:
                        ran = run(work=work, busy=busy, name=name, folder=temporary)
                        found.setdefault((work, busy, name), []).append(ran)
                        say(
                            f"round {number}: {work}, {'busy' if busy else 'idle'}, {name}: {ran['rate']:.1f}/s"
                        )
    given.out.write_text(page(found, given.rounds, given.note))
    return 0


def run(**how: Any) -> dict[str, Any]:
    """`measured`, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.executors", "--one", json.dumps(how)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def measured(work: str, busy: bool, name: str, folder: str) -> dict[str, Any]:
    """rate: batches/s of one training; ended: what `auto` came to."""
    kind, batch, _ = WORK[work]
    fields, loops = FIELDS[kind], _loops() if busy else 0
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


def _loops() -> int:
    """As much work as takes BUSY_MS when nothing else runs."""
    n = 100_000
    took = []
    for _ in range(20):
        start = time.perf_counter()
        _compute(n)
        took.append(time.perf_counter() - start)
    return int(n * BUSY_MS / 1000 / min(took))


def page(found: dict[tuple[str, bool, str], list[dict[str, Any]]], rounds: int, note: str) -> str:
    """The document."""
    lines = [
        "# Threads, processes and a busy training",
        "",
        f"Made by `python -m benchmarks.executors --rounds {rounds}` on {platform.machine()}, Python "
        f"{platform.python_version()}, {os.cpu_count()} cores. {note}",
        "",
        "Batches per second that one training gets: 64 JPEGs of 256 px, decoded or as bytes, and 32 rows of 2048",
        f"tokens. It does nothing with them, or computes in Python for {BUSY_MS:.0f} ms per step, beside which at most",
        f"{1000 / BUSY_MS:.0f} batches/s are possible. Medians of rounds, in which all take turns, with their range;",
        "of `auto` also its choice.",
        "",
        "| batches of | the training | " + " | ".join(EXECUTORS) + " |",
        "| --- | --- |" + " --- |" * len(EXECUTORS),
    ]
    for work in WORK:
        for busy in (False, True):
            cells = []
            for name in EXECUTORS:
                runs = found[work, busy, name]
                ended = statistics.mode(run["ended"] for run in runs)
                cells.append(
                    shown([run["rate"] for run in runs], 1) + (f" {ended}" if name == "auto" else "")
                )
            lines.append(
                f"| {work} | {f'{BUSY_MS:.0f} ms of Python' if busy else 'idle'} | {' | '.join(cells)} |"
            )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    raise SystemExit(main())
