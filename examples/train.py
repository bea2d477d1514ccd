"""A small torch training over a penstock version: resumable anywhere, at any number of ranks.

    python examples/train.py --root demo/root --ref demo@1 --steps 60 --out demo/train
    torchrun --nproc-per-node 2 examples/train.py --root demo/root --ref demo@1 --steps 60 --out demo/train

It classifies photos (fields jpg and cls). `Run` joins the ranks, loads the newest checkpoint under <out>/checkpoints
and continues there, with any number of ranks. SIGTERM to any rank stops all ranks after the same step: they save, and
end with status 75. Each rank writes a JSON line per step to <out>/rank-<rank>-of-<ranks>-from-<step>.jsonl. The digests
of a step, summed over the ranks modulo 2^64, are the same for every number of ranks. At each checkpoint the run reports
its steps to the root (`loader.report`), and Dagster shows them beside the version. The root also holds the run's trail,
with every step's digest, loss and worst samples (`penstock trail`), and its record (`penstock train ls`).
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from torch import distributed, nn
from torch.nn import functional

import loader
from penstock.checkpoints import Checkpoints, TrainingState
from penstock.class_names import find_class_names
from penstock.train import Run

CROP_PX = 128


def augment(sample: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """A random square of the photo, uint8 [3, CROP_PX, CROP_PX], mirrored half of the time.

    Every draw comes from the sample's own generator, so any rank that gets the sample makes the same picture.
    """
    photo: np.ndarray[Any, np.dtype[np.uint8]] = sample["jpg"]
    short = [(0, max(0, CROP_PX - side)) for side in photo.shape[:2]]
    photo = np.pad(photo, [*short, (0, 0)], mode="edge")
    top, left = (int(rng.integers(side - CROP_PX + 1)) for side in photo.shape[:2])
    square = photo[top : top + CROP_PX, left : left + CROP_PX]
    if rng.random() < 0.5:
        square = square[:, ::-1]
    return {"jpg": np.ascontiguousarray(square.transpose(2, 0, 1)), "cls": sample["cls"]}


def recipe() -> dict[str, Any]:
    """What makes tensors of samples, for the training and for every look back at it."""
    return {"transform": augment}


def build_model(n_classes: int) -> nn.Module:
    """A small convolutional net over uint8 [B, 3, 128, 128]; its weights are drawn from torch's seed."""
    layers: list[nn.Module] = []
    channels = 3
    for width in (16, 32, 64):
        layers += [nn.Conv2d(channels, width, 3, stride=2, padding=1), nn.GroupNorm(4, width), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, n_classes))


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: loader.Batch, world_size: int
) -> tuple[float, torch.Tensor]:
    """One optimizer step over the global batch, whatever share of it this rank holds.

    The global mean loss, and the loss of each of this rank's samples, float32 [B].
    """
    optimizer.zero_grad(set_to_none=False)
    pictures = batch["jpg"].float().div_(255).sub_(0.5)
    # batch.weight makes up for ranks with unequal shares: the mean over ranks is the mean over samples.
    losses = functional.cross_entropy(model(pictures), batch["cls"], reduction="none")
    loss = losses.mean() * batch.weight
    loss.backward()  # type: ignore[no-untyped-call]
    shared = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    total = loss.detach().clone()
    if world_size > 1:
        for tensor in [*shared, total]:
            distributed.all_reduce(tensor)
            tensor /= world_size
    optimizer.step()
    return float(total), losses.detach()


def photos_of(version: loader.Version) -> loader.View:
    """The photos with a label; of a version that has splits, those of the split `train`."""
    view = version.select("jpg", "cls", where_present=True)
    return view.where("split = 'train'") if "split" in version.manifest["columns"] else view


def open_plan(root: loader.Root, options: argparse.Namespace) -> tuple[loader.Plan, int]:
    """Return the order of this training, of the split `train`, and the number of labels. Saves the plan."""
    version = root.open(options.ref)
    plan = loader.plan(
        {"photos": photos_of(version)},
        seed=options.seed,
        global_batch=options.global_batch,
        allow_repeats=True,
    )
    plan.save(root)
    return plan, len(find_class_names(version) or ()) or options.classes


def train(run: Run, options: argparse.Namespace) -> None:
    """Train up to --steps, from the newest checkpoint in --out if there is one."""
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    root = loader.Root(options.root)
    plan, n_classes = run.first(lambda: open_plan(root, options))  # one rank opens the version
    model = build_model(n_classes).to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    state = {"train": TrainingState(model, optimizer)}
    trail = run.trail(recipe="examples.train:recipe", ranks="all", tensors_every=10)
    with (
        root,
        loader.Loader(
            plan, run.world, **recipe(), steps=options.steps, trail=trail, device=run.device
        ) as batches,
        Checkpoints(run.checkpoints, run.name, keep_last=2) as saved,
        StepLog(options.out, run.world) as log,
    ):

        def report(end: int) -> None:
            if run.world.rank == 0:
                checkpoint, metrics, steps = run.checkpoints, {"loss": loss}, (log.first, end - 1)
                loader.report(root, plan, run=run.name, steps=steps, checkpoint=checkpoint, metrics=metrics)

        for batch in run.steps(batches, saved, state, save_every=options.checkpoint_every):
            if batch.step > log.first and batch.step % options.checkpoint_every == 0:
                report(batch.step)  # `steps` saved before it handed out this batch
            loss, losses = train_step(model, optimizer, batch, run.world.world_size)
            run.note(loss=loss, per_sample={"loss": losses})
            log.write(batch, loss)
            if batch.step == options.crash_at:
                die(run.world.world_size)
        if batches.step > log.first:
            report(batches.step)


class StepLog:
    """One JSON line per step of a rank, in a file that the first step of this start names."""

    def __init__(self, folder: Path, world: loader.World) -> None:
        self._name = f"rank-{world.rank}-of-{world.world_size}-from"
        self._folder = folder
        self._file: TextIO | None = None
        self.first = sys.maxsize
        """First step of this start; larger than any before it."""

    def write(self, batch: loader.Batch, loss: float) -> None:
        """Write the line of a step, through to the file."""
        if self._file is None:
            self.first = batch.step
            self._file = (self._folder / f"{self._name}-{batch.step}.jsonl").open("w", encoding="utf-8")
        facts = {"step": batch.step, "digest": f"{batch.digest:016x}", "loss": round(loss, 6)}
        self._file.write(json.dumps(facts) + "\n")
        self._file.flush()

    def __enter__(self) -> "StepLog":
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()


def die(world_size: int) -> None:
    """All ranks end as a power cut ends them: nothing is flushed, closed or saved."""
    if world_size > 1:
        distributed.barrier()
    os.kill(os.getpid(), signal.SIGKILL)


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", required=True, help="folder or URL of the penstock root")
    parser.add_argument("--ref", required=True, help="version, such as demo@1")
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoints and logs")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--global-batch", type=int, default=8)
    parser.add_argument(
        "--run", default="train", help="the training's name in Dagster, and of its checkpoints"
    )
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--checkpoint-every", type=int, default=10)
    parser.add_argument(
        "--classes", type=int, default=100, help="for a version that does not name its labels"
    )
    parser.add_argument("--crash-at", type=int, default=None, help="SIGKILL itself after this step")
    return parser.parse_args()


def main() -> None:
    """Join the other ranks that the launcher's environment names, and train."""
    options = parsed()
    options.out.mkdir(parents=True, exist_ok=True)
    checkpoints = str((options.out / "checkpoints").resolve())
    with Run.joined(name=options.run, checkpoints=checkpoints, record=options.root) as run:
        train(run, options)


if __name__ == "__main__":
    main()
