"""The trainer: GRPO over the steps that `loader.online` decides, on any number of ranks."""

import os

import torch
from torch import Tensor, distributed

import loader
from examples.train import StepLog
from penstock.checkpoints import Checkpoints, TrainingState
from penstock.train import Run

from . import task
from .model import Policy, accuracy, token_logprobs
from .run_folder import DATASET, RunFolder, Settings, weights_sha256

CLIP_LOW, CLIP_HIGH = 0.8, 1.25
"""Bounds of the ratio between the policy's probability of a token and the sampler's."""
MOST_NORM = 0.3
"""Bound of the gradient's norm."""
EVALUATE_EVERY = 10
MOST_RANKS = 4
"""Sequences of a step are padded to a multiple of it: up to so many ranks can train."""


def train(folder: RunFolder, run: Run, like: str | None) -> None:
    """Train to the last step, from the newest checkpoint on. like: a run whose steps are trained again."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    settings = folder.settings()
    policy = folder.first_policy()
    optimizer = torch.optim.AdamW(
        policy.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
    )
    state = {"train": TrainingState(policy, optimizer)}
    log_folder = folder.path / run.name
    log_folder.mkdir(exist_ok=True)
    (log_folder / f"rank-{run.world.rank}.pid").write_text(str(os.getpid()))
    # After a restart, steps are repeated whose policies the samplers have already.
    newest = folder.newest_version(run.name)
    with (
        loader.Root(folder.root) as root,
        decided_batches(root, run, settings, like) as batches,
        Checkpoints(run.checkpoints, run.name, keep_last=2) as saved,
        StepLog(log_folder, run.world) as log,
    ):
        for batch in run.steps(batches, saved, state, save_every=settings.checkpoint_every):
            loss = train_step(policy, optimizer, batch)
            log.write(batch, loss)
            run.note(loss=loss)
            version = batch.step + 1  # of the policy after this step
            if run.world.rank != 0:
                continue
            if version > newest:
                folder.replace_policy(run.name, version, policy)
            if version == settings.steps or version % EVALUATE_EVERY == 0:
                _report(folder, run, policy, version, loss)


def decided_batches(
    root: loader.Root, run: Run, settings: Settings, like: str | None
) -> "loader.OnlineBatches":
    """Return the batches of a run. A step's rollouts are the same on any number of ranks, and after each restart."""
    beside = {"mask.npy": 0, "logprobs.npy": 0, "advantages.npy": 0}
    return loader.online(
        root,
        f"{DATASET}@latest",
        run=run.name,
        seed=settings.seed,
        groups=settings.groups,
        pack=loader.pack(
            "tokens.npy", settings.length, pad_id=task.PAD, beside=beside, columns=("n_sampled",)
        ),
        max_lag=settings.max_lag,
        multiple=MOST_RANKS,
        like=like,
        job=run,
        steps=settings.steps,
        trail=run.trail(ranks="all"),
    )


def train_step(policy: Policy, optimizer: torch.optim.Optimizer, batch: loader.Batch) -> float:
    """Make one optimizer step, and return the loss over all ranks."""
    optimizer.zero_grad(set_to_none=False)
    # The number of sampled tokens of all ranks: the loss is the same, whatever share a rank has.
    loss = token_losses(policy, batch).sum() / batch.totals["n_sampled"]
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = [parameter.grad for parameter in policy.parameters() if parameter.grad is not None]
    total = loss.detach().clone()
    if distributed.is_initialized():
        for tensor in [*gradients, total]:
            distributed.all_reduce(tensor)
    torch.nn.utils.clip_grad_norm_(policy.parameters(), MOST_NORM)
    optimizer.step()
    return float(total)


def token_losses(policy: Policy, batch: loader.Batch) -> Tensor:
    """Return the clipped loss of each token, float32 [B, L]; 0 where the policy sampled none."""
    tokens = batch["tokens.npy"].long()
    positions = batch["tokens.npy.position_ids"].long()
    segments = batch["tokens.npy.segment_ids"]
    is_sampled = batch["mask.npy"].bool() & batch.mask[:, None]

    logprobs = token_logprobs(policy, tokens, positions, segments)
    ratio = torch.where(is_sampled, logprobs - batch["logprobs.npy"], 0).exp()
    advantages = batch["advantages.npy"]
    clipped = ratio.clamp(CLIP_LOW, CLIP_HIGH)
    losses: Tensor = -torch.minimum(ratio * advantages, clipped * advantages) * is_sampled
    return losses


def _report(folder: RunFolder, run: Run, policy: Policy, version: int, loss: float) -> None:
    """Evaluate the policy on sums that no step has. version: number of steps behind the policy."""
    n_steps = folder.settings().steps
    share = accuracy(policy, task.sums(held_out=True))
    run.note(accuracy=share)
    print(f"{run.name}: {bar(version, n_steps)}, loss {loss:+.4f}, {share:.0%} of new sums right", flush=True)
    if version == n_steps:
        weights = weights_sha256(policy)
        folder.write_result(run.name, {"accuracy": share, "weights": weights, "ranks": run.world.world_size})


def bar(n: int, total: int, width: int = 20) -> str:
    """Return a bar such as "[#####...............] 25 of 100"."""
    filled = n * width // total
    return f"[{'#' * filled}{'.' * (width - filled)}] {n} of {total}"
