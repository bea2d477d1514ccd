"""penstock itself, in the project's own environment."""

import inspect
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import obstore  # noqa: F401 - imported before anything is timed, as the peers' modules are
import torch

import loader
from loader.modalities.video.packet_table import index_packets

from ..clips import WINDOW
from ..contestant import Task
from ..data import Data
from ..exchange import tables
from ..latency_server import BUCKET, CREDENTIALS
from ..photos import SIDE_PX
from ..rows import AS_IT_COMES

VERSION = ""
SOURCES = 32
OPEN: list[loader.Loader] = []
FIELDS = {
    "images": ["jpg"],
    "clips": ["mp4"],
    "latents": ["latent.npy", "tokens.npy"],
    "tokens": ["tokens.npy"],
}


def prepare(data: Data, folder: Path) -> None:
    write(loader.Root(folder), "bench", data, range(len(data)))


def write(root: loader.Root, name: str, data: Data, ordinals: range) -> None:
    groups = {"mp4.packets": "media_index"} if data.kind == "clips" else {}
    with root.write(name, groups=groups) as writer:
        for i in ordinals:
            writer.add(f"{i:06d}", sample(data, i))


def sample(data: Data, i: int) -> dict[str, Any]:
    """Field -> value. A clip comes with its table of packets."""
    if data.kind == "clips":
        return {"mp4": data[i], "mp4.packets": index_packets(data[i])}
    values = (data[i],) if data.kind == "images" else data.arrays(i)
    return dict(zip(FIELDS[data.kind], values, strict=True))


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
    decode: Any = task.decode or task.data.kind != "images"
    if task.crop:
        decode = {"jpg": task.decoder}
    elif task.data.kind == "clips":
        decode = {"mp4": loader.video(frames=WINDOW)}
    with loader.Loader(plan(task, root_of(task), names), 0, 1, decode=decode, **runtime) as batches:
        OPEN.append(batches)
        if task.state:
            batches.load_state_dict(task.state)
        for batch in batches:
            yield batch[fields[0]] if len(fields) == 1 else tuple(batch[field] for field in fields)


def choice() -> str:
    """The executor of the Loader that was opened last, and its workers."""
    return f"{OPEN[-1].executor}, {OPEN[-1].workers}" if OPEN else ""


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
    from loader.storage import open_store
    from penstock.formats.registration.register import register
    from penstock.formats.run_export import export

    place = task.folder.with_name(f"{task.folder.name}-as-{format}")
    folder = task.folder.with_name(f"{task.folder.name}-registered-{format}")
    if not folder.exists():
        place.mkdir()
        export(root_of(task).open("bench@latest"), format, open_store(str(place)))
        register(loader.Root(folder), format, place, "bench")
    return serve(replace(task, folder=folder), workers=task.workers)


def over_parquet(share: int, task: Task) -> Iterator[Any]:
    """A registered table. share: the cache holds one such part of it, as of a table that is larger."""
    from loader.dataset.columnar.parquet_chunks import CHUNKS
    from loader.order.random import lanes
    from penstock.formats.registration.register import register

    place = tables.make(task.data, task.folder.with_name(f"{task.folder.name}-table"))
    folder = task.folder.with_name(f"{task.folder.name}-over-table")
    if not folder.exists():
        register(loader.Root(folder), "parquet", place, "bench")
    if share > 1:
        lanes.LIVE_CHUNK_BYTES = int(task.data.offsets[-1]) // (2 * share)
        CHUNKS.capacity = 2 * lanes.LIVE_CHUNK_BYTES
    return serve(replace(task, folder=folder), workers=task.workers)


def default(task: Task) -> Iterator[Any]:
    """As `Loader` chooses by itself."""
    return serve(task)


def on_device(task: Task) -> Iterator[Any]:
    """The Loader copies to the device, as docs/training.md shows first."""
    return serve(task, device="cuda")


def made_into_bytes(task: Task) -> Iterator[Any]:
    """Every sample of a column is asked for."""
    return map(list, in_process(task))


class OwnCrops:
    """`loader.random_resized_crop`, as it comes. A crop is right if the training's own thread makes the same one."""

    def __init__(self, task: Task) -> None:
        decode = {"jpg": loader.random_resized_crop((SIDE_PX, SIDE_PX))}
        planned = plan(task, root_of(task))
        self._batches = loader.Loader(planned, 0, 1, decode=decode)
        self._again = loader.Loader(planned, 0, 1, decode=decode, workers=0)
        self._step = 0
        OPEN.append(self._batches)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = next(self._batches)
        self._step = batch.step
        return batch["jpg"]

    def find(self, crops: Any) -> list[int | None]:
        again = self._again.batch_at(self._step)
        equal = [bool((a == b).all()) for a, b in zip(crops, again["jpg"], strict=True)]
        return [int(key) if same else None for same, (_, key) in zip(equal, again.ids, strict=True)]

    def close(self) -> None:
        self._batches.close()
        self._again.close()


REMOTE = {"{} threads": threads, "{} worker processes": processes}
WAYS = {AS_IT_COMES: default} | REMOTE | {"in process": in_process}
ROWS = dict.fromkeys(("images", "crops", "raw", "windows", "latents", "tokens"), WAYS) | dict.fromkeys(
    ("store", "resume"), REMOTE
)
if hasattr(loader, "random_resized_crop"):
    ROWS["crops"] = WAYS | {f"{AS_IT_COMES}, loader.random_resized_crop": OwnCrops}
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
ROWS["training"] = {AS_IT_COMES: default} | REMOTE
if torch.cuda.is_available() and "device" in inspect.signature(loader.Loader).parameters:
    ROWS["training"] = {f'{AS_IT_COMES}, device="cuda"': on_device} | ROWS["training"]
