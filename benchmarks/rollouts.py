"""`python -m benchmarks.rollouts [--page]`: the costs of a step of post-training.

A step of rollouts is written, published and read back, beside JSON Lines, which post-training frameworks keep rollouts
in, and beside Parquet: processor time of all threads, in turns. Rollouts have 235 to 2,115 tokens, log-probabilities
and versions. Then one run decides 800 steps, fresh processes open a version of 10,000 steps, and rollouts arrive over a
slow store: 20 minutes in all. --page writes docs/benchmarks-pipeline.md.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import loader

from . import sections
from .page import judged, shown
from .rollout_opening import grow, opening
from .rollout_runs import LATENCY_S, LENGTH, Rollout, arrivals, decisions

SHORTEST_TOKENS, LONGEST_TOKENS = 235, 2_115
WRITERS = 16
EARLY_STEP = 10
AIM_DECISION_MS = 45
AIM_LATE = 1.2
"""Largest ratio of the late decisions' time to the early ones'."""
AIM_OPENING_S = 1.5
AIM_OPENING_MIB = 400
AIM_ARRIVAL_S = 2
AIMS = {"write": 0.5, "read": 0.4}
"""Largest ratio of penstock's time to that of JSON Lines."""


def rollouts(n_rollouts: int) -> list[Rollout]:
    """Return rollouts as a sampler has them: arrays, and groups of eight."""
    draw = np.random.default_rng(1)
    made = []
    for number in range(n_rollouts):
        n_tokens = int(draw.integers(SHORTEST_TOKENS, LONGEST_TOKENS))
        mask = np.arange(n_tokens) >= n_tokens // 5
        made.append(
            {
                "key": f"g{number // 8}/{number}",
                "group_id": f"g{number // 8}",
                "tokens": draw.integers(0, 150_000, n_tokens, np.int32),
                "mask": mask,
                "logprobs": np.where(mask, -draw.random(n_tokens, np.float32), np.float32(0)),
                "versions": np.where(mask, 7, -1).astype(np.int32),
                "reward": float(number % 2),
            }
        )
    return made


def write_version(folder: Path, step: list[Rollout]) -> None:
    root = loader.Root(folder)
    root.create()
    txn = root.begin("rl")
    samples = (loader.rollout(**one) for one in step)
    part = loader.write_part(root, txn, samples, groups=loader.ROLLOUT_GROUPS)
    root.publish("rl", [part])


def read_version(folder: Path) -> int:
    """Return the sampled tokens in the packed batches of one epoch."""
    version = loader.Root(folder).open("rl@latest")
    beside = {"mask.npy": 0, "logprobs.npy": 0, "versions.npy": -1}
    documents = version.select("tokens.npy", *beside)
    pack = loader.pack("tokens.npy", LENGTH, beside=beside)
    plan = loader.plan({"rl": documents}, seed=1, global_batch=4, boundary="mask", pack=pack)
    with loader.Loader(plan, 0, 1, epochs=1, framework="numpy") as batches:
        return sum(int(batch["mask.npy"].sum()) for batch in batches)


def write_json_lines(folder: Path, step: list[Rollout]) -> None:
    folder.mkdir()
    with open(folder / "step.jsonl", "w") as file:
        for one in step:
            plain = {
                name: getattr(value, "tolist", lambda value=value: value)() for name, value in one.items()
            }
            file.write(json.dumps(plain) + "\n")


def read_json_lines(folder: Path) -> int:
    """Return the sampled tokens, after parsing alone: nothing is packed."""
    with open(folder / "step.jsonl") as file:
        return sum(sum(json.loads(line)["mask"]) for line in file)


def write_parquet(folder: Path, step: list[Rollout]) -> None:
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(step), folder / "step.parquet")


def read_parquet(folder: Path) -> int:
    masks = pq.read_table(folder / "step.parquet")["mask"].combine_chunks()
    return int(masks.flatten().to_numpy(zero_copy_only=False).sum())


CONTESTANTS: dict[str, tuple[Callable[[Path, list[Rollout]], None], Callable[[Path], int]]] = {
    "penstock": (write_version, read_version),
    "JSON Lines": (write_json_lines, read_json_lines),
    "Parquet": (write_parquet, read_parquet),
}


def processor_s(run: Callable[[], Any]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def measure(step: list[Rollout], rounds: int) -> Iterator[tuple[str, float, float]]:
    """Yield (contestant, seconds to write, seconds to read), medians of the rounds."""
    n_sampled = sum(int(one["mask"].sum()) for one in step)
    write_s: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    read_s: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    with tempfile.TemporaryDirectory() as temporary:
        for number in range(rounds + 1):
            for name, (write, read) in CONTESTANTS.items():
                folder = Path(temporary) / f"{name}-{number}"
                writing_s = processor_s(lambda: write(folder, step))  # noqa: B023 - called at once
                counts: list[int] = []
                reading_s = processor_s(lambda: counts.append(read(folder)))  # noqa: B023
                if counts != [n_sampled]:
                    raise SystemExit(f"{name} read {counts} sampled tokens, {n_sampled} were written")
                if number:  # the first round imports and compiles
                    write_s[name].append(writing_s)
                    read_s[name].append(reading_s)
    for name in CONTESTANTS:
        yield name, statistics.median(write_s[name]), statistics.median(read_s[name])


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="python -m benchmarks.rollouts", description=__doc__)
    options.add_argument("--rollouts", type=int, default=400, help="of a step (%(default)s)")
    options.add_argument("--rounds", type=int, default=7, help="of each row (%(default)s)")
    options.add_argument("--late", type=int, default=800, help="step of the late decision (%(default)s)")
    options.add_argument("--steps", type=int, default=10_000, help="of the opened version (%(default)s)")
    options.add_argument(
        "--arriving", type=int, default=4_096, help="rollouts over the slow store (%(default)s)"
    )
    options.add_argument(
        "--page", action="store_true", help="write the section of docs/benchmarks-pipeline.md"
    )
    options.add_argument("--note", default="", help="a sentence about the machine, such as: A busy machine.")
    options.add_argument("--out", type=Path, help="write the section here")
    return options


def contest_lines(step: list[Rollout], rounds: int) -> Iterator[str]:
    """Yield a line on writing, and one on reading."""
    n_tokens = sum(len(one["tokens"]) for one in step)
    seconds = {name: (write, read) for name, write, read in measure(step, rounds)}
    write_s, read_s = seconds["penstock"]
    json_write_s, json_read_s = seconds["JSON Lines"]
    parquet_write_s, parquet_read_s = seconds["Parquet"]
    write_ratio = write_s / json_write_s
    read_ratio = read_s / json_read_s
    shown_write = judged(f"{write_ratio:.2f}", write_ratio <= AIMS["write"])
    shown_read = judged(f"{read_ratio:.2f}", read_ratio <= AIMS["read"])
    yield (
        f"- write and publish {len(step)} rollouts with {n_tokens:,} tokens: {1e3 * write_s:.0f} ms, {shown_write} of "
        f"JSON Lines (≤ {AIMS['write']}); Parquet {parquet_write_s / json_write_s:.2f}"
    )
    yield (
        f"- read them as packed batches: {1e3 * read_s:.0f} ms, {shown_read} of parsing JSON Lines (≤ {AIMS['read']}); "
        f"Parquet {parquet_read_s / json_read_s:.2f}"
    )


def decision_line(step: list[Rollout], late: int, rounds: int) -> str:
    early_s, late_s = decisions(step, EARLY_STEP, late, rounds, WRITERS)
    early_ms = 1e3 * statistics.median(early_s)
    late_ms = 1e3 * statistics.median(late_s)
    ratio = late_ms / early_ms
    shown_early = judged(f"{early_ms:.0f} ms", early_ms <= AIM_DECISION_MS)
    shown_late = judged(f"{late_ms:.0f} ms", late_ms <= AIM_DECISION_MS)
    shown_ratio = judged(f"{ratio:.2f} times that", ratio <= AIM_LATE)
    return (
        f"- a decision of {len(step)} rollouts of {WRITERS} writers, opening included: {shown_early} at step "
        f"{EARLY_STEP}, {shown_late} at step {late:,}, {shown_ratio} (≤ {AIM_DECISION_MS}; ≤ {AIM_LATE})"
    )


def opening_line(n_steps: int, rounds: int) -> str:
    with tempfile.TemporaryDirectory() as folder:
        root = loader.Root(folder)
        root.create()
        grow(root, n_steps, WRITERS)
        opened = opening(folder, rounds)
    shown_s = judged(f"{opened.seconds:.2f} s", opened.seconds <= AIM_OPENING_S)
    shown_mib = judged(f"{opened.anonymous_mib:.0f} MiB", opened.anonymous_mib <= AIM_OPENING_MIB)
    return (
        f"- open the newest version after {n_steps:,} steps of {WRITERS} writers, {opened.n_parts:,} parts: {shown_s} "
        f"and {shown_mib} (≤ {AIM_OPENING_S}; ≤ {AIM_OPENING_MIB}). Later steps publish the first one's parts under "
        "other names, without shards"
    )


def arrival_line(n_rollouts: int, rounds: int) -> str:
    measured = list(arrivals(rollouts(n_rollouts), WRITERS, rounds))
    seconds = [arrival.seconds for arrival in measured]
    n_requests = statistics.median(arrival.n_requests for arrival in measured)
    shown_s = judged(f"{shown(seconds)} s", statistics.median(seconds) <= AIM_ARRIVAL_S)
    return (
        f"- from the publication of {n_rollouts:,} rollouts by {WRITERS} writers to the batch with all of them, over a "
        f"store of {1e3 * LATENCY_S:.0f} ms a request: {shown_s}, {n_requests:.0f} requests (≤ {AIM_ARRIVAL_S})"
    )


def section(arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of the section, as they are measured."""
    step = rollouts(arguments.rollouts)
    machine = f"{platform.machine()}, Python {platform.python_version()}, {os.cpu_count()} cores"
    yield "# Rollouts"
    yield ""
    yield f"Made by `{command(arguments)}` on {machine}. {arguments.note}".strip()
    yield "Processor time, but for openings and the slow store; local files."
    yield ""
    yield from contest_lines(step, arguments.rounds)
    yield decision_line(step, arguments.late, arguments.rounds)
    yield opening_line(arguments.steps, arguments.rounds)
    yield arrival_line(arguments.arriving, arguments.rounds)


def command(arguments: argparse.Namespace) -> str:
    options = parser()
    words = [options.prog]
    for name in ("rollouts", "rounds", "late", "steps", "arriving"):
        value = getattr(arguments, name)
        if value != options.get_default(name):
            words.append(f"--{name} {value}")
    return " ".join(words)


def main() -> int:
    arguments = parser().parse_args()
    lines = []
    for line in section(arguments):
        print(line, flush=True)  # they take minutes
        lines.append(line)
    if arguments.page or arguments.out is not None:
        sections.write("benchmarks.rollouts", "\n".join(lines) + "\n", arguments.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
