"""A rank of a Slurm job: two epochs through the cache of its nodes. Prints `read RANK STEP DIGEST` after each step."""

import json
import os
import sys
import time

import torch

import loader
from loader.cache import cached_store
from penstock.checkpoints import Checkpoints
from penstock.train import Run
from tests.cache.peers.nodes import DEADLINE_S, PATIENT

# On a busy machine usual deadlines leave out peers that run, whose pages would be read again.
for module, names in PATIENT.items():
    for name in names:
        setattr(module, name, DEADLINE_S)
cached_store.WAIT_S = 5.0

settings = json.loads(sys.argv[1])
with Run.joined() as run:
    version = loader.Root("s3://bucket", options=settings["options"]).open("points")
    plan = loader.plan({"points": version}, seed=3, global_batch=8 * run.world.world_size)
    folder = os.path.join(settings["folder"], os.environ["SLURMD_NODENAME"])
    cache = run.node_cache(folder, limit_bytes=settings["limit_bytes"], page_bytes=settings["page_bytes"])
    state = {"steps": torch.zeros(1, dtype=torch.int64)}
    with (
        loader.Loader(plan, run.world, cache=cache, workers=0, steps=settings["steps"]) as batches,
        Checkpoints(run.checkpoints, run.name) as saved,
    ):
        for batch in run.steps(batches, saved, state, save_every=settings["save_every"]):
            state["steps"] += 1
            # One write: ranks share a file.
            print(f"read {run.world.rank} {batch.step} {batch.digest}\n", end="", flush=True)
            time.sleep(settings["pause_s"])
        metrics = batches.metrics()
    shown = {name: value for name, value in metrics.items() if "cache" in name}
    print(f"metrics {json.dumps(shown)}\nsteps {int(state['steps'])}\n", end="", flush=True)
