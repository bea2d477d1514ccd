"""Roots of rollouts for tests, and what a version of them holds."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

import loader
from tests.rollouts.online_model import Row

REF = "rl@latest"
PACK = loader.pack("tokens.npy", 64, beside={"mask.npy": 0, "logprobs.npy": 0})
OPTIONS: dict[str, Any] = {"framework": "numpy", "workers": 0}
MODULUS = 2**64


def sample(key: str, group: str, policy: int, **columns: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return a rollout whose tokens follow from its key."""
    draw = np.random.default_rng(list(key.encode()))
    n_tokens = int(draw.integers(2, 40))
    tokens = draw.integers(0, 1000, n_tokens)
    mask = np.ones(n_tokens, bool)
    mask[0] = False
    return loader.rollout(
        key,
        tokens,
        mask,
        group_id=group,
        logprobs=np.zeros(n_tokens),
        versions=policy,
        **columns,
    )


def group(txn: str, name: str, size: int, policy: int, **columns: Any) -> list[Any]:
    """Return the rollouts of a group."""
    return [sample(f"{txn}/{name}/{number}", name, policy, **columns) for number in range(size)]


def publish(
    root: loader.Root, txn: str, parts: Sequence[Iterable[Any]], dataset: str = "rl"
) -> loader.Version:
    """Publish parts of rollouts as one transaction."""
    root.begin(dataset, txn=txn)
    written = [
        loader.write_part(root, txn, samples, groups=loader.ROLLOUT_GROUPS, name=f"w{number}")
        for number, samples in enumerate(parts)
    ]
    return root.publish(dataset, written)


def publish_groups(
    root: loader.Root, txn: str, n_groups: int, size: int = 3, policy: int = 0
) -> loader.Version:
    """Publish a transaction of equal groups from two writers."""
    parts: list[list[Any]] = [[], []]
    for number in range(n_groups):
        parts[number % 2] += group(txn, f"g{number}", size, policy)
    return publish(root, txn, [part for part in parts if part])


def online(
    root: loader.Root, run: str = "big", world: tuple[int, int] = (0, 1), **arguments: Any
) -> loader.OnlineBatches:
    """Return `loader.online` with small defaults. world: rank and number of ranks."""
    rank, world_size = world
    defaults = {"seed": 7, "groups": 3, "pack": PACK, "max_lag": 2, **OPTIONS, **arguments}
    return loader.online(root, REF, run=run, rank=rank, world_size=world_size, **defaults)


def digests(batches: loader.OnlineBatches, stop: int | None = None) -> dict[int, int]:
    """Return step -> digest up to step `stop`, or to the end."""
    out: dict[int, int] = {}
    while stop is None or batches.step < stop:
        batch = next(batches, None)
        if batch is None:
            break
        out[batch.step] = batch.digest
    return out


def sum_digests(parts: Iterable[dict[int, int]]) -> dict[int, int]:
    """Return the digests of all ranks together."""
    out: dict[int, int] = {}
    for part in parts:
        for step, digest in part.items():
            out[step] = (out.get(step, 0) + digest) % MODULUS
    return out


def live_rows(version: loader.Version) -> list[Row]:
    """Return a version's live rollouts in the order of part and row."""
    columns = ["part", "key", "group_id", "policy_min"]
    rows = version.samples().select(columns).collect().iter_rows()
    return [Row(key, part.rpartition("-")[0], name, policy) for part, key, name, policy in rows]


def decision_keys(batches: loader.OnlineBatches) -> list[str]:
    """Return the keys of the current decision's list, in its order."""
    view: Any = batches.plan.sources["rollouts"].view.documents  # type: ignore[attr-defined]
    keys: list[str] = view.keys(view.in_order)
    return keys
