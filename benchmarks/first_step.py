"""`python -m benchmarks.first_step STEP`: the order of one batch of 1e9 samples, from nothing: its seconds and memory.

No data is read. Prints JSON: seconds from a plan to the slots of the step, and the largest resident set of the process.
"""

import json
import sys
import time
from pathlib import Path

import loader

N_SAMPLES, BATCH = 10**9, 1024


def main() -> None:
    step = int(sys.argv[1])
    start = time.perf_counter()
    plan = loader.plan({"synthetic": loader.synthetic(N_SAMPLES)}, seed=1, global_batch=BATCH)
    if len(plan.slots(step)) != BATCH:
        raise ValueError(f"step {step} is not a whole batch")
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "bytes": peak_bytes()}))


def peak_bytes() -> int:
    """The largest resident set of this process. (getrusage would also count the process that started it.)"""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024


if __name__ == "__main__":
    main()
