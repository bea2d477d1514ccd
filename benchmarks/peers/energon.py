"""megatron-energon over webdataset shards: a crude data set, a cooker, a buffer of 1,000 samples, sequences of 100."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from megatron.energon import (
    Cooker,
    CrudeSample,
    DefaultTaskEncoder,
    Sample,
    WorkerConfig,
    basic_sample_keys,
    get_loader,
    get_train_dataset,
    stateless,
)
from megatron.energon.flavors import BaseWebdatasetFactory

from ..contestant import Task
from ..data import SIDE_PX, Data, arrays
from . import webdataset

VERSION = version("megatron-energon")
BUFFER, SEQUENCE = 1000, 100


def prepare(data: Data, folder: Path) -> None:
    webdataset.prepare(data, folder)
    shards = sorted(path.name for path in folder.glob("*.tar"))
    BaseWebdatasetFactory.prepare_dataset(folder, shards, split_parts_ratio=[("train", 1.0)], workers=2)
    crude = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
    (folder / ".nv-meta" / "dataset.yaml").write_text(crude)


@dataclass
class Record(Sample):
    data: bytes


@stateless
def cooked(sample: CrudeSample) -> Record:
    (name,) = (name for name in sample if not name.startswith("__"))
    return Record(**basic_sample_keys(sample), data=sample[name])


class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = None
    cookers = (Cooker(cooked),)

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task

    @stateless
    def batch(self, samples: list[Record]) -> Any:
        """Decodes whole batches, in its worker."""
        kind, records = self.task.data.kind, [sample.data for sample in samples]
        if kind != "images":
            fields = zip(*(arrays(kind, record) for record in records), strict=True)
            stacked = tuple(torch.from_numpy(np.stack(field)) for field in fields)
            return stacked[0] if len(stacked) == 1 else stacked
        if not self.task.decode:
            return records
        import simplejpeg

        out = np.empty((len(records), SIDE_PX, SIDE_PX, 3), np.uint8)
        for row, record in zip(out, records, strict=True):
            simplejpeg.decode_jpeg(record, buffer=row)
        return torch.from_numpy(out)

    @stateless
    def encode_batch(self, batch: Any) -> Any:
        return batch


def serve(task: Task, workers: int) -> Iterator[Any]:
    data = get_train_dataset(
        task.folder,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=workers),
        batch_size=task.batch,
        shuffle_buffer_size=BUFFER,
        max_samples_per_sequence=SEQUENCE,
        task_encoder=Encoder(task),
    )
    for batch in get_loader(data):
        yield tuple(batch) if task.data.kind == "latents" else batch


WORKERS = {"{} workers": lambda task: serve(task, task.workers)}
BOTH = WORKERS | {"in process": lambda task: serve(task, 0)}
ROWS = {"images": WORKERS, "raw": BOTH, "latents": BOTH, "tokens": BOTH}
