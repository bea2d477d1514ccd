"""The parent's side: a table per number of workers, trainings, and the time that a run may take."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from ..contest import ONE_THREAD, ROOT, PeerError, Runner
from ..rows import OURS, ROWS, Row
from ..throughput import SETTLE_S, Bench, Turns, measure, say, turns_in_order
from .models import models_of

TURN_S, TRAIN_S, CHECK_BATCHES = 1.0, 2.0, 4
TRAINING_BATCH = {"cuda": 256, "cpu": 64}
WHOLE = 4
"""Weight of a table with all contestants, and of the trainings; one of those with workers weighs 1."""
BAR = 30


class Clock:
    """The seconds of a run, shared out over what is left to do; a bar on a terminal."""

    def __init__(self, seconds: float, weights: Iterable[float]) -> None:
        self._seconds, self._weights = seconds, list(weights)
        self._begun = time.monotonic()

    def share_s(self) -> float:
        """Return the seconds of the next part, by its weight among the parts left."""
        share = self._weights[0] / sum(self._weights)
        del self._weights[0]
        return share * max(0.0, self._seconds - self.spent_s)

    @property
    def spent_s(self) -> float:
        return time.monotonic() - self._begun

    def show(self, what: str) -> None:
        """Draw the bar, on a terminal."""
        if sys.stderr.isatty():
            done = min(BAR, int(BAR * self.spent_s / self._seconds))
            text = f"[{'#' * done}{'.' * (BAR - done)}] {self.spent_s:.0f} of {self._seconds:.0f} s  {what}"
            print(f"\r\x1b[K{text[:100]}", end="", file=sys.stderr, flush=True)


@dataclass(frozen=True, kw_only=True)
class Table:
    """What was measured of a row with so many workers; failed: why others were not."""

    row: Row
    workers: int
    turns: Turns
    failed: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Training:
    """Figures of one model with so many workers; failed: why a contestant has none."""

    model: str
    device: str
    batch: int
    workers: int
    turns: Turns
    failed: Mapping[str, str]


def tables(
    bench: Bench, names: Iterable[str], workers: Iterable[int], rounds: int, clock: Clock
) -> Iterable[Table]:
    """Measure all rows with the largest number of workers and all contestants, then with the others those that have
    workers."""
    known, most = bench.known, max(workers)
    for name in names:  # in time that nobody's share counts
        bench.data(ROWS[name])
    for n in sorted(set(workers), reverse=True):
        bench.workers, bench.known = n, known if n == most else with_workers(known)
        for name in names:
            turns, _, failed = measure(bench, ROWS[name], rounds, TURN_S, clock.share_s(), CHECK_BATCHES)
            yield Table(row=ROWS[name], workers=n, turns=turns, failed=failed)


def around_decoder(bench: Bench) -> dict[str, float]:
    """Run benchmarks/node/around.py over the photos."""
    root = bench.prepared(ROWS["crops"], OURS)
    command = [sys.executable, "-m", "benchmarks.node.around", str(root)]
    ran = subprocess.run(
        command, cwd=ROOT, env=os.environ | ONE_THREAD, capture_output=True, text=True, check=True
    )
    found: dict[str, float] = json.loads(ran.stdout)
    return found


def with_workers(known: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the contestants whose label has a number of workers."""
    return {
        peer: hello
        | {"rows": {row: [one for one in labels if "{}" in one] for row, labels in hello["rows"].items()}}
        for peer, hello in known.items()
    }


def trainings(bench: Bench, rounds: int, clock: Clock, device: str) -> list[Training]:
    """Train each model with each contestant, in turns."""
    row = replace(ROWS["crops"], name="training", batch=TRAINING_BATCH[device])
    models = models_of(device)
    turns: dict[str, Turns] = {model: {} for model in models}
    failed: dict[str, str] = {}
    bench.data(row)
    within_s, begun = clock.share_s(), time.monotonic()
    with ExitStack() as stack:
        runners: dict[str, Runner] = {}
        opened: dict[str, dict[str, Any]] = {}
        for peer, label in bench.ways("training"):
            name = bench.title(peer, label)
            try:
                if time.monotonic() - begun > 2 / 3 * within_s:
                    raise PeerError("no time was left")
                task = bench.task(row, peer, label)
                runner = runners[name] = stack.enter_context(
                    Runner(peer, bench.log, "benchmarks.node.training")
                )
                with runner.running():
                    runner.ask("hello")
                    runner.ask("open", row="training", label=label, task=task)
                    opened[name] = runner.ask("first")
                    for model in models:  # what comes as it is chooses meanwhile, beside the first model
                        runner.ask("train", model=model, seconds=TRAIN_S if model != models[0] else SETTLE_S)
                    opened[name] |= runner.ask("settled")
                    if runner.ask("check", within_s=180, n=CHECK_BATCHES)["wrong"]:
                        raise PeerError("samples were not what was written")
                say(f"training, {name}: open")
            except PeerError as error:
                failed[name] = str(error)
                say(f"training, {name}: {error}")
        names = [name for name in runners if name not in failed]
        for number, in_turn in turns_in_order(names, rounds, begun + within_s):
            for name in in_turn:
                for model in models:
                    with runners[name].running():
                        turn = runners[name].ask("train", model=model, seconds=TRAIN_S)
                    turns[model].setdefault(name, []).append(opened[name] | turn)
                    bench.record({"row": f"training {model}", "contestant": name, "round": number, **turn})
    return [
        Training(
            model=model,
            device=device,
            batch=row.batch,
            workers=bench.workers,
            turns=turns[model],
            failed=failed,
        )
        for model in models
    ]
