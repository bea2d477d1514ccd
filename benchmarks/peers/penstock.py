"""penstock itself, in the project's own environment."""

import inspect
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import obstore  # noqa: F401 - imported before anything is timed, as the peers' modules are
import torch  # noqa: F401

import loader

from ..contestant import Task
from ..data import Data
from ..exchange import tables
from ..latency_server import BUCKET, CREDENTIALS

VERSION = ""
SOURCES = 32
FIELDS = {"images": ["jpg"], "latents": ["latent.npy", "tokens.npy"], "tokens": ["tokens.npy"]}


def prepare(data: Data, folder: Path) -> None:
    write(loader.Root(folder), "bench", data, range(len(data)))


def write(root: loader.Root, name: str, data: Data, ordinals: range) -> None:
    fields = FIELDS[data.kind]
    with root.write(name) as writer:
        for i in ordinals:
            values = (data[i],) if data.kind == "images" else data.arrays(i)
            writer.add(f"{i:06d}", dict(zip(fields, values, strict=True)))


def plan(task: Task, root: loader.Root, names: Sequence[str] = ("bench",)) -> loader.Plan:
    views = {name: root.open(f"{name}@latest").select(*FIELDS[task.data.kind]) for name in names}
    return loader.plan(views, seed=1, global_batch=task.batch, allow_repeats=True)


def root_of(task: Task) -> loader.Root:
    if not task.store:
        return loader.Root(task.folder)
    os.environ |= CREDENTIALS | {"AWS_ENDPOINT_URL": task.store}  # worker processes see it too
    return loader.Root(f"s3://{BUCKET}/{task.folder.name}")


def serve(task: Task, names: Sequence[str] = ("bench",), **runtime: Any) -> Iterator[Any]:
    fields = FIELDS[task.data.kind]
    decode = task.decode or task.data.kind != "images"
    with loader.Loader(plan(task, root_of(task), names), 0, 1, decode=decode, **runtime) as batches:
        if task.state:
            batches.load_state_dict(task.state)
        for batch in batches:
            yield batch[fields[0]] if len(fields) == 1 else tuple(batch[field] for field in fields)


def state(task: Task, samples: int) -> Any:
    with loader.Loader(plan(task, root_of(task)), 0, 1) as batches:
        batches.seek(samples // task.batch)
        return batches.state_dict()


def threads(task: Task) -> Iterator[Any]:
    return serve(task, workers=task.workers)


def processes(task: Task) -> Iterator[Any]:
    return serve(task, workers=task.workers, executor="processes")


def in_process(task: Task) -> Iterator[Any]:
    return serve(task, workers=0)


def mixture(task: Task) -> Iterator[Any]:
    """The same samples, shared out over data sets that are written first."""
    folder = task.folder.with_name(f"{task.folder.name}-mixture")
    names = [f"bench-{source:02d}" for source in range(SOURCES)]
    if not folder.exists():
        for source, name in enumerate(names):
            write(loader.Root(folder), name, task.data, range(source, len(task.data), SOURCES))
    return serve(replace(task, folder=folder), names, workers=task.workers)


def registered(format: str, task: Task) -> Iterator[Any]:
    """The same samples in another format, trained on where they lie."""
    from loader.foreign.register import register
    from loader.storage import open_store
    from penstock.sources.run_export import export

    place = task.folder.with_name(f"{task.folder.name}-as-{format}")
    folder = task.folder.with_name(f"{task.folder.name}-registered-{format}")
    if not folder.exists():
        place.mkdir()
        export(root_of(task).open("bench@latest"), format, open_store(str(place)))
        register(loader.Root(folder), format, place, "bench")
    return serve(replace(task, folder=folder), workers=task.workers)


def over_parquet(share: int, task: Task) -> Iterator[Any]:
    """A registered table. share: the cache holds one such part of it, as of a table that is larger."""
    from loader.dataset.columnar.chunk_cache import CHUNKS
    from loader.foreign.register import register
    from loader.order.random import lanes

    place = tables.make(task.data, task.folder.with_name(f"{task.folder.name}-table"))
    folder = task.folder.with_name(f"{task.folder.name}-over-table")
    if not folder.exists():
        register(loader.Root(folder), "parquet", place, "bench")
    if share > 1:
        lanes.LIVE_CHUNK_BYTES = int(task.data.offsets[-1]) // (2 * share)
        CHUNKS.capacity_bytes = 2 * lanes.LIVE_CHUNK_BYTES
    return serve(replace(task, folder=folder), workers=task.workers)


def default(task: Task) -> Iterator[Any]:
    """As `Loader` chooses by itself."""
    return serve(task)


def made_into_bytes(task: Task) -> Iterator[Any]:
    """Every sample of a column is asked for."""
    return map(list, in_process(task))


WAYS = {"2 threads": threads, "in process": in_process, "auto": default}
if "executor" in inspect.signature(loader.Loader).parameters:
    WAYS["2 worker processes"] = processes
REMOTE = {label: way for label, way in WAYS.items() if label not in ("in process", "auto")}
ROWS = dict.fromkeys(("images", "raw", "latents", "tokens"), WAYS) | dict.fromkeys(
    ("store", "resume"), REMOTE
)
ROWS["raw"] = WAYS | {"in process, made into bytes": made_into_bytes}
ROWS["exchange"] = {"native": threads} | {
    f"registered {format}": partial(registered, format) for format in ("webdataset", "mds")
}
ROWS["parquet"] = {
    "native": threads,
    "Parquet": partial(over_parquet, 1),
    "Parquet (cache: an eighth)": partial(over_parquet, 8),
}
ROWS["mixture"] = {"1 source": threads, f"{SOURCES} sources": mixture}
