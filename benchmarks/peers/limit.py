"""The machine's own limit: a bare loop on every core that reads random samples and decodes them into one buffer."""

import io
import multiprocessing
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice
from typing import Any

import numpy as np
import obstore  # noqa: F401 - which `open_store` would import, in the time that is measured

from loader.storage import open_store

from ..clips import random_window
from ..contestant import Task
from ..data import Data
from ..latency_server import BUCKET, OPTIONS
from . import torch_files

VERSION = ""
RANGE_BYTES, IN_FLIGHT = 2**20, 32


def prepare(data: Data, folder: Any) -> None:
    """Nothing: it reads the records as they are."""


class Bare:
    """`loop(task, rng)` gives a function that serves one batch of random samples; each process has its own."""

    def __init__(self, task: Task, loop: Callable[[Task, np.random.Generator], Callable[[], None]]) -> None:
        self._task, self._loop = task, loop

    def rate(self, seconds: float) -> tuple[int, float]:
        """Samples and seconds of all processes together."""
        fork = multiprocessing.get_context("fork")
        start, counts = fork.Barrier(self._task.workers), fork.SimpleQueue()

        def work(seed: int) -> None:
            serve, done = self._loop(self._task, np.random.default_rng(seed)), 0
            serve()
            start.wait()
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                serve()
                done += self._task.batch
            counts.put(done)

        workers = [fork.Process(target=work, args=(seed,)) for seed in range(self._task.workers)]
        for one in workers:
            one.start()
        for one in workers:
            one.join()
        return sum(counts.get() for _ in workers), seconds


def reads(task: Task, rng: np.random.Generator) -> Callable[[], None]:
    """pread of each record."""
    file, offsets = os.open(task.data.path, os.O_RDONLY), task.data.offsets.tolist()

    def serve() -> None:
        for i in rng.integers(0, len(task.data), task.batch).tolist():
            os.pread(file, offsets[i + 1] - offsets[i], offsets[i])

    return serve


def decodes(task: Task, rng: np.random.Generator) -> Callable[[], None]:
    """pread of each JPEG, decoded into the same memory."""
    import simplejpeg

    file, offsets = os.open(task.data.path, os.O_RDONLY), task.data.offsets.tolist()
    out = np.empty((256, 256, 3), np.uint8)

    def serve() -> None:
        for i in rng.integers(0, len(task.data), task.batch).tolist():
            jpeg = os.pread(file, offsets[i + 1] - offsets[i], offsets[i])
            simplejpeg.decode_jpeg(jpeg, buffer=out)

    return serve


def crops(task: Task, rng: np.random.Generator) -> Callable[[], None]:
    """pread of each JPEG, decoded and cropped at random."""
    file, offsets = os.open(task.data.path, os.O_RDONLY), task.data.offsets.tolist()

    def serve() -> None:
        for i in rng.integers(0, len(task.data), task.batch).tolist():
            task.decoder(os.pread(file, offsets[i + 1] - offsets[i], offsets[i]))

    return serve


def windows(task: Task, rng: np.random.Generator) -> Callable[[], None]:
    """Random windows of clips in memory, by PyAV with one thread."""
    clips = [task.data[i] for i in range(min(len(task.data), 64))]

    def serve() -> None:
        for i in rng.integers(0, len(clips), task.batch).tolist():
            random_window(io.BytesIO(clips[i]))

    return serve


def gather(task: Task) -> Iterator[Any]:
    """Rows of the mapped file copied into new batches, each epoch in another order, by the training's own thread."""
    rows = torch_files.MappedBatches(task.data)
    return (rows.__getitems__(wanted) for wanted in batches_of_rows(len(rows), task.batch))


def batches_of_rows(n: int, batch: int) -> Iterator[Any]:
    rng = np.random.default_rng(1)
    while True:
        order = rng.permutation(n)
        yield from (order[first : first + batch] for first in range(0, n - batch + 1, batch))


def gathers(task: Task, rng: np.random.Generator) -> Callable[[], None]:
    """Rows of the mapped file copied into the same batch; records are of one length."""
    rows = np.memmap(task.data.path, np.uint8, "r").reshape(len(task.data), -1)
    out = np.empty((task.batch, rows.shape[1]), np.uint8)

    def serve() -> None:
        np.take(rows, rng.integers(0, len(rows), task.batch), axis=0, out=out, mode="clip")

    return serve


def ranges(task: Task) -> Iterator[list[None]]:
    """Ranges of 1 MiB of the records, 32 at once; as many samples as went by."""
    store = open_store(f"s3://{BUCKET}", {**OPTIONS, "endpoint_url": task.store})
    key = f"{task.data.folder.name}/{task.data.path.name}"
    end = int(task.data.offsets[-1])
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        begin = (low for _ in count() for low in range(0, end - RANGE_BYTES, RANGE_BYTES))
        flying = deque(
            pool.submit(store.get_range, key, low, RANGE_BYTES) for low in islice(begin, IN_FLIGHT)
        )
        left = 0.0
        for low in begin:
            flying.popleft().result()
            flying.append(pool.submit(store.get_range, key, low, RANGE_BYTES))
            left += RANGE_BYTES / task.data.mean_bytes
            yield [None] * int(left)
            left -= int(left)


GATHERS = {
    "{} bare loops: gather from the mapped file": lambda task: Bare(task, gathers),
    "a bare gather, in process": gather,
}
ROWS = {
    "images": {"{} bare loops: pread and decode": lambda task: Bare(task, decodes)},
    "raw": {"{} bare loops: pread": lambda task: Bare(task, reads)},
    "crops": {"{} bare loops: pread, decode and crop": lambda task: Bare(task, crops)},
    "windows": {"{} bare loops: clips in memory, PyAV": lambda task: Bare(task, windows)},
    "latents": GATHERS,
    "tokens": GATHERS,
    "store": {"bare reads: 1 MiB, 32 at once": ranges},
}
