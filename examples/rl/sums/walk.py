"""The whole run with kills, and the same steps again on 1, 2 and 4 ranks: `make posttraining`."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from examples.demo.training import digests

from .run_folder import RunFolder, Settings

CHECKOUT = Path(__file__).resolve().parents[3]
SAMPLERS = ("w0", "w1")
AGAIN_RANKS = (1, 2, 4)
PATIENCE_S = 600.0
"""Seconds without a new policy after which the walk gives up."""


def write_run_file(folder: RunFolder, run: str, ranks: int, like: str | None = None) -> Path:
    """Write the file that `penstock train submit` takes, and return its path."""
    command = [sys.executable, "-m", "examples.rl.arithmetic", "train", "--out", str(folder.path)]
    if like is not None:
        command += ["--like", like]
    lines = {"run": run, "command": command, "ranks_per_node": ranks, "record": folder.root}
    # A list of texts and a number look the same in JSON and in TOML.
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items())
    path = folder.path / f"{run}.toml"
    path.write_text(text)
    return path


def walk(folder: RunFolder, *, kills: int, seed: int) -> int:
    """Train with kills, train again, print a table. Returns 1 if a step differs."""
    settings = folder.settings()
    with ExitStack() as stack:
        samplers = Samplers(folder)
        stack.callback(samplers.close)
        _penstock("submit", folder.path / f"{settings.run}.toml")
        stack.push(partial(_cancel_after_error, folder, settings.run))
        for kill in kill_list(settings, kills, seed):
            await_policy(folder, settings, samplers, kill.version)
            # A kill may come at any moment of a step, of a transaction and of a checkpoint.
            time.sleep(kill.delay_s)
            print(kill.carry_out(folder, settings, samplers), flush=True)
        await_policy(folder, settings, samplers, settings.steps)
        _penstock("wait", settings.run, "--root", folder.root)
    for ranks in AGAIN_RANKS:
        run = again_name(settings, ranks)
        _penstock("submit", write_run_file(folder, run, ranks, like=settings.run))
        _penstock("wait", run, "--root", folder.root)
    lines, is_equal = comparison(folder)
    print("\n".join(lines))
    return 0 if is_equal else 1


def _cancel_after_error(folder: RunFolder, run: str, kind: object, *_: object) -> None:
    """End a run that the walk leaves by an error, such as Ctrl-C: else its ranks wait for the samplers."""
    if kind is not None:
        _penstock("cancel", run, "--root", folder.root)


def again_name(settings: Settings, ranks: int) -> str:
    return f"{settings.run}-again-{ranks}"


class Samplers:
    """Processes that sample; one that ended is started again."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._processes = {name: self._start(name) for name in SAMPLERS}

    def _start(self, name: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "examples.rl.arithmetic", "sample"]
        options = ["--out", str(self._folder.path), "--name", name]
        return subprocess.Popen([*command, *options], cwd=CHECKOUT)

    def kill(self, name: str) -> None:
        """End a sampler by SIGKILL, and start it again."""
        self._processes[name].kill()
        self._processes[name].wait()
        self._processes[name] = self._start(name)

    def check(self) -> None:
        """Raises: RuntimeError if a sampler failed."""
        for name, process in self._processes.items():
            if process.poll():
                raise RuntimeError(f"sampler {name} ended with {process.returncode}; its error is above")

    def close(self) -> None:
        """End all samplers; those of a finished run have ended by themselves."""
        for process in self._processes.values():
            process.kill()
            process.wait()


STEPS_LEFT = 3
"""Steps that are left at least when a rank is killed."""


@dataclass(frozen=True, slots=True)
class Kill:
    """A SIGKILL."""

    version: int
    """Policy version from which on it may come."""
    delay_s: float
    """Seconds from that policy to the kill."""
    rank: int | None
    """Rank of the trainer; None for a sampler."""
    sampler: str

    def carry_out(self, folder: RunFolder, settings: Settings, samplers: Samplers) -> str:
        """Kill, and return what was killed."""
        where = f"policy {folder.newest_version(settings.run)}"
        if self.rank is None:
            samplers.kill(self.sampler)
            return (
                f"killed sampler {self.sampler} at {where}; it goes on with the transaction that it had begun"
            )
        pid = int((folder.path / settings.run / f"rank-{self.rank}.pid").read_text())
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return f"rank {self.rank} had ended at {where}"
        return f"killed rank {self.rank} at {where}; penstock train starts all ranks again in 10 s"


def kill_list(settings: Settings, kills: int, seed: int) -> list[Kill]:
    """Return kills at random moments of the run: of a sampler, of a rank, of a sampler ..."""
    draw = random.Random(seed)
    result = []
    for number in range(kills):
        # One in each part of the run: two failures without a checkpoint between them end a run for good.
        first = number * settings.steps // kills
        stop = (number + 1) * settings.steps // kills
        rank = None
        if number % 2:
            rank = draw.randrange(settings.ranks)
            # A rank that has made its last step begins no further start.
            stop = max(first + 1, min(stop, settings.steps - STEPS_LEFT))
        result.append(Kill(draw.randrange(first, stop), draw.random(), rank, draw.choice(SAMPLERS)))
    return result


def comparison(folder: RunFolder) -> tuple[list[str], bool]:
    """Return a table of the run and its repetitions, and whether all steps are equal."""
    settings = folder.settings()
    expected = digests(folder.path / settings.run)
    is_equal = sorted(expected) == list(range(settings.steps))
    lines = ["run             ranks  starts  steps made  digests of steps    weights   right"]
    for run in (settings.run, *(again_name(settings, ranks) for ranks in AGAIN_RANKS)):
        run_digests = digests(folder.path / run)
        same = [
            step for step, values in run_digests.items() if len(values) == 1 and values == expected.get(step)
        ]
        is_equal = is_equal and len(same) == len(run_digests) == settings.steps
        result = folder.result(run)
        if result is None:
            lines.append(f"{run} has not ended")
            is_equal = False
            continue
        n_starts, n_made = starts_and_steps(folder, run)
        lines.append(
            f"{run:<14} {result['ranks']:>6} {n_starts:>7} {n_made:>11}  {len(same):>5} of {settings.steps} equal"
            f"  {result['weights'][:8]}  {result['accuracy']:.1%}"
        )
    first, again = folder.result(settings.run), folder.result(again_name(settings, settings.ranks))
    if first is not None and again is not None:
        is_bitwise = first["weights"] == again["weights"]
        words = "are equal bit for bit" if is_bitwise else "differ"
        lines.append(f"weights of {settings.run} and its repetition on {settings.ranks} ranks {words}")
        is_equal = is_equal and is_bitwise
    return lines, is_equal


def starts_and_steps(folder: RunFolder, run: str) -> tuple[int, int]:
    """Return how many starts of a run made steps, and how many steps they made, repeated ones included."""
    logs = list((folder.path / run).glob("rank-0-*.jsonl"))
    n_lines = [len(log.read_text().splitlines()) for log in logs]
    return len(logs), sum(n_lines)


def await_policy(folder: RunFolder, settings: Settings, samplers: Samplers, version: int) -> None:
    """Wait for a policy. Raises: RuntimeError if none comes."""
    newest, until_s = -1, time.monotonic() + PATIENCE_S
    while newest < version:
        samplers.check()
        time.sleep(0.05)
        latest = folder.newest_version(settings.run)
        if latest > newest:
            newest, until_s = latest, time.monotonic() + PATIENCE_S
        if time.monotonic() > until_s:
            raise RuntimeError(
                f"no policy after {newest} in {PATIENCE_S:.0f} s; see penstock train why {settings.run} "
                f"--root {folder.root}"
            )


def _penstock(verb: str, *words: object) -> None:
    """Run `penstock train`. Raises: CalledProcessError."""
    command = [sys.executable, "-m", "penstock", "train", verb, *map(str, words)]
    print(f"$ penstock train {' '.join(map(str, [verb, *words]))}", flush=True)
    subprocess.run(command, cwd=CHECKOUT, check=True)
