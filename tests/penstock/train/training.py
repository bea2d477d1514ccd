"""A rank of a training that a test stops, over the root given. Prints `took RANK STEP DIGEST` after each step."""

import argparse
import time

import torch

import loader
from penstock.checkpoints import Checkpoints
from penstock.train import Run, hang, stop
from penstock.train.trackers import feed

parser = argparse.ArgumentParser()
parser.add_argument("root")
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--step-s", type=float, default=0.02)
parser.add_argument("--save-every", type=int, default=0)
parser.add_argument(
    "--evaluate-at", type=int, default=-1, help="step after which an evaluation would take an hour"
)
parser.add_argument("--hang-at", type=int, default=-1, help="step at which the last rank hangs")
parser.add_argument("--fail-at", type=int, default=-1, help="step at which the last rank fails")
parser.add_argument("--flush-s", type=float, default=20.0, help="between two batches for a tracker")
given = parser.parse_args()
feed.FLUSH_S, stop.LOOK_S, hang.LEAST_S = given.flush_s, 0.1, 2.0 if given.hang_at >= 0 else 600.0

with Run.joined(checkpoints=given.root) as run:
    plan = run.first(
        lambda: loader.plan({"points": loader.Root(given.root).open("points@1")}, seed=7, global_batch=24)
    )
    state = {"weight": torch.zeros(1, dtype=torch.int64)}
    is_last = run.world.rank == run.world.world_size - 1
    with (
        loader.Loader(plan, run.world, trail=run.trail(), steps=given.steps, workers=1) as batches,
        Checkpoints(run.checkpoints, run.name) as saved,
    ):
        for batch in run.steps(batches, saved, state, save_every=given.save_every):
            if is_last and batch.step == given.hang_at:
                time.sleep(1000)
            if is_last and batch.step == given.fail_at:
                raise ValueError("planted")
            state["weight"] += batch.step
            run.note(loss=batch.step / 2, attempt=run.attempt)
            time.sleep(given.step_s)
            # One write: ranks share a file.
            print(f"took {run.world.rank} {batch.step} {batch.digest}\n", end="", flush=True)
            if batch.step == given.evaluate_at:
                print("evaluates", flush=True)
                for _ in range(36_000):
                    if run.stopping():
                        break
                    time.sleep(0.1)
    print("weight", int(state["weight"]), flush=True)
