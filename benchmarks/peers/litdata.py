"""litdata: chunks of 64 MB made by `optimize`, read where they lie, its own StreamingDataLoader."""

from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import litdata
import torch
from litdata.streaming.item_loader import TokensLoader

from ..contestant import Task
from ..data import TOKENS, Data

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


def delivered(sample: Any, kind: str, decode: bool) -> Any:
    if kind != "images":
        return sample if kind == "tokens" else (sample["latent"], sample["tokens"])
    if not decode:
        return sample["jpg"]
    import simplejpeg

    return simplejpeg.decode_jpeg(sample["jpg"])


def serve(task: Task, workers: int, where: Any, **options: Any) -> Iterator[Any]:
    kind = task.data.kind
    data = litdata.StreamingDataset(
        where,
        shuffle=True,
        drop_last=True,
        item_loader=TokensLoader(block_size=TOKENS) if kind == "tokens" else None,
        transform=partial(delivered, kind=kind, decode=task.decode),
        **options,
    )
    raw = kind == "images" and not task.decode
    loader = litdata.StreamingDataLoader(
        data,
        batch_size=task.batch,
        num_workers=workers,
        persistent_workers=workers > 0,
        drop_last=True,
        **({"collate_fn": list} if raw else {}),
    )
    while True:
        for batch in loader:
            yield tuple(batch) if kind == "latents" else batch


WORKERS = {"2 workers": lambda task: serve(task, task.workers, str(task.folder))}
BOTH = WORKERS | {"in process": lambda task: serve(task, 0, str(task.folder))}
ROWS = {"images": WORKERS, "raw": BOTH, "latents": BOTH, "tokens": BOTH}
