"""litdata: chunks of 64 MB made by `optimize`, read where they lie, its own StreamingDataLoader."""

from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import litdata
import torch
from litdata.streaming import downloader
from litdata.streaming.item_loader import TokensLoader

from ..contestant import Task
from ..data import TOKENS, Data
from ..latency_server import BUCKET, CREDENTIALS

VERSION = version("litdata")
CHUNK = "64MB"


def record(data: Data, i: int) -> Any:
    if data.kind == "images":
        return {"jpg": data[i]}
    fields = [torch.from_numpy(field.copy()) for field in data.arrays(i)]
    return fields[0] if data.kind == "tokens" else dict(zip(("latent", "tokens"), fields, strict=True))


def prepare(data: Data, folder: Path) -> None:
    tokens = data.kind == "tokens"
    litdata.optimize(
        partial(record, data),
        inputs=list(range(len(data))),
        output_dir=str(folder),
        num_workers=2,
        verbose=False,
        **(
            {"chunk_size": 8192 * TOKENS, "item_loader": TokensLoader()} if tokens else {"chunk_bytes": CHUNK}
        ),
    )


def delivered(sample: Any, task: Task) -> Any:
    if task.data.kind != "images":
        return sample if task.data.kind == "tokens" else (sample["latent"], sample["tokens"])
    return task.decoder(sample["jpg"]) if task.decode else sample["jpg"]


def opened(task: Task, workers: int) -> Any:
    kind = task.data.kind
    where: dict[str, Any] = {"input_dir": str(task.folder)}
    if task.store:
        downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = (
            True  # nothing public says that a server has no TLS
        )
        keys = {name.lower(): value for name, value in CREDENTIALS.items()}
        keys["region_name"] = keys.pop("aws_default_region")
        where = {
            "input_dir": f"s3://{BUCKET}/{task.folder.name}",
            "cache_dir": str(task.scratch),
            "storage_options": keys | {"endpoint_url": task.store},
        }
    data = litdata.StreamingDataset(
        **where,
        shuffle=True,
        drop_last=True,
        item_loader=TokensLoader(block_size=TOKENS) if kind == "tokens" else None,
        transform=partial(delivered, task=task),
    )
    raw = kind == "images" and not task.decode
    return litdata.StreamingDataLoader(
        data,
        batch_size=task.batch,
        num_workers=workers,
        persistent_workers=workers > 0,
        drop_last=True,
        **({"collate_fn": list} if raw else {}),
    )


def serve(task: Task, workers: int) -> Iterator[Any]:
    loader = opened(task, workers)
    if task.state:
        loader.load_state_dict(task.state)
    while True:
        for batch in loader:
            yield tuple(batch) if task.data.kind == "latents" else batch


def state(task: Task, samples: int) -> Any:
    """Its loader counts what it has handed out, so that much is read."""
    loader = opened(task, task.workers)
    for _ in islice(loader, samples // task.batch):
        pass
    return loader.state_dict()


WORKERS = {"{} workers": lambda task: serve(task, task.workers)}
BOTH = WORKERS | {"in process": lambda task: serve(task, 0)}
ROWS = dict.fromkeys(("images", "crops", "store", "resume"), WORKERS) | dict.fromkeys(
    ("raw", "latents", "tokens"), BOTH
)
ROWS["training"] = WORKERS
