"""A sampler: it answers prompts with the newest policy, and publishes the answers as rollouts.

It may be killed at any moment. A restart repeats the transaction that it had not finished, under the same name, so
each group is published once.
"""

import time
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import loader

from . import task
from .model import Answer, Policy, answers
from .run_folder import DATASET, RunFolder, Settings

PAUSE_S = 0.2
"""Between two looks at the backlog: each opens the newest version."""
Sample = tuple[str, dict[str, Any], dict[str, Any]]


def sample(folder: RunFolder, name: str, groups: int | None) -> None:
    """Publish rollouts until the run has its last policy.

    name: Name of this sampler; no other one may have it. groups: Groups of a transaction, by default half a step's.
    """
    torch.set_num_threads(1)
    settings = folder.settings()
    if groups is None:
        groups = settings.groups // 2
    with loader.Root(folder.root) as root:
        while True:
            version, policy = folder.newest_policy(settings.run)
            if version >= settings.steps:
                return
            waiting = loader.backlog(
                root,
                f"{DATASET}@latest",
                settings.run,
                policy=version,
                max_lag=settings.max_lag,
            )
            # More would be stale before the trainer comes to it.
            if waiting >= settings.max_lag * settings.groups:
                time.sleep(PAUSE_S)
                continue
            number = folder.next_number(name)
            txn = root.begin(DATASET, txn=f"{settings.run}-{name}-{number}")
            samples = rollouts(f"{name}/{number}", policy, version, groups, settings)
            part = loader.write_part(root, txn, samples, groups=loader.ROLLOUT_GROUPS, name=name)
            root.publish(DATASET, [part])
            folder.replace_next_number(name, number + 1)


def rollouts(prefix: str, policy: Policy, version: int, groups: int, settings: Settings) -> Iterator[Sample]:
    """Yield the rollouts of some groups. The draws depend on the prefix of their keys, and on nothing else."""
    seed = zlib.crc32(f"{settings.seed}/{prefix}".encode())
    questions = task.sums(held_out=False)
    numbers = np.random.default_rng(seed).choice(len(questions), groups, replace=False)
    chosen = [questions[number] for number in numbers]

    repeated = np.repeat(task.prompts(chosen), settings.answers, axis=0)
    generator = torch.Generator().manual_seed(seed)
    replies = answers(policy, torch.from_numpy(repeated), generator)
    for number, question in enumerate(chosen):
        start = number * settings.answers
        group = replies[start : start + settings.answers]
        yield from _group_rollouts(f"{prefix}/{number}", question, group, version)


def _group_rollouts(group_id: str, question: task.Sum, group: list[Answer], version: int) -> Iterator[Sample]:
    prompt = question.prompt()
    rewards = np.array([task.reward(question, answer.tokens) for answer in group])
    # GRPO: an answer is good if it is better than the group's other ones.
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    for number, answer in enumerate(group):
        call = {"prompt": prompt, "sampled": answer.tokens, "logprobs": answer.logprobs, "version": version}
        (sequence,) = loader.join_calls([call])
        n_tokens = len(sequence["tokens"])
        yield loader.rollout(
            f"{group_id}/{number}",
            **sequence,
            group_id=group_id,
            prompt_id=question.name,
            reward=float(rewards[number]),
            fields={"advantages.npy": np.full(n_tokens, advantages[number], np.float32)},
            env="sums",
        )
