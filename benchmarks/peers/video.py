"""torchcodec: a decoder per clip with exact seeks and one FFmpeg thread, in torch's DataLoader or in plain threads."""

import random
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from torchcodec.decoders import VideoDecoder

from ..clips import FRAMES, WINDOW
from ..contestant import Task
from ..data import Data
from . import torch_files

VERSION = version("torchcodec")


def prepare(data: Data, folder: Path) -> None:
    torch_files.prepare(data, folder)


class Clips(Dataset[Any]):
    """A random window of a clip."""

    def __init__(self, task: Task) -> None:
        self.paths = torch_files.paths(task.folder, len(task.data))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        decoder = VideoDecoder(
            self.paths[index], dimension_order="NHWC", num_ffmpeg_threads=1, seek_mode="exact"
        )
        first = random.randrange(FRAMES - WINDOW + 1)
        return decoder.get_frames_in_range(first, first + WINDOW).data


def workers(task: Task) -> Iterator[Any]:
    loader = DataLoader(
        Clips(task),
        task.batch,
        shuffle=True,
        drop_last=True,
        num_workers=task.workers,
        persistent_workers=True,
    )
    while True:
        yield from loader


def threads(task: Task) -> Iterator[Any]:
    """A batch per thread, two ahead."""
    clips = Clips(task)

    def batch() -> Any:
        return torch.stack([clips[random.randrange(len(clips))] for _ in range(task.batch)])

    with ThreadPoolExecutor(task.workers) as pool:
        ahead = deque(pool.submit(batch) for _ in range(2 * task.workers))
        while True:
            ahead.append(pool.submit(batch))
            yield ahead.popleft().result()


ROWS = {"windows": {"{} workers": workers, "{} threads": threads}}
