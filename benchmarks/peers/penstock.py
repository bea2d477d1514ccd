"""penstock itself, in the project's own environment."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import loader

from ..contestant import Task
from ..data import Data

VERSION = ""
FIELDS = {"images": ["jpg"], "latents": ["latent.npy", "tokens.npy"], "tokens": ["tokens.npy"]}


def prepare(data: Data, folder: Path) -> None:
    fields = FIELDS[data.kind]
    with loader.Root(folder).write("bench") as writer:
        for i in range(len(data)):
            values = (data[i],) if data.kind == "images" else data.arrays(i)
            writer.add(f"{i:06d}", dict(zip(fields, values, strict=True)))


def plan(task: Task, root: loader.Root) -> loader.Plan:
    version = root.open("bench@latest")
    view = version.select(*FIELDS[task.data.kind])
    return loader.plan({"bench": view}, seed=1, global_batch=task.batch)


def serve(task: Task, **runtime: Any) -> Iterator[Any]:
    fields = FIELDS[task.data.kind]
    decode = task.decode or task.data.kind != "images"
    with loader.Loader(plan(task, loader.Root(task.folder)), 0, 1, decode=decode, **runtime) as batches:
        for batch in batches:
            yield batch[fields[0]] if len(fields) == 1 else tuple(batch[field] for field in fields)


def threads(task: Task) -> Iterator[Any]:
    return serve(task, workers=task.workers)


def processes(task: Task) -> Iterator[Any]:
    return serve(task, workers=task.workers, executor="processes")


def in_process(task: Task) -> Iterator[Any]:
    return serve(task, workers=0)


WAYS = {"2 threads": threads, "in process": in_process}
if "executor" in inspect.signature(loader.Loader).parameters:
    WAYS["2 worker processes"] = processes
ROWS = dict.fromkeys(("images", "raw", "latents", "tokens"), WAYS)
