"""Print the digest of each batch: python outage_train.py PLAN STEPS [MIRROR ...]"""

import sys
import time

import loader

name, steps, *mirrors = sys.argv[1:]
plan = loader.open_plan(loader.Root(mirrors=mirrors), name)
# Without caches: the whole small dataset would be read at the first step.
with loader.Loader(plan, 0, 1, framework="numpy", steps=int(steps), cache=0, workers=0) as batches:
    for batch in batches:
        time.sleep(0.1)  # where a training computes
        print(batch.step, f"{batch.digest:016x}", flush=True)
    print("served by a mirror:", batches.metrics()["fallbacks_total"], file=sys.stderr)
