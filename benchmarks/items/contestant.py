"""One loader over one dataset, alone in a process: `python -m benchmarks.items.contestant NAME`."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import torch

from .. import meter
from ..contestant import serve, size
from . import datasets

KEPT = "the script keeps the dataset"
DEFAULT = "nothing set"
WORKERS = "{} workers"
OWN = "own process"
PERSISTENT = "{} persistent workers"


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is to be served."""

    row: str
    label: str
    folder: str
    """Folder of the photos."""
    n: int
    """Items; MiB for arrays."""
    batch: int
    workers: int

    @property
    def n_workers(self) -> int:
        return 0 if self.label == OWN else self.workers

    def dataset(self) -> Any:
        match self.row:
            case "photos":
                return datasets.Photos(Path(self.folder), self.n)
            case "small":
                return datasets.Small(self.n)
            case "arrays":
                return datasets.Arrays(self.n)
            case "strings":
                return datasets.Strings(self.n)
        return datasets.Counted(self.n)


class Penstock:
    LABELS: ClassVar = {
        "photos": (DEFAULT, WORKERS),
        "small": (OWN,),
        "arrays": (WORKERS, KEPT),
        "strings": (WORKERS, KEPT),
        "resume": (OWN,),
    }
    VERSION = ""

    def batches(self, task: Task, step: int = 0) -> Iterator[Any]:
        import loader

        dataset = task.dataset()
        plan = loader.plan({"items": dataset}, seed=1, global_batch=task.batch, allow_repeats=True)
        if task.label != KEPT:
            del dataset
        workers: Any = task.n_workers
        if task.label == DEFAULT:
            workers = "auto"
        with loader.Loader(plan, 0, 1, workers=workers) as batches:
            if step:
                batches.seek(step)
            for batch in batches:
                yield next(iter(batch.fields.values()))


class Torch:
    LABELS: ClassVar = {
        "photos": (WORKERS, PERSISTENT),
        "small": (OWN,),
        "arrays": (WORKERS,),
        "strings": (WORKERS,),
    }
    VERSION = version("torch")

    def loader_class(self) -> Any:
        return torch.utils.data.DataLoader

    def batches(self, task: Task, step: int = 0) -> Iterator[Any]:
        loader_class = self.loader_class()
        loader = loader_class(
            task.dataset(),
            batch_size=task.batch,
            shuffle=True,
            drop_last=True,
            num_workers=task.n_workers,
            persistent_workers=task.label == PERSISTENT,
        )
        while True:
            for batch in loader:
                yield batch[0] if isinstance(batch, list) else batch


class Torchdata(Torch):
    LABELS: ClassVar = {
        "photos": (WORKERS,),
        "small": (OWN,),
        "arrays": (WORKERS,),
        "strings": (WORKERS,),
    }

    def __init__(self) -> None:
        self.VERSION = version("torchdata")

    def loader_class(self) -> Any:
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader


class Grain:
    LABELS: ClassVar = {
        "photos": (WORKERS,),
        "small": (OWN,),
        "arrays": (WORKERS,),
        "strings": (WORKERS,),
        "resume": (OWN,),
    }

    def __init__(self) -> None:
        self.VERSION = version("grain")

    def batches(self, task: Task, step: int = 0) -> Iterator[Any]:
        import grain
        from absl import flags

        if not flags.FLAGS.is_parsed():
            flags.FLAGS.mark_as_parsed()  # `absl.app.run` would have parsed them
        samples = grain.MapDataset.source(task.dataset()).shuffle(seed=1).repeat()
        batches = samples.batch(task.batch).to_iter_dataset()
        if task.n_workers:
            batches = batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=task.n_workers))
        iterator = iter(batches)
        if step:
            iterator.set_state(iterator.get_state() | {"next_index": step})
        for batch in iterator:
            yield batch[0] if isinstance(batch, tuple) else batch


PEERS: dict[str, Callable[[], Any]] = {
    "penstock": Penstock,
    "torch": Torch,
    "torchdata": Torchdata,
    "grain": Grain,
}


class Contestant:
    """Answers the requests of `benchmarks.items`."""

    def __init__(self, peer: Any) -> None:
        self._peer = peer
        self._task: Task | None = None
        self._batches: Any = None
        self._opened_s = 0.0

    def hello(self) -> dict[str, Any]:
        return {"version": self._peer.VERSION, "labels": self._peer.LABELS}

    def open(self, **task: Any) -> dict[str, Any]:
        """Make the dataset and the loader; the first batch is not waited for."""
        self._task = Task(**task)
        self._batches = self._peer.batches(self._task)
        self._opened_s = time.perf_counter()
        return {}

    def first(self) -> dict[str, Any]:
        """Seconds from `open` to the first batch, with the making of the dataset."""
        next(self._batches)
        return {"first_s": time.perf_counter() - self._opened_s}

    def turn(self, warm_s: float, seconds: float) -> dict[str, Any]:
        """Take batches for a time, after some that empty what was made ahead."""
        self._take(warm_s)
        before = meter.cpu_s(os.getpid())
        samples, took = self._take(seconds)
        cpu_s = meter.cpu_s(os.getpid()) - before
        return {"samples": samples, "seconds": took, "cpu_s": cpu_s}

    def epoch(self) -> dict[str, Any]:
        """Take the rest of an epoch but its last batches, and measure the memory: workers still run."""
        assert self._task is not None
        n_items = self._task.n * 64 if self._task.row == "arrays" else self._task.n
        steps = n_items // self._task.batch
        for _ in islice(self._batches, steps - 2):
            pass
        return {"memory_bytes": meter.memory_bytes(os.getpid())}

    def resume(self, step: int) -> dict[str, Any]:
        """Begin at a step; count the items that are made for its batch."""
        assert self._task is not None
        datasets.Counted.n_made = 0
        start = time.perf_counter()
        batches = self._peer.batches(self._task, step)
        next(batches)
        seconds = time.perf_counter() - start
        return {"items": datasets.Counted.n_made, "seconds": seconds}

    def close(self) -> dict[str, Any]:
        if self._batches is not None:
            self._batches.close()
        self._batches = None
        return {}

    def _take(self, seconds: float) -> tuple[int, float]:
        samples = 0
        start = time.perf_counter()
        while True:
            samples += size(next(self._batches))
            took = time.perf_counter() - start
            if took >= seconds:
                return samples, took


if __name__ == "__main__":
    serve(lambda: Contestant(PEERS[sys.argv[1]]()))
