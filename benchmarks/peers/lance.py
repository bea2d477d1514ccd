"""lance: `take` of random rows (a full shuffle), and a scan from the start (no shuffle: what reads fastest)."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import torch
from lance.torch.data import SafeLanceDataset, get_safe_loader

from ..contestant import Task
from ..data import CAPTION_TOKENS, LATENT, SIDE_PX, TOKENS, Data

VERSION = lance.__version__
LATENT_SIZE = int(np.prod(LATENT[0]))
SCHEMAS = {
    "images": pa.schema({"jpg": pa.binary()}),
    "latents": pa.schema(
        {"latent": pa.list_(pa.float16(), LATENT_SIZE), "tokens": pa.list_(pa.int32(), CAPTION_TOKENS)}
    ),
    "tokens": pa.schema({"tokens": pa.list_(pa.uint16(), TOKENS)}),
}


def prepare(data: Data, folder: Path) -> None:
    schema = SCHEMAS[data.kind]

    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, len(data), 1000):
            rows = range(first, min(first + 1000, len(data)))
            if data.kind == "images":
                columns = [pa.array([data[i] for i in rows], pa.binary())]
            else:
                fields = zip(*map(data.arrays, rows), strict=True)
                values = [np.concatenate([one.ravel() for one in field]) for field in fields]
                columns = [
                    pa.FixedSizeListArray.from_arrays(pa.array(column), kind.list_size)
                    for column, kind in zip(values, schema.types, strict=True)
                ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    lance.write_dataset(batches(), str(folder), schema=schema)


def delivered(rows: pa.Table | pa.RecordBatch, task: Task) -> Any:
    """Arrow's columns as a training takes them."""
    if task.data.kind == "images":
        jpegs = rows["jpg"].to_pylist()
        return decoded(jpegs) if task.decode else jpegs
    shapes = [(TOKENS,)] if task.data.kind == "tokens" else [LATENT[0], (CAPTION_TOKENS,)]
    fields = tuple(
        torch.from_numpy(flat(column).reshape(rows.num_rows, *shape))
        for column, shape in zip(rows.columns, shapes, strict=True)
    )
    return fields[0] if len(fields) == 1 else fields


def flat(column: Any) -> Any:
    joined = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return np.array(joined.flatten().to_numpy(zero_copy_only=False))


def decoded(jpegs: list[bytes]) -> Any:
    import simplejpeg

    out = np.empty((len(jpegs), SIDE_PX, SIDE_PX, 3), np.uint8)
    for row, jpeg in zip(out, jpegs, strict=True):
        simplejpeg.decode_jpeg(jpeg, buffer=row)
    return out


class Rows(SafeLanceDataset):
    """Its own data set for worker processes, with Arrow's columns in place of Python's objects."""

    def __init__(self, task: Task) -> None:
        super().__init__(str(task.folder))
        self.task = task

    def __getitems__(self, indices: Any) -> Any:
        if self._ds is None:
            self._ds = lance.dataset(self.uri)
        return delivered(self._ds.take(indices), self.task)


def as_it_is(batch: Any) -> Any:
    return batch


def workers(task: Task) -> Iterator[Any]:
    loader = get_safe_loader(
        Rows(task), task.batch, task.workers, shuffle=True, drop_last=True, collate_fn=as_it_is
    )
    while True:
        yield from loader


def taken(task: Task) -> Iterator[Any]:
    data, rng = lance.dataset(str(task.folder)), np.random.default_rng(1)
    while True:
        order = rng.permutation(len(task.data))
        for first in range(0, len(order) - task.batch + 1, task.batch):
            yield delivered(data.take(order[first : first + task.batch]), task)


def scanned(task: Task) -> Iterator[Any]:
    data = lance.dataset(str(task.folder))
    while True:
        for rows in data.to_batches(batch_size=task.batch):
            if rows.num_rows == task.batch:
                yield delivered(rows, task)


WORKERS: dict[str, Callable[[Task], Iterator[Any]]] = {"{} workers, take": workers}
BOTH = WORKERS | {"in process, take": taken, "in process, scan": scanned}
ROWS = {"images": WORKERS, "raw": BOTH, "latents": BOTH, "tokens": BOTH}
