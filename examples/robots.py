"""Train a robot's policy on windows of episodes: resumable anywhere, at any number of ranks.

    python examples/robots.py --place path/to/lerobot --root data --dataset arm --steps 200 --out arm-train
    torchrun --nproc-per-node 2 examples/robots.py --root data --dataset arm --steps 400 --out arm-train

`--place` imports a LeRobot folder first. `--policy act` and `--policy diffusion` are lerobot's own, without pretrained
weights; `--policy small` is a few layers of torch, and needs no lerobot. States and actions are normalised by the exact
mean and deviation of what is trained. `Run` joins the ranks, loads the newest checkpoint under <out>/checkpoints and
continues there. Each rank prints a JSON line per step: the digests of a step, summed over the ranks modulo 2^64, are
the same for every number of ranks.
"""

import argparse
import json
import os
import signal
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import distributed, nn

import loader
from loader.storage import open_store
from penstock.checkpoints import Checkpoints, TrainingState
from penstock.formats.importer import ColumnarOptions
from penstock.formats.run_import import import_place
from penstock.train import Run

STATE, ACTION = "observation.state", "action"


class Batches(NamedTuple):
    """What every rank needs of the root."""

    plan: loader.Plan
    """Order of the windows."""
    decode: dict[str, Any]
    """Camera field -> decoder."""
    scale: Any
    """Transform that normalises states and actions."""
    shapes: dict[str, tuple[int, ...]]
    """Feature -> shape of one value: pictures [3, H, W]."""


class SmallPolicy(nn.Module):
    """A policy with the interface of lerobot's: `forward(batch)` returns (loss, numbers)."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], chunk: int) -> None:
        super().__init__()
        self.cameras = [name for name, shape in shapes.items() if len(shape) == 3]
        self.look = nn.Sequential(
            nn.Conv2d(3, 8, 8, stride=8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
        )
        self.read = nn.EmbeddingBag(256, 8)
        self.act = nn.Linear(32 * len(self.cameras) + shapes[STATE][0] + 8, chunk * shapes[ACTION][0])

    def forward(self, batch: dict[str, Any]) -> tuple[torch.Tensor, dict[str, float]]:
        """Return the mean error of the actions inside of the episodes, after the pictures, the state and the task."""
        device = batch[STATE].device
        # An embedding of the task: the mean over its bytes. A task without text has one byte, 0.
        tasks = [torch.tensor(list(text.encode()) or [0], device=device) for text in batch["task"]]
        lengths = [len(task) for task in tasks]
        starts = torch.tensor([0, *lengths[:-1]], device=device).cumsum(0)  # [B]: first byte of each task
        task_features = self.read(torch.cat(tasks), starts)
        image_features = [self.look(batch[name]) for name in self.cameras]
        features = torch.cat([*image_features, batch[STATE], task_features], 1)
        actions = self.act(features).view_as(batch[ACTION])  # [B, chunk, dims]
        error = (actions - batch[ACTION]).abs().mean(-1)
        loss = error[~batch[f"{ACTION}_is_pad"]].mean()
        return loss, {"l1": float(loss.detach())}


def policy_of(name: str, shapes: dict[str, tuple[int, ...]], chunk: int, device: torch.device) -> nn.Module:
    """Return a policy with random weights."""
    if name == "small":
        return SmallPolicy(shapes, chunk)
    from lerobot.configs.types import FeatureType, PolicyFeature

    kinds = {STATE: FeatureType.STATE, ACTION: FeatureType.ACTION}
    features = {
        one: PolicyFeature(kinds.get(one, FeatureType.VISUAL), shape) for one, shape in shapes.items()
    }
    options: dict[str, Any] = {
        "input_features": {one: feature for one, feature in features.items() if one != ACTION},
        "output_features": {ACTION: features[ACTION]},
        "pretrained_backbone_weights": None,
        "device": device.type,
    }
    if name == "act":
        from lerobot.policies.act.modeling_act import ACTConfig, ACTPolicy

        act: nn.Module = ACTPolicy(ACTConfig(**options, chunk_size=chunk, n_action_steps=chunk))
        return act
    from lerobot.policies.diffusion.modeling_diffusion import DiffusionConfig, DiffusionPolicy

    own = {"horizon": chunk, "n_action_steps": chunk // 2, "crop_shape": None, "down_dims": (128, 256, 512)}
    diffusion: nn.Module = DiffusionPolicy(DiffusionConfig(**options, **own))
    return diffusion


def prepare(root: loader.Root, options: argparse.Namespace) -> Batches:
    """Import the episodes that are new, and return the order of all their windows. Saves the plan."""
    if options.place:
        chosen = ColumnarOptions(episodes=tuple((number, number) for number in options.episodes))
        report = import_place(root, "lerobot", open_store(options.place), options.dataset, options=chosen)
        if report.failures:
            raise SystemExit(report.to_text())
    version = root.open(f"{options.dataset}@latest")
    cameras = [field for field in version.fields if field.endswith((".mp4", ".run"))]
    numbers = [f"{STATE}.npy", f"{ACTION}.npy"]
    episodes = version.select(*cameras, *numbers, where_present=True)
    fps = int(version.facts[numbers[1]]["fps"])
    observed = [0]  # rows of the observations, relative to the anchor
    first = 0  # row of the first action
    if (
        options.policy == "diffusion"
    ):  # lerobot's takes two observations, and its actions begin with the earlier one
        observed = [-1, 0]
        first = -1
    deltas = {field.rpartition(".")[0]: [row / fps for row in observed] for field in [*cameras, numbers[0]]}
    deltas[ACTION] = [row / fps for row in range(first, first + options.chunk)]
    at = loader.delta_timestamps(episodes, deltas)
    text = ("subtask", "task") if "language.jsonl" in version.fields else ()
    windows = loader.windows(episodes, anchor=numbers[1], at=at, text=text)
    scale = loader.normalise(loader.norm(windows, numbers), "std")
    plan = loader.plan({options.dataset: windows}, seed=options.seed, global_batch=options.global_batch)
    plan.save(root)
    decode = {camera: loader.video(size=options.size) for camera in cameras}
    widths = {
        STATE: (len(version.facts[numbers[0]]["dims"]),),
        ACTION: (len(version.facts[numbers[1]]["dims"]),),
    }
    pictures = {camera.rpartition(".")[0]: (3, *options.size) for camera in cameras}
    return Batches(plan, decode, scale, {**pictures, **widths})


def train(run: Run, options: argparse.Namespace) -> None:
    """Train up to --steps, from the newest checkpoint in --out if there is one."""
    torch.manual_seed(options.seed)
    root = loader.Root(options.root)
    data = run.first(lambda: prepare(root, options))  # one rank imports, and measures
    policy = policy_of(options.policy, data.shapes, options.chunk, run.device).to(run.device).train()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
    state = {"train": TrainingState(policy, optimizer)}
    stacked = [name for name in data.shapes if name != ACTION] if options.policy == "diffusion" else []
    batches = loader.Loader(
        data.plan,
        run.world,
        decode=data.decode,
        transform=data.scale,
        steps=options.steps,
        trail=run.trail(),
        device=run.device,
    )
    with root, batches, Checkpoints(run.checkpoints, run.name, keep_last=2) as saved:
        for batch in run.steps(batches, saved, state, save_every=options.checkpoint_every):
            optimizer.zero_grad(set_to_none=False)
            loss, _ = policy(loader.to_lerobot(batch, stacked=stacked))
            (loss * batch.weight).backward()  # batch.weight makes up for ranks with unequal shares
            if run.world.world_size > 1:
                for parameter in policy.parameters():
                    if parameter.grad is None:
                        parameter.grad = torch.zeros_like(parameter)
                    distributed.all_reduce(parameter.grad)
                    parameter.grad /= run.world.world_size
            optimizer.step()
            run.note(loss=loss.detach())
            facts = {"step": batch.step, "rank": run.world.rank, "digest": f"{batch.digest:016x}"}
            print(json.dumps({**facts, "loss": round(float(loss.detach()), 6)}) + "\n", end="", flush=True)
            if batch.step == options.crash_at:
                os.kill(os.getpid(), signal.SIGKILL)


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", required=True, help="folder or URL of the penstock root")
    parser.add_argument("--dataset", default="arm")
    parser.add_argument(
        "--place", help="folder or URL of a LeRobot dataset, whose new episodes are imported first"
    )
    parser.add_argument(
        "--episodes", type=int, nargs="*", default=(), help="episodes to import; all by default"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoints")
    parser.add_argument("--policy", choices=("act", "diffusion", "small"), default="act")
    parser.add_argument("--chunk", type=int, default=48, help="actions of a window")
    parser.add_argument(
        "--size", type=int, nargs=2, default=(96, 128), help="height and width of the pictures, px"
    )
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--global-batch", type=int, default=8)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--checkpoint-every", type=int, default=50)
    parser.add_argument("--crash-at", type=int, default=None, help="SIGKILL itself after this step")
    return parser.parse_args(arguments)


def main() -> None:
    """Join the other ranks that the launcher's environment names, and train."""
    options = parsed()
    options.out.mkdir(parents=True, exist_ok=True)
    options.size = tuple(options.size)
    loader.Root(options.root).create()  # before the run's record is written there
    checkpoints = str((options.out / "checkpoints").resolve())
    with Run.joined(name=options.out.name, checkpoints=checkpoints, record=options.root) as run:
        train(run, options)


if __name__ == "__main__":
    main()
