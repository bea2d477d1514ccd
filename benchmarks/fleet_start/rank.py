"""`python -m benchmarks.fleet_start.rank first|each|PLAN [FOLDER PEERS]`: a rank whose requests are counted.

It runs up to its second batch, with a node cache if there is a folder. PEERS: addresses, with commas.

The environment names its number among the ranks, and the store. Prints a line: `time.monotonic()` at the first batch
and when it asks for the second.
"""

import json
import sys
import time
from typing import Any

import torch

import loader
from penstock.checkpoints import Checkpoints
from penstock.train import Run

from ..latency_server import BUCKET

DATASET, RUN = "points", "counted"
BATCH = 8
"""Samples of a rank's batch."""
QUIET_S = 0.5
"""Seconds after the first batch: what is read in them was made ahead."""


def train(plans: str, folder: str = "", peers: str = "") -> None:
    """Take two batches. plans: "first" opens the root on the first rank, "each" on every one; or a plan's hash."""
    cache: dict[str, Any] = {}
    if folder:
        cache["cache"] = loader.NodeCache(path=folder, limit_bytes=2**30, peers=peers.split(","))
    with Run.joined(name=RUN, checkpoints=f"s3://{BUCKET}") as run:

        def opened() -> loader.Plan:
            root = loader.Root(f"s3://{BUCKET}")
            if plans not in ("first", "each"):
                return loader.open_plan(root, plans)
            version = root.open(DATASET)
            return loader.plan({DATASET: version}, seed=7, global_batch=BATCH * run.world.world_size)

        plan = run.first(opened) if plans == "first" else opened()
        state = {"weights": torch.zeros(1000)}
        with (
            loader.Loader(plan, run.world, **cache) as batches,
            Checkpoints(run.checkpoints, run.name) as saved,
        ):
            times = []
            for _ in run.steps(batches, saved, state):
                times.append(time.monotonic())
                if len(times) == 3:
                    break
                time.sleep(QUIET_S)
                times.append(time.monotonic())
        print(json.dumps({"first_s": times[0], "second_asked_s": times[1]}), flush=True)


if __name__ == "__main__":
    train(*sys.argv[1:])
