"""Measure penstock without peers: the first batch, resuming, memory."""

import json
import statistics
import subprocess
import sys

from .contest import ROOT
from .page import MIB, shown
from .rows import OURS, ROWS
from .throughput import Bench, say

FAR_STEP = 10**7
LONG_STEPS, LONG_TURN_S = 10**5, 10.0


def first_step(rounds: int) -> list[str]:
    """The order alone, of 1e9 samples, at a far step, in fresh processes."""
    command = [sys.executable, "-m", "benchmarks.first_step", str(FAR_STEP)]
    runs = [
        json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)
        for _ in range(rounds)
    ]
    mib = statistics.median(run["bytes"] for run in runs) / MIB
    return [
        f"The order of the 1,024 samples of step {FAR_STEP:,}, of 1e9: {shown([run['seconds'] for run in runs], 3)} s "
        f"and {mib:,.0f} MiB from nothing. The aims: 2 s, 1 GiB.",
        "",
    ]


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
        f"The first batch from local files: {shown(seconds['fresh'], 3)} s; from a state in mid-epoch {shown(ratios)} "
        "times that. The aim: 1.2.",
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
