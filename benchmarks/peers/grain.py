"""grain over ArrayRecord files written for random access (group_size 1): shuffle, map, batch, worker processes.

With no worker processes grain reads and decodes in threads of its own, 16 by default: that is its way "in process".
"""

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grain
from absl import flags
from array_record.python.array_record_module import ArrayRecordWriter

from ..contestant import Task
from ..data import Data, arrays

flags.FLAGS.mark_as_parsed()  # grain asks for its own, which `absl.app.run` would have parsed
VERSION = version("grain")
PER_FILE = 2000


def prepare(data: Data, folder: Path) -> None:
    folder.mkdir(parents=True)
    for first in range(0, len(data), PER_FILE):
        out = ArrayRecordWriter(f"{folder}/{first // PER_FILE:05d}.array_record", "group_size:1")
        for i in range(first, min(first + PER_FILE, len(data))):
            out.write(data[i])
        out.close()


def serve(task: Task, workers: int) -> Iterator[Any]:
    kind = task.data.kind
    raw = kind == "images" and not task.decode
    source = grain.sources.ArrayRecordDataSource(sorted(map(str, task.folder.glob("*.array_record"))))
    samples = grain.MapDataset.source(source).shuffle(seed=1).repeat()
    if task.decode:
        samples = samples.map(task.decoder)
    elif not raw:
        samples = samples.map(lambda record: arrays(kind, record))
    batches = samples.batch(task.batch, batch_fn=list if raw else None).to_iter_dataset(
        grain.ReadOptions(num_threads=1 if workers else 16, prefetch_buffer_size=4 if workers else 16)
    )
    if workers:
        batches = batches.mp_prefetch(
            grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=4)
        )
    for batch in batches:
        yield batch[0] if kind == "tokens" else batch


WORKERS = {"{} workers": lambda task: serve(task, task.workers)}
BOTH = WORKERS | {"in process, its threads": lambda task: serve(task, 0)}
ROWS = {"images": BOTH, "crops": BOTH, "raw": BOTH, "latents": BOTH, "tokens": BOTH}
ROWS["training"] = WORKERS
