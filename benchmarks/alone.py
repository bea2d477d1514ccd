"""What penstock is held to without peers of its own kind: the first batch, going on, memory, video reads."""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from .contest import ROOT, python_of
from .page import MIB, shown
from .rows import OURS, ROWS
from .throughput import Bench, say

STEPS = (0, 10**7)
LONG_STEPS, LONG_TURN_S = 10**5, 10.0


def first_step(rounds: int) -> list[str]:
    """The order alone, of 1e9 samples, at step 0 and at step 1e7: each in fresh processes, in turns."""
    found: dict[int, list[dict[str, float]]] = {step: [] for step in STEPS}
    for _ in range(rounds):
        for step in STEPS:
            ran = subprocess.run(
                [sys.executable, "-m", "benchmarks.first_step", str(step)],
                cwd=ROOT,
                capture_output=True,
                check=True,
            )
            found[step].append(json.loads(ran.stdout))
    lines = [
        "## The first batch's order, of 1e9 samples",
        "",
        "The 1,024 samples of one step, from nothing; no data is read. To reach: 2 s and 1 GiB at step 1e7.",
        "",
        "| step | seconds | MiB, all of the process |",
        "| --- | --- | --- |",
    ]
    for step, runs in found.items():
        memory = statistics.median(run["bytes"] for run in runs) / MIB
        lines.append(f"| {step:,} | {shown([run['seconds'] for run in runs], 3)} | {memory:,.0f} |")
    return [*lines, ""]


def resumed(bench: Bench, rounds: int) -> list[str]:
    """The first batch of a fresh start, and of one from a state in mid-epoch, on local files."""
    row = ROWS["raw"]
    label = next(label for peer, label in bench.ways("raw") if peer == OURS)
    fresh = bench.task(row, OURS, label)
    with bench.runner(OURS) as runner:
        state = runner.ask("state", samples=bench.samples(row) // 2, task=fresh)
    seconds: dict[str, list[float]] = {"fresh": [], "resumed": []}
    for _ in range(rounds):
        for name, given in (("fresh", fresh), ("resumed", fresh | state)):
            with bench.runner(OURS) as runner:
                runner.ask("open", row="raw", label=label, task=given)
                seconds[name].append(runner.ask("race", samples=row.batch, limit_s=30)["first_s"])
    ratios = [b / a for a, b in zip(seconds["fresh"], seconds["resumed"], strict=True)]
    return [
        "## Going on in mid-epoch, from local files",
        "",
        f"From opening the root to the first batch: {shown(seconds['fresh'], 3)} s, from a state in mid-epoch",
        f"{shown(seconds['resumed'], 3)} s, {shown(ratios)} times as long. To reach: 1.2.",
        "",
    ]


def long_run(bench: Bench) -> list[str]:
    """Memory of 1e5 steps of tokens in threads."""
    row = ROWS["tokens"]
    label = next(label for peer, label in bench.ways("tokens") if peer == OURS)
    lines = [
        f"## Memory over {LONG_STEPS:,} steps",
        "",
        f"{row.title}; {label}. Anonymous and shared memory of all processes.",
        "",
        "| step | MiB |",
        "| --- | --- |",
    ]
    steps = 0
    with bench.runner(OURS) as runner:
        runner.ask("open", row="tokens", label=label, task=bench.task(row, OURS, label))
        while steps < LONG_STEPS:
            turn = runner.ask("turn", warm_s=0, seconds=LONG_TURN_S)
            steps += turn["samples"] // row.batch
            lines.append(f"| {steps:,} | {turn['memory_bytes'] / MIB:,.1f} |")
            say(lines[-1])
    return [*lines, ""]


def video(rounds: int) -> list[str]:
    """benchmarks/video_reads.py, in the environment of its peers where it is there."""
    python = python_of("video") if python_of("video").exists() else Path(sys.executable)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "page.md"
        command = [
            python,
            "-m",
            "benchmarks.video_reads",
            "--rounds",
            str(rounds),
            "--reads",
            "2",
            "--out",
            out,
        ]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if ran.returncode:
            why = (ran.stderr.splitlines() or ["no word"])[-1]
            return ["## Video", "", f"benchmarks/video_reads.py failed: {why}", ""]
        text = out.read_text()
    _, _, body = text.partition("\n## ")
    body, _, _ = body.partition("\n## Correctness")
    return [
        "## Video: 16 frames at a random place, 224 px",
        "",
        "To reach: 1.1 times the best from the same file, 5 times from canonical clips. One thread each. More:",
        "[video reads](#video-reads).",
        "",
        "#" + ("## " + body).replace("\n## ", "\n### "),
        "",
    ]
