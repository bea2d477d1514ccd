"""A small torch training over a penstock version: resumable anywhere, at any number of ranks.

    python examples/train.py --root demo/root --ref demo@1 --steps 60 --out demo/train
    torchrun --nproc-per-node 2 examples/train.py --root demo/root --ref demo@1 --steps 60 --out demo/train

It classifies photos (fields jpg and cls). A checkpoint under <out>/checkpoints holds the model, the optimizer and the
loader's state after an optimizer step, and is whole or not there; a restart goes on from the newest, with any other
number of ranks. Every rank writes one JSON line per step into <out>/rank-<rank>-of-<ranks>-from-<step>.jsonl; the
digests of a step, summed over the ranks modulo 2^64, are those of any other number of ranks. After each checkpoint the
root is told which steps of the plan were trained (`loader.report`): Dagster shows it beside the version. The run's
trail has every step's digest, loss and worst samples (`loader.read_trail`, `penstock trail`).
"""

import argparse
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed, nn
from torch.nn import functional

import loader
from penstock.checkpoints import Checkpoints, TrainingState
from penstock.class_names import class_names_of

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


def open_plan(root: loader.Root, options: argparse.Namespace) -> loader.Plan:
    """The order of this training, of the split `train`: every rank and every restart comes to the same one."""
    photos = photos_of(root.open(options.ref))
    plan = loader.plan(
        {"photos": photos}, seed=options.seed, global_batch=options.global_batch, allow_repeats=True
    )
    plan.save(root)
    return plan


def run(options: argparse.Namespace, rank: int, world_size: int) -> None:
    """Train up to --steps, from the newest checkpoint in --out if there is one."""
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    with loader.Root(options.root) as root:
        plan = open_plan(root, options)
        labels = class_names_of(root.open(options.ref))
        device = device_of_this_rank()
        model = build_model(len(labels or ()) or options.classes).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        state = {"train": TrainingState(model, optimizer)}
        trail = loader.Trail(root, options.run, recipe="examples.train:recipe", ranks="all", tensors_every=10)
        with (
            loader.Loader(
                plan, rank, world_size, **recipe(), steps=options.steps, trail=trail, device=device
            ) as batches,
            Checkpoints(out / "checkpoints", options.run, keep_last=2) as checkpoints,
        ):
            checkpoints.load(state, batches)
            first = batches.step
            log = out / f"rank-{rank}-of-{world_size}-from-{batches.step}.jsonl"
            with log.open("w", encoding="utf-8") as lines:
                for batch in batches:
                    loss, losses = train_step(model, optimizer, batch, world_size)
                    batches.note(loss=loss, per_sample={"loss": losses})
                    told = {"step": batch.step, "digest": f"{batch.digest:016x}", "loss": round(loss, 6)}
                    lines.write(json.dumps(told) + "\n")
                    lines.flush()
                    if batch.step == options.crash_at:
                        die(world_size)
                    if batches.step % options.checkpoint_every == 0:
                        checkpoints.save(batches.step, state, batches)
                        if rank == 0:
                            loader.report(
                                root,
                                plan,
                                run=options.run,
                                steps=(first, batch.step),
                                checkpoint=str((out / "checkpoints").resolve()),
                                metrics={"loss": loss},
                            )


def device_of_this_rank() -> torch.device:
    """This rank's GPU on its node where there are any, else the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


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
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        run(options, rank, world_size)
        return
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    distributed.init_process_group(backend, rank=rank, world_size=world_size)
    try:
        run(options, rank, world_size)
    finally:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
