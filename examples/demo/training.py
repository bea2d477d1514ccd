"""Train over two ranks, kill them, resume on one, and compare with an undisturbed training."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

TRAIN = Path(__file__).resolve().parent.parent / "train.py"
STEPS, GLOBAL_BATCH, SEED = 40, 8, 7
CHECKPOINT_EVERY, CRASH_AT, RESTORED_AT = 10, 26, 20
_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """repeated: steps done before the kill and again after it; different: steps at which the trainings differ."""

    n_steps: int
    repeated: tuple[int, ...]
    different: tuple[int, ...]
    last_loss: float


def whole(root: Path, ref: str, out: Path) -> "subprocess.Popen[str]":
    """Start the undisturbed training: one process, from the first step to the last."""
    return _start(root, ref, out, rank=0, world_size=1)


def killed(root: Path, ref: str, out: Path) -> list[int]:
    """Run two ranks that end by SIGKILL between two checkpoints; return their exit codes. Raises: RuntimeError."""
    port = _free_port()
    ranks = [
        _start(root, ref, out, rank=rank, world_size=2, port=port, crash_at=CRASH_AT) for rank in range(2)
    ]
    outputs = [_ended(process)[1] for process in ranks]
    codes = [process.returncode for process in ranks]
    if any(code != -signal.SIGKILL for code in codes):
        raise RuntimeError(f"the ranks ended with {codes} instead of by SIGKILL: {' '.join(outputs)[-2000:]}")
    return codes


def resumed(root: Path, ref: str, out: Path) -> None:
    """Go on from the checkpoint that the killed ranks left, on one rank. Raises: RuntimeError."""
    finish(_start(root, ref, out, rank=0, world_size=1))


def finish(process: "subprocess.Popen[str]") -> None:
    """Wait for a training to end well. Raises: RuntimeError."""
    code, output = _ended(process)
    if code != 0:
        raise RuntimeError(f"the training ended with {code}: {output[-2000:]}")


def is_complete(folder: Path, root: Path) -> bool:
    """Return whether both trainings are finished, and recorded."""
    names = ("whole", "resumed")
    return all((folder / name / "done").exists() and (root / "trainings" / name).exists() for name in names)


def fresh(folder: Path) -> None:
    """Remove what an interrupted demo left."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def compare(folder: Path) -> Comparison:
    """Sum the ranks' digests of every step, and compare the two trainings step by step."""
    expected = digests(folder / "whole")
    resumed_digests = digests(folder / "resumed")
    different = [
        step for step in range(STEPS) if step not in expected or resumed_digests.get(step) != expected[step]
    ]
    # A step before the kill that was not the same after it has two digests.
    different += [step for step, values in resumed_digests.items() if len(values) != 1]
    losses = [json.loads(text) for text in _log(folder / "resumed", "rank-0-of-1-").splitlines()]
    return Comparison(
        n_steps=len(expected),
        repeated=tuple(step for step, n in _times(folder / "resumed").items() if n > 1),
        different=tuple(sorted(set(different))),
        last_loss=losses[-1]["loss"],
    )


def digests(folder: Path) -> dict[int, set[int]]:
    """Return step -> the digests of its global batch: one, or several if a repeated step was not the same."""
    values: dict[int, set[int]] = {}
    for total in _totals(folder).values():
        for step, digest in total.items():
            values.setdefault(step, set()).add(digest)
    return values


def _times(folder: Path) -> dict[int, int]:
    """Return step -> number of starts of the training that did it."""
    times: dict[int, int] = {}
    for total in _totals(folder).values():
        for step in total:
            times[step] = times.get(step, 0) + 1
    return times


def _totals(folder: Path) -> dict[str, dict[int, int]]:
    """Return start ('2-from-0': 2 ranks, from step 0) -> step -> sum of its ranks' digests, modulo 2^64.

    Leaves out steps that not every rank did.
    """
    totals: dict[str, dict[int, int]] = {}
    n_ranks: dict[str, dict[int, int]] = {}  # start -> step -> ranks that did it
    for path in sorted(folder.glob("rank-*.jsonl")):
        start = path.stem.split("-of-")[1]
        for text in path.read_text(encoding="utf-8").splitlines():
            facts = json.loads(text)
            step = facts["step"]
            steps = totals.setdefault(start, {})
            steps[step] = (steps.get(step, 0) + int(facts["digest"], 16)) % 2**64
            counted = n_ranks.setdefault(start, {})
            counted[step] = counted.get(step, 0) + 1
    return {
        start: {
            step: digest for step, digest in steps.items() if n_ranks[start][step] == int(start.split("-")[0])
        }
        for start, steps in totals.items()
    }


def _log(folder: Path, prefix: str) -> str:
    return "".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob(f"{prefix}*.jsonl")))


def _start(
    root: Path,
    ref: str,
    out: Path,
    *,
    rank: int,
    world_size: int,
    port: int = 0,
    crash_at: int | None = None,
) -> "subprocess.Popen[str]":
    command = [sys.executable, str(TRAIN), "--root", str(root), "--ref", ref, "--out", str(out)]
    command += ["--steps", str(STEPS), "--global-batch", str(GLOBAL_BATCH), "--seed", str(SEED)]
    command += ["--checkpoint-every", str(CHECKPOINT_EVERY), "--run", out.name]
    command += [] if crash_at is None else ["--crash-at", str(crash_at)]
    launched: dict[str, str] = {}
    if world_size > 1:
        launched = {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank)}
        launched |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return subprocess.Popen(
        command, env=os.environ | launched, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def _ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """Wait for a process; return its exit code and what it wrote to standard error."""
    try:
        _, output = process.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        _, output = process.communicate()
        output += f"\nkilled after {_TIMEOUT_S} s"
    return process.returncode, output


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
