"""A program that maps over units that never come back, for a test that ends it. `hold` or `hold_the_lock`, FIFO."""

import os
import signal
import sys
from pathlib import Path

import compute_units

from penstock.compute.pool import LocalCompute

if __name__ == "__main__":
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # in the background of a script it would be ignored
    engine = LocalCompute(1)
    function = getattr(compute_units, sys.argv[1])
    outcomes = engine.map(function, [sys.argv[2]], timeout_s=600)
    try:
        next(outcomes)
    except KeyboardInterrupt:
        left = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
        print(f"interrupted, {len(left.split())} children left")
