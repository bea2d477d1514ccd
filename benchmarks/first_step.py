"""`python -m benchmarks.first_step STEP`: the order of one batch of 1e9 samples, from nothing: its seconds and memory.

No data is read. Prints JSON: seconds from a plan to the slots of the step, and the largest resident set of the process.
"""

import json
import resource
import sys
import time

import loader

N_SAMPLES, BATCH = 10**9, 1024


def main() -> None:
    step = int(sys.argv[1])
    start = time.perf_counter()
    plan = loader.plan({"synthetic": loader.synthetic(N_SAMPLES)}, seed=1, global_batch=BATCH)
    if len(plan.slots(step)) != BATCH:
        raise ValueError(f"step {step} is no whole batch")
    seconds = time.perf_counter() - start
    print(
        json.dumps({"seconds": seconds, "bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024})
    )


if __name__ == "__main__":
    main()
