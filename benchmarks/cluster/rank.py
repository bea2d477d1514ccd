"""`python -m benchmarks.cluster.rank SETTINGS`: one node's rank. Reads steps, one for each line of its input.

Prints a line of JSON for each step: its seconds and the digest of its batch; then, at the end of the input, the
counters. The caller keeps the ranks in step.
"""

import json
import sys
import time
from typing import Any

import loader

from ..latency_server import BUCKET

DATASET = "photos"


def main(settings: dict[str, Any]) -> None:
    """Read steps until the input ends."""
    version = loader.Root(f"s3://{BUCKET}", options=settings["options"]).open(DATASET)
    plan = loader.plan({DATASET: version}, seed=11, global_batch=settings["global_batch"])
    cache: Any = 0
    if settings["folder"]:
        cache = loader.NodeCache(
            path=settings["folder"],
            limit_bytes=settings["limit_bytes"],
            peers=settings["peers"],
        )
    world = loader.World(rank=settings["rank"], world_size=settings["ranks"])
    with loader.Loader(plan, world, cache=cache, workers=0) as batches:
        print(json.dumps({"steps_per_epoch": len(version) // settings["global_batch"]}), flush=True)
        iterator = iter(batches)
        for _ in sys.stdin:
            begun_s = time.perf_counter()
            batch = next(iterator)
            took_s = time.perf_counter() - begun_s
            print(json.dumps({"s": took_s, "digest": batch.digest}), flush=True)
        metrics = batches.metrics()
    print(json.dumps({name: value for name, value in metrics.items() if "cache" in name}), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
