"""`python -m benchmarks.cluster.rank SETTINGS`: one node's rank. Reads the number of steps of each line of its input.

Prints a line of JSON for each line: the seconds, the processor time, and the digest of the last batch; then, at the end
of the input, the counters. The caller keeps the ranks in step.
"""

import json
import sys
import time
from typing import Any

import loader

DATASET = "photos"


def main(settings: dict[str, Any]) -> None:
    """Read steps until the input ends."""
    version = loader.Root(settings["root"], options=settings["options"]).open(DATASET)
    plan = loader.plan({DATASET: version}, seed=11, global_batch=settings["global_batch"])
    cache: Any = settings["memory_bytes"]
    if settings["folder"]:
        cache = loader.NodeCache(
            path=settings["folder"],
            limit_bytes=settings["limit_bytes"],
            page_bytes=settings["page_bytes"],
            peers=settings["peers"],
        )
    world = loader.World(rank=settings["rank"], world_size=settings["ranks"])
    workers = settings.get("workers", 0)
    prefetch = settings.get("prefetch_bytes")
    # Worker processes would not be stopped with the rank, nor would their processor time be the rank's.
    executor = "threads"
    with loader.Loader(
        plan, world, cache=cache, workers=workers, executor=executor, prefetch=prefetch
    ) as batches:
        print(json.dumps({"steps_per_epoch": len(version) // settings["global_batch"]}), flush=True)
        iterator = iter(batches)
        for line in sys.stdin:
            begun_process_s = time.process_time()
            begun_s = time.perf_counter()
            for _ in range(int(line)):
                batch = next(iterator)
            answer = {
                "s": time.perf_counter() - begun_s,
                "process_s": time.process_time() - begun_process_s,
                "digest": batch.digest,
            }
            print(json.dumps(answer), flush=True)
        metrics = batches.metrics()
    print(json.dumps({name: value for name, value in metrics.items() if "cache" in name}), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
