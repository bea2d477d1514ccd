"""mosaicml-streaming: MDS shards of its default 64 MiB, its default shuffle, torch's DataLoader over it."""

import os
import sys
import types
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from ..contestant import Task
from ..data import Data
from ..latency_server import BUCKET, CREDENTIALS

NOT_USED = {
    "torchvision.datasets": "VisionDataset",
    "torchvision.transforms.functional": "to_tensor",
    "transformers.feature_extraction_utils": "BatchFeature",
    "transformers.models.auto.tokenization_auto": "AutoTokenizer",
    "transformers.tokenization_utils_base": "BatchEncoding",
}
"""What `import streaming` takes from large packages for its toy data sets and types: nothing of it is called here, and
torchvision's wheel needs a torch with CUDA."""

for path, name in NOT_USED.items():
    parts = path.split(".")
    for depth in range(1, len(parts) + 1):
        package = sys.modules.setdefault(one := ".".join(parts[:depth]), types.ModuleType(one))
        package.__spec__, package.__path__ = ModuleSpec(one, None), []
    setattr(sys.modules[path], name, type(name, (), {}))

import streaming  # noqa: E402

VERSION = version("mosaicml-streaming")
COLUMNS = {
    "images": {"jpg": "bytes"},
    "latents": {"latent": "ndarray:float16:4,64,64", "tokens": "ndarray:int32:77"},
    "tokens": {"tokens": "ndarray:uint16:2048"},
}


def prepare(data: Data, folder: Path) -> None:
    columns = COLUMNS[data.kind]
    with streaming.MDSWriter(out=str(folder), columns=columns) as out:
        for i in range(len(data)):
            values = (data[i],) if data.kind == "images" else data.arrays(i)
            out.write(dict(zip(columns, values, strict=True)))


class Samples(streaming.StreamingDataset):
    """Decodes where its users do: in `__getitem__`."""

    def __init__(self, task: Task) -> None:
        self.kind, self.task = task.data.kind, task
        where = {"local": str(task.folder)}
        if task.store:
            os.environ |= CREDENTIALS | {"S3_ENDPOINT_URL": task.store}
            where = {"local": str(task.scratch), "remote": f"s3://{BUCKET}/{task.folder.name}"}
        super().__init__(shuffle=True, batch_size=task.batch, **where)

    def __getitem__(self, at: Any) -> Any:
        sample = super().__getitem__(at)
        if self.kind != "images":
            return sample["tokens"] if self.kind == "tokens" else tuple(sample.values())
        return self.task.decoder(sample["jpg"]) if self.task.decode else sample["jpg"]


def serve(task: Task, workers: int) -> Iterator[Any]:
    data = Samples(task)
    if task.state:
        data.load_state_dict(task.state)
    loader = DataLoader(
        data,
        task.batch,
        num_workers=workers,
        persistent_workers=workers > 0,
        drop_last=True,
        collate_fn=list if task.data.kind == "images" and not task.decode else None,
    )
    while True:
        for batch in loader:
            yield tuple(batch) if task.data.kind == "latents" else batch


def state(task: Task, samples: int) -> Any:
    return Samples(task).state_dict(samples, from_beginning=True)


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
