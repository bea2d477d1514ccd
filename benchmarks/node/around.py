"""Processor time around a photo's decoder, in the training's own thread: what threads wait for one another for.

    python -m benchmarks.node.around ROOT       a root that benchmarks/peers/penstock.py wrote

A decoder that does nothing leaves the Loader's work: plans, reading, checking, calls, and the copy into the batch. All
but reading, checking and long copies hold the interpreter's lock. Minimum of turns, of this process's processor time.
"""

import json
import sys
import time
from typing import Any

import numpy as np

from ..photos import SIDE_PX

BATCH, SAMPLES, TURNS = 64, 1280, 9
PHOTO = np.zeros((SIDE_PX, SIDE_PX, 3), np.uint8)


def nothing(data: bytes, rng: Any) -> Any:
    return PHOTO


def measured(root: str) -> dict[str, float]:
    """Microseconds per sample: of all work around the decoder, and of the copy of a row, which is part of it."""
    import loader

    view = loader.Root(root).open("bench@latest").select("jpg")
    plan = loader.plan({"bench": view}, seed=1, global_batch=BATCH)
    rows = np.zeros((BATCH, *PHOTO.shape), np.uint8)
    with loader.Loader(plan, 0, 1, workers=0, framework="numpy", decode={"jpg": nothing}) as batches:

        def around() -> None:
            for _ in range(SAMPLES // BATCH):
                next(batches)

        def copies() -> None:
            for n in range(SAMPLES):
                rows[n % BATCH] = PHOTO

        around()
        took = [(_us(around), _us(copies)) for _ in range(TURNS)]
    return {"around_us": min(a for a, _ in took), "copy_us": min(b for _, b in took)}


def _us(work: Any) -> float:
    start = time.process_time()
    work()
    return 1e6 * (time.process_time() - start) / SAMPLES


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1])))
