"""A rank with near saves, of a Slurm job or of `peers`: prints `loss STEP VALUE` each step. All numbers are exact."""

import json
import os
import sys
import time

import torch
from torch import distributed

import loader
from penstock.checkpoints import Checkpoints
from penstock.train import Run

PRIME = 2**31 - 1
TENSORS, ELEMENTS = 8, 20_000


def weights():
    return {f"w{number}": torch.arange(ELEMENTS) + number for number in range(TENSORS)}


def train(state, total, step):
    """Make one step from the sum of all ranks' samples; return its loss."""
    for number, weight in enumerate(state["weights"].values()):
        weight.mul_(31).add_(total + number + step).remainder_(PRIME)
    return sum(int(weight.sum()) for weight in state["weights"].values()) % PRIME


def make_plan(root, run_seed=3):
    version = loader.Root(root).open("points")
    return loader.plan({"points": version}, seed=run_seed, global_batch=12)


def main(settings):
    with Run.joined(name="near", checkpoints=settings["root"]) as run:
        if "peers" in settings:
            cache = loader.NodeCache(
                path=os.environ["NEAR_FOLDER"], limit_bytes=2**26, peers=settings["peers"]
            )
        else:
            folder = os.path.join(settings["folder"], os.environ["SLURMD_NODENAME"])
            cache = run.node_cache(folder, limit_bytes=2**26)
        state = {"weights": weights()}
        plan = make_plan(settings["root"])
        saved = Checkpoints(
            run.checkpoints, run.name, near=cache, near_every=settings["near_every"], part_bytes=2**16
        )
        batches = loader.Loader(plan, run.world, workers=0, steps=settings["steps"])
        with batches, saved:
            for batch in run.steps(batches, saved, state):
                total = torch.tensor(int(batch["x.npy"].sum(dtype=torch.int64)))
                distributed.all_reduce(total)
                loss = train(state, int(total), batch.step)
                print("loss", batch.step, loss, flush=True)
                time.sleep(settings["step_s"])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
