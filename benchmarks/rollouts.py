"""`python -m benchmarks.rollouts [--rollouts N] [--rounds R]`: a step of rollouts written, published and read back.

Beside JSON Lines, which post-training frameworks keep rollouts in, and beside Parquet. Processor time of all threads,
in turns, medians of the rounds; the aims are ratios to JSON Lines. Rollouts have 235 to 2,115 tokens, log-probabilities
and versions.
"""

import argparse
import json
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

SHORTEST_TOKENS, LONGEST_TOKENS = 235, 2_115
LENGTH = 16_384
"""Tokens of a packed sequence."""
AIMS = {"write": 0.5, "read": 0.4}
"""Largest ratio of penstock's time to that of JSON Lines."""

Rollout = dict[str, Any]


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


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rollouts", type=int, default=400)
    options.add_argument("--rounds", type=int, default=7)
    arguments = options.parse_args()
    step = rollouts(arguments.rollouts)
    n_tokens = sum(len(one["tokens"]) for one in step)
    print(f"{len(step)} rollouts, {n_tokens:,} tokens; processor time, medians of {arguments.rounds} rounds")
    seconds = {name: (write, read) for name, write, read in measure(step, arguments.rounds)}
    json_write_s, json_read_s = seconds["JSON Lines"]
    for name, (write, read) in seconds.items():
        print(
            f"{name:<12} write and publish {write * 1e3:6.0f} ms ({write / json_write_s:.2f} of JSON Lines)   "
            f"read {read * 1e3:6.0f} ms ({read / json_read_s:.2f})"
        )
    ratios = {"write": seconds["penstock"][0] / json_write_s, "read": seconds["penstock"][1] / json_read_s}
    for name, aim in AIMS.items():
        verdict = "reached" if ratios[name] <= aim else "missed"
        print(f"{name}: {ratios[name]:.2f} of JSON Lines, aim {aim}: {verdict}")


if __name__ == "__main__":
    main()
