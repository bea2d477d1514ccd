"""Tables of a run: mean reward by policy version, and what the policy answers."""

from collections.abc import Iterator

import polars as pl
import torch

import loader

from . import task
from .model import Policy, accuracy, answers
from .run_folder import DATASET, RunFolder

ROWS = 12
"""Rows of the table, at most."""
SHOWN_SUMS = 5


def report(folder: RunFolder) -> Iterator[str]:
    """Yield the lines of a run's report."""
    settings = folder.settings()
    held_out = task.sums(held_out=True)
    version, policy = folder.newest_policy(settings.run)
    before = accuracy(folder.first_policy(), held_out)
    after = accuracy(policy, held_out)
    yield from reward_lines(folder)
    yield ""
    yield f"right answers to {len(held_out)} sums that no step had:"
    yield f"policy 0 {before:.1%}, policy {version} {after:.1%}"
    yield "  ".join(shown_answers(policy, held_out[:SHOWN_SUMS]))


def reward_lines(folder: RunFolder) -> Iterator[str]:
    """Yield a table of the mean reward of all rollouts, by the policy that sampled them."""
    with loader.Root(folder.root) as root:
        samples = root.open(f"{DATASET}@latest").samples()
        by_version = samples.group_by("policy_min").agg(pl.len(), pl.col("reward").mean()).collect()
    versions_per_row = int(by_version["policy_min"].max() or 0) // ROWS + 1  # type: ignore[arg-type]
    row = (pl.col("policy_min") // versions_per_row).alias("row")
    n = pl.col("len")
    mean = (pl.col("reward") * n).sum() / n.sum()
    table = by_version.group_by(row).agg(n.sum(), mean.alias("reward")).sort("row")
    yield "policy   rollouts  mean reward"
    for line in table.iter_rows(named=True):
        first = line["row"] * versions_per_row
        stroke = "#" * round(40 * line["reward"])
        yield f"{first:>6}   {line['len']:>8}  {line['reward']:.3f} {stroke}"


def shown_answers(policy: Policy, questions: list[task.Sum]) -> Iterator[str]:
    """Yield "37+45=82" for each sum, as the policy answers it."""
    replies = answers(policy, torch.from_numpy(task.prompts(questions)), None)
    for question, reply in zip(questions, replies, strict=True):
        yield f"{question.name}={task.text(reply.tokens)}"
