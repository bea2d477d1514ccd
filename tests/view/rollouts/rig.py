"""Rollouts of two steps: groups with one id in both, turns with hostile text, one rollout of several pages."""

import random

import numpy as np

import loader

HOSTILE = "</script><img src=x onerror=alert(1)>\u202e"
GROUPS = 3
MEMBERS = 4
LONG = 2600
"""Tokens of the first rollout of group 1 in each step."""
SPECIAL = {"0": "<bos>", "1": "<eos>"}


def rollout(step, group, number):
    """A rollout, with its arrays and turns decided by its numbers."""
    draw = np.random.default_rng([step, group, number])
    n = LONG if (group, number) == (1, 0) else 20 + 7 * number
    tokens = draw.integers(2, 50, n)
    tokens[0], tokens[-1] = 0, 1
    is_sampled = np.arange(n) >= n // 2
    logprobs = np.where(is_sampled, -draw.exponential(1.0, n), 0).astype(np.float32)
    reward = float(number % 2)
    advantages = np.where(is_sampled, reward - 0.5, 0).astype(np.float32)
    kept_n = np.where(is_sampled, 2, 0)
    turns = [
        {"role": "user", "start": 1, "stop": n // 2, "text": f"What is {number}?\n{HOSTILE}"},
        {
            "role": "assistant",
            "start": n // 2,
            "stop": n - 1,
            "text": f"It is {number}.",
            "tool": "search",
            "arguments": {"q": HOSTILE},
            "started_ns": 0,
            "ended_ns": 2_500_000_000,
        },
    ]
    return loader.rollout(
        f"{step}/{group}/{number}",
        tokens,
        is_sampled,
        group_id=f"g{group}",
        logprobs=logprobs,
        versions=np.where(np.arange(n) % 2, step, step + 1),
        reward=reward,
        turns=turns,
        fields={
            "advantages.npy": advantages,
            "kept_n.npy": kept_n,
            "kept.npy": np.zeros(int(kept_n.sum()), np.int64),
            "experts.npy": np.zeros((n, 3, 2), np.int64),
        },
        env=HOSTILE,
        finish=random.Random(number).choice(["stop", "length"]),
    )


def write_rollouts(root, steps=2, dataset="rl"):
    """Publish rl@n of two parts per step; return the newest version."""
    for step in range(steps):
        txn = root.begin(dataset, txn=f"run-{step}")
        parts = []
        for worker in range(2):
            rollouts = [
                rollout(step, group, number)
                for group in range(GROUPS)
                for number in range(worker, MEMBERS, 2)
            ]
            part = loader.write_part(root, txn, rollouts, groups=loader.ROLLOUT_GROUPS, name=f"w{worker}")
            parts.append(part)
        root.publish(dataset, parts)
    return root.open(f"{dataset}@latest")


def find_ordinal(version, key):
    (ordinal,) = version.select().ordinals([key]).tolist()
    return ordinal
