"""webdataset as its documentation writes it: shards of 1,000, shards shuffled, a buffer of 1,000 samples, WebLoader."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset as wds

from ..contestant import Task
from ..data import Data, arrays
from ..latency_server import BUCKET

VERSION = wds.__version__
PER_SHARD, BUFFER = 1000, 1000
SUFFIX = {"images": "jpg", "latents": "bin", "tokens": "bin"}


def prepare(data: Data, folder: Path) -> None:
    folder.mkdir(parents=True)
    with wds.ShardWriter(f"{folder}/%05d.tar", maxcount=PER_SHARD, verbose=0) as out:
        for i in range(len(data)):
            out.write({"__key__": f"{i:06d}", SUFFIX[data.kind]: data[i]})


def stacked(samples: list[tuple[Any]]) -> Any:
    return torch.from_numpy(np.stack([one for (one,) in samples]))


def stacked_fields(samples: list[tuple[Any]]) -> Any:
    return tuple(
        torch.from_numpy(np.stack(field)) for field in zip(*(one for (one,) in samples), strict=True)
    )


def plain(samples: list[tuple[bytes]]) -> list[bytes]:
    return [one for (one,) in samples]


def first(samples: list[tuple[Any]]) -> Any:
    (out,) = stacked_fields(samples)
    return out


def pipeline(task: Task, urls: list[str]) -> Any:
    kind = task.data.kind
    data = wds.WebDataset(urls, shardshuffle=len(urls), detshuffle=True, empty_check=False)
    data = data.repeat().shuffle(BUFFER)
    if task.state:  # the samples before it, which each worker reads and drops
        data = data.slice(task.state // task.workers, None)
    data = data.to_tuple(SUFFIX[kind])
    if kind == "images":
        data = data.map_tuple(task.decoder) if task.decode else data
        return data.batched(task.batch, collation_fn=stacked if task.decode else plain)
    collate = first if kind == "tokens" else stacked_fields
    return data.map_tuple(partial(arrays, kind)).batched(task.batch, collation_fn=collate)


def serve(task: Task, workers: int) -> Iterator[Any]:
    urls = sorted(map(str, task.folder.glob("*.tar")))
    if task.store:
        urls = [f"{task.store}/{BUCKET}/{task.folder.name}/{Path(url).name}" for url in urls]
    for batch in wds.WebLoader(pipeline(task, urls), batch_size=None, num_workers=workers):
        yield tuple(batch) if task.data.kind == "latents" else batch


def state(task: Task, samples: int) -> Any:
    return samples


WORKERS = {"{} workers": lambda task: serve(task, task.workers)}
BOTH = WORKERS | {"in process": lambda task: serve(task, 0)}
ROWS = {
    "images": WORKERS,
    "crops": WORKERS,
    "raw": BOTH,
    "exchange": WORKERS,
    "latents": BOTH,
    "tokens": BOTH,
    "store": WORKERS,
    "resume": WORKERS,
}
ROWS["training"] = WORKERS
