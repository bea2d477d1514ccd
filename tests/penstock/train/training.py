"""A rank of a training that a test stops, over the root given. Prints `took RANK STEP DIGEST` after each step."""

import argparse
import atexit
import math
import multiprocessing
import os
import signal
import time

import torch
from torch import distributed
from torch.utils.data import DataLoader

import loader
from penstock.checkpoints import Checkpoints
from penstock.train import Run, hang, intervals, stop
from penstock.train.trackers import feed

parser = argparse.ArgumentParser()
parser.add_argument("root")
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--step-s", type=float, default=0.02)
parser.add_argument("--long-from", type=int, default=1 << 62, help="step from which a step takes 0.26 s more")
parser.add_argument("--save-every", type=int, default=0)
parser.add_argument(
    "--evaluate-at", type=int, default=-1, help="step after which an evaluation would take an hour"
)
parser.add_argument("--hang-at", type=int, default=-1, help="step at which the last rank hangs")
parser.add_argument("--fail-at", type=int, default=-1, help="step at which the last rank fails")
parser.add_argument("--flush-s", type=float, default=20.0, help="between two batches for a tracker")
parser.add_argument("--odd-at", type=int, default=-1, help="step whose metric the node `bad` computes wrong")
parser.add_argument("--nan-at", type=int, default=-1, help="step whose metric is NaN on every node")
parser.add_argument("--window-s", type=float, default=60.0)
parser.add_argument("--executor", default="threads")
parser.add_argument(
    "--validate", action="store_true", help="in a DataLoader's workers, and in a Pool, each step"
)
parser.add_argument("--signal-at-exit", action="store_true", help="a second signal while the process ends")
parser.add_argument("--profile", type=int, nargs=2, help="steps that are profiled")
parser.add_argument("--data", help="root of the samples, if another")
parser.add_argument("--slow-rank", type=int, default=-1, help="rank that reads from the slow endpoint")
parser.add_argument("--slow-endpoint")
parser.add_argument("--log-collectives", action="store_true", help="print when one begins, and is waited for")
given = parser.parse_args()
stop.LOOK_S, hang.LEAST_S = 0.1, 2.0 if given.hang_at >= 0 else 600.0
intervals.EVERY_S, feed.FLUSH_S = given.window_s, given.flush_s

if given.slow_endpoint:  # each rank is a node
    os.environ["SLURMD_NODENAME"] = f"m{os.environ['RANK']}"
if int(os.environ["RANK"]) == given.slow_rank:
    os.environ["AWS_ENDPOINT_URL"] = given.slow_endpoint

if given.signal_at_exit:
    atexit.register(lambda: os.kill(os.getpid(), signal.SIGUSR1))


class LoggedWork:
    """A collective that prints when it is waited for."""

    def __init__(self, name, work):
        self.name, self.work = name, work
        print(f"begin {name}", flush=True)

    def wait(self):
        print(f"wait {self.name}", flush=True)
        return self.work.wait()

    def is_completed(self):
        return self.work.is_completed()


def log_collective(name, collective):
    def call(*arguments, async_op=False):
        work = collective(*arguments, async_op=async_op)
        return LoggedWork(name, work) if async_op else work

    return call


if given.log_collectives:
    distributed.all_reduce = log_collective("all_reduce", distributed.all_reduce)
    distributed.all_gather_single = log_collective("all_gather", distributed.all_gather_single)

with Run.joined(checkpoints=given.root) as run:
    plan = run.first(
        lambda: loader.plan(
            {"points": loader.Root(given.data or given.root).open("points@1")}, seed=7, global_batch=24
        )
    )
    state = {"weight": torch.zeros(1, dtype=torch.int64)}
    is_last = run.world.rank == run.world.world_size - 1
    if given.validate:
        validation = iter(DataLoader(range(10_000), num_workers=2, prefetch_factor=1))
    with (
        loader.Loader(
            plan,
            run.world,
            trail=run.trail(),
            steps=given.steps,
            workers=1,
            executor=given.executor,
            cache=0 if given.data else None,
        ) as batches,
        Checkpoints(run.checkpoints, run.name) as saved,
    ):
        for batch in run.steps(
            batches, saved, state, save_every=given.save_every, profile=given.profile and (*given.profile,)
        ):
            if is_last and batch.step == given.hang_at:
                time.sleep(1000)
            if is_last and batch.step == given.fail_at:
                raise ValueError("planted")
            state["weight"] += batch.step
            if given.validate:
                next(validation)
                with multiprocessing.get_context("fork").Pool(1) as pool:
                    pool.map(abs, [batch.step])
            odd = batch.step == given.odd_at and os.environ.get("SLURMD_NODENAME") == "bad"
            run.note(number=math.nan if batch.step == given.nan_at else batch.step + 0.5 * odd)
            time.sleep(given.step_s + 0.26 * (batch.step >= given.long_from))
            # One write: ranks share a file.
            print(f"took {run.world.rank} {batch.step} {batch.digest}\n", end="", flush=True)
            if batch.step == given.evaluate_at:
                print("evaluates", flush=True)
                for _ in range(36_000):
                    if run.stopping():
                        break
                    time.sleep(0.1)
    print("weight", int(state["weight"]), flush=True)
