"""Measure runs of `loader.online`: a decision at an early and a late step, and from a publication to its batch."""

import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import loader
from loader.dataset.shards.part import Part

from .latency_server import BUCKET, latency_store

Rollout = dict[str, Any]
"""Arguments of `loader.rollout`."""

DATASET = "rl"
GROUP_SIZE = 8
SMALL_TOKENS = 4
"""Tokens of a rollout of the small steps in between."""
LENGTH = 16_384
"""Tokens of a packed sequence."""
BESIDE = {"mask.npy": 0, "logprobs.npy": 0, "versions.npy": -1}
LATENCY_S = 0.02


def publish(root: loader.Root, txn: str, samples: list[Rollout], n_writers: int) -> list[Part]:
    """Publish a step's rollouts as one transaction, from a part per writer with rollouts. Return the parts."""
    root.begin(DATASET, txn=txn)
    parts = []
    for number in range(n_writers):
        own = samples[number::n_writers]
        if not own:
            break
        part = loader.write_part(
            root,
            txn,
            (loader.rollout(**sample) for sample in own),
            groups=loader.ROLLOUT_GROUPS,
            name=f"w{number:02d}",
        )
        parts.append(part)
    root.publish(DATASET, parts)
    return parts


def renamed(samples: list[Rollout], txn: str) -> list[Rollout]:
    """Return rollouts with the keys of a transaction."""
    return [{**sample, "key": f"{txn}/{sample['key']}"} for sample in samples]


def small_rollouts(n_groups: int) -> list[Rollout]:
    """Return groups of one rollout with a few tokens."""
    tokens = np.arange(SMALL_TOKENS, dtype=np.int32)
    samples = []
    for number in range(n_groups):
        sample = {
            "key": f"g{number}/0",
            "group_id": f"g{number}",
            "tokens": tokens,
            "mask": tokens > 0,
            "logprobs": np.zeros(SMALL_TOKENS, np.float32),
            "versions": 7,
        }
        samples.append(sample)
    return samples


def online(root: loader.Root, n_groups: int, **arguments: Any) -> Any:
    """Return the batches of a run that decides `n_groups` groups at a time."""
    return loader.online(
        root,
        f"{DATASET}@latest",
        run="bench",
        seed=1,
        groups=n_groups,
        pack=loader.pack("tokens.npy", LENGTH, beside=BESIDE),
        max_lag=10**6,
        rank=0,
        world_size=1,
        framework="numpy",
        workers=0,
        **arguments,
    )


def decisions(
    step_of_rollouts: list[Rollout],
    early: int,
    late: int,
    rounds: int,
    n_writers: int,
) -> tuple[list[float], list[float]]:
    """Return the processor seconds of decisions from step `early` on, and from step `late` on, `rounds` of each.

    One run decides every step. The measured steps have the full step's rollouts, others as many groups of one small
    rollout. A decision opens the newest version, chooses, packs, and stores list, table, plan and record.
    """
    n_groups = len({sample["group_id"] for sample in step_of_rollouts})
    small_step = small_rollouts(n_groups)
    early_steps = range(early, early + rounds)
    late_steps = range(late, late + rounds)
    seconds: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = loader.Root(folder)
        root.create()
        with online(root, n_groups, min_size=1) as batches:
            decide = batches._decisions.at

            def timed(step: int, *arguments: Any) -> Any:
                start_s = time.process_time()
                decision = decide(step, *arguments)
                seconds[step] = time.process_time() - start_s
                return decision

            batches._decisions.at = timed
            for step in range(late + rounds):
                samples = small_step
                if step in early_steps or step in late_steps:
                    samples = step_of_rollouts
                publish(root, f"t{step}", renamed(samples, f"t{step}"), n_writers)
                batch = next(batches)
                if batches.decision.counts["trained"] != len(samples) or batch.step != step:
                    raise SystemExit(f"step {step} trained {batches.decision.counts}, not {len(samples)}")
    early_s = [seconds[step] for step in early_steps]
    late_s = [seconds[step] for step in late_steps]
    return early_s, late_s


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """The time from a publication to the batch of a waiting run."""

    seconds: float
    n_requests: int
    nbytes: int


def arrivals(
    samples: list[Rollout],
    n_writers: int,
    rounds: int,
    latency_s: float = LATENCY_S,
) -> Iterator[Arrival]:
    """Yield the time from the return of `publish` to the batch of a run that waits for it, round by round.

    The run reads and writes through a server that responds to each request after `latency_s`. The first round, which
    imports and opens connections, is not among them.
    """
    n_groups = len({sample["group_id"] for sample in samples})
    with tempfile.TemporaryDirectory() as folder:
        root = loader.Root(folder)
        root.create()
        with (
            latency_store(Path(folder), latency_s, writable=True) as server,
            loader.Root(f"s3://{BUCKET}", options=server.options) as far_root,
            online(far_root, n_groups) as batches,
            ThreadPoolExecutor(1) as pool,
        ):
            for number in range(rounds + 1):
                waiting = pool.submit(_next_batch, batches)
                time.sleep(1.0)  # the pauses between its looks grow to the longest
                publish(root, f"t{number}", renamed(samples, f"t{number}"), n_writers)
                published_s = time.monotonic()
                server.served()
                batch, arrived_s = waiting.result()
                n_requests, nbytes = server.served()
                n_trained = batches.decision.counts["trained"]
                if batch.step != number or n_trained != len(samples):
                    raise SystemExit(f"step {batch.step} trained {n_trained} rollouts, not {len(samples)}")
                if number:
                    yield Arrival(
                        seconds=arrived_s - published_s,
                        n_requests=n_requests,
                        nbytes=nbytes,
                    )


def _next_batch(batches: Iterator[Any]) -> tuple[Any, float]:
    batch = next(batches)
    return batch, time.monotonic()
