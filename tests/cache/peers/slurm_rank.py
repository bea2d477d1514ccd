"""A rank of a Slurm job: two epochs through the cache of its nodes. Prints `read STEP DIGEST` after each step."""

import json
import os
import sys
import time

import loader
from penstock.train import Run

settings = json.loads(sys.argv[1])
with Run.joined(name="cluster") as run:
    version = loader.Root("s3://bucket", options=settings["options"]).open("points")
    plan = loader.plan({"points": version}, seed=3, global_batch=8 * run.world.world_size)
    folder = os.path.join(settings["folder"], os.environ["SLURMD_NODENAME"])
    cache = run.node_cache(folder, limit_bytes=settings["limit_bytes"], page_bytes=settings["page_bytes"])
    with loader.Loader(plan, run.world, cache=cache, workers=0, steps=settings["steps"]) as batches:
        for batch in run.steps(batches):
            print("read", batch.step, batch.digest, flush=True)
            time.sleep(0.02)
        metrics = batches.metrics()
        print("metrics", json.dumps({name: metrics[name] for name in metrics if "cache" in name}), flush=True)
