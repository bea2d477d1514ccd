"""HF datasets: an Arrow table of bytes on disk, shuffled by torch's DataLoader, whose batches come by `__getitems__`.

Arrays are bytes here too: its numpy format would widen them to int64 and float32.
"""

from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from torch.utils.data import DataLoader

from ..contestant import Task
from ..data import SIDE_PX, Data, arrays
from ..exchange import tables

VERSION = version("datasets")


def prepare(data: Data, folder: Path) -> None:
    features = datasets.Features({"record": datasets.Value("binary")})
    with datasets.arrow_writer.ArrowWriter(features=features, path=f"{folder}.arrow") as out:
        for record in data:
            out.write({"record": record})
        out.finalize()
    datasets.Dataset.from_file(f"{folder}.arrow").save_to_disk(str(folder))
    Path(f"{folder}.arrow").unlink()


def raw(rows: list[dict[str, bytes]]) -> list[bytes]:
    return [row["record"] for row in rows]


def decoded(rows: list[dict[str, bytes]]) -> Any:
    import simplejpeg

    out = np.empty((len(rows), SIDE_PX, SIDE_PX, 3), np.uint8)
    for target, row in zip(out, rows, strict=True):
        simplejpeg.decode_jpeg(row["record"], buffer=target)
    return torch.from_numpy(out)


def stacked(rows: list[dict[str, bytes]], kind: str) -> Any:
    samples = [arrays(kind, row["record"]) for row in rows]
    fields = tuple(torch.from_numpy(np.stack(field)) for field in zip(*samples, strict=True))
    return fields[0] if len(fields) == 1 else fields


def serve(task: Task, workers: int) -> Iterator[Any]:
    data = datasets.load_from_disk(str(task.folder))
    kind = task.data.kind
    images = decoded if task.decode else raw
    loader = DataLoader(
        data,
        task.batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        collate_fn=images if kind == "images" else partial(stacked, kind=kind),
    )
    while True:
        yield from loader


def streamed(task: Task) -> Iterator[Any]:
    """A table of Parquet, streamed: its files in a random order, and a buffer of 1,000 rows that it shuffles."""
    place = tables.make(task.data, task.folder.with_name(f"{task.folder.name}-table"))
    files = sorted(map(str, place.iterdir()))
    given = {"data_files": files, "split": "train", "streaming": True, "cache_dir": str(task.scratch)}
    data = datasets.load_dataset("parquet", **given).shuffle(seed=1, buffer_size=1000)
    loader = DataLoader(
        data,
        task.batch,
        drop_last=True,
        num_workers=task.workers,
        persistent_workers=True,
        collate_fn=lambda rows: [row[tables.COLUMN] for row in rows],
    )
    while True:
        yield from loader


WORKERS = {"{} workers": lambda task: serve(task, task.workers)}
BOTH = WORKERS | {"in process": lambda task: serve(task, 0)}
ROWS = {"images": WORKERS, "raw": BOTH, "latents": BOTH, "tokens": BOTH}
ROWS["parquet"] = {"streaming": streamed}
