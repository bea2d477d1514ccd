"""spdl: a pipeline of threads over whole batches, with a batch function written by hand, as its documentation advises.

The batch function reads (a file per image; a mapped file of equal records) and decodes into one array per batch.
"""

from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from spdl.pipeline import PipelineBuilder

from ..contestant import Task
from ..data import SIDE_PX, Data
from . import torch_files
from .limit import batches_of_rows

VERSION = version("spdl")


def prepare(data: Data, folder: Path) -> None:
    torch_files.prepare(data, folder)


def files(task: Task) -> Callable[[Sequence[int]], Any]:
    import simplejpeg

    paths = torch_files.paths(task.folder, len(task.data))

    def read(index: int) -> bytes:
        with open(paths[index], "rb") as file:
            return file.read()

    def decoded(wanted: Sequence[int]) -> Any:
        out = np.empty((len(wanted), SIDE_PX, SIDE_PX, 3), np.uint8)
        for row, index in zip(out, wanted, strict=True):
            simplejpeg.decode_jpeg(read(index), buffer=row)
        return out

    def cropped(wanted: Sequence[int]) -> Any:
        return np.stack([task.decoder(read(index)) for index in wanted])

    if task.crop:
        return cropped
    return decoded if task.decode else lambda wanted: [read(index) for index in wanted]


def serve(task: Task) -> Iterator[Any]:
    mapped = task.data.kind != "images"
    work = torch_files.MappedBatches(task.data).__getitems__ if mapped else files(task)
    builder = PipelineBuilder().add_source(batches_of_rows(len(task.data), task.batch))
    pipeline = (
        builder.pipe(work, concurrency=task.workers, output_order="input")
        .add_sink(8)
        .build(num_threads=task.workers)
    )
    with pipeline.auto_stop():
        yield from pipeline


THREADS = {"{} threads, a batch function": serve}
ROWS = dict.fromkeys(("images", "crops", "raw", "latents", "tokens"), THREADS)
ROWS["training"] = THREADS
