"""torch's DataLoader with its own shuffle: over a file per image, or a memory map of equal records."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from ..clips import random_window
from ..contestant import Task
from ..data import LATENT, Data

VERSION = torch.__version__


def prepare(data: Data, folder: Path) -> None:
    """A file per image or clip, a thousand to a folder; equal records are mapped where they lie."""
    folder.mkdir(parents=True)
    if data.kind in ("images", "clips"):
        for path, record in zip(map(Path, paths(folder, len(data))), data, strict=True):
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(record)


def paths(folder: Path, n: int) -> list[str]:
    return [f"{folder}/{i // 1000:03d}/{i:06d}" for i in range(n)]


class Files(Dataset[Any]):
    def __init__(self, task: Task) -> None:
        self.paths = paths(task.folder, len(task.data))
        self.task = task

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        with open(self.paths[index], "rb") as file:
            data = file.read()
        return torch.from_numpy(self.task.decoder(data)) if self.task.decode else data


class Clips(Dataset[Any]):
    """A random window of a clip, by PyAV."""

    def __init__(self, task: Task) -> None:
        self.paths = paths(task.folder, len(task.data))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(random_window(self.paths[index]))


class Mapped(Dataset[Any]):
    """A sample at a time, as most write it."""

    def __init__(self, data: Data) -> None:
        rows = np.memmap(data.path, np.uint8, "r").reshape(len(data), -1)
        if data.kind == "tokens":
            self.fields = [rows.view(np.uint16)]
        else:
            shape, dtype = LATENT
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            self.fields = [
                rows[:, :size].view(dtype).reshape(len(rows), *shape),
                rows[:, size:].view(np.int32),
            ]

    def __len__(self) -> int:
        return len(self.fields[0])

    def __getitem__(self, index: int) -> Any:
        fields = tuple(torch.from_numpy(field[index].copy()) for field in self.fields)
        return fields[0] if len(fields) == 1 else fields


class MappedBatches(Mapped):
    """A batch at a time: `__getitems__`, which torch's fetcher asks for first."""

    def __getitems__(self, indices: Sequence[int]) -> Any:
        fields = tuple(torch.from_numpy(field[indices]) for field in self.fields)
        return fields[0] if len(fields) == 1 else fields


def as_it_is(batch: Any) -> Any:
    return batch


def serve(task: Task, workers: int, whole_batches: bool = False, pinned: bool = False) -> Iterator[Any]:
    if task.data.kind == "images":
        source: Dataset[Any] = Files(task)
    elif task.data.kind == "clips":
        source = Clips(task)
    else:
        source = (MappedBatches if whole_batches else Mapped)(task.data)
    raw = task.data.kind == "images" and not task.decode
    loader = DataLoader(
        source,
        task.batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        collate_fn=as_it_is if raw or whole_batches else None,
        pin_memory=pinned,
    )
    while True:
        for batch in loader:
            yield tuple(batch) if task.data.kind == "latents" else batch


WORKERS = {"{} workers": lambda task: serve(task, task.workers)}
ONE_BY_ONE = WORKERS | {"in process": lambda task: serve(task, 0)}
MAPPED = ONE_BY_ONE | {
    "{} workers, a batch per read": lambda task: serve(task, task.workers, True),
    "in process, a batch per read": lambda task: serve(task, 0, True),
}
WINDOWS = {"{} workers, PyAV": WORKERS["{} workers"]}
ROWS = {
    "images": WORKERS,
    "crops": WORKERS,
    "windows": WINDOWS,
    "raw": ONE_BY_ONE,
    "latents": MAPPED,
    "tokens": MAPPED,
}
ROWS["training"] = {"{} workers, pin_memory": lambda task: serve(task, task.workers, pinned=True)}
