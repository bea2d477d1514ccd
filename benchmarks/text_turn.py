"""One contestant's turn of `benchmarks.text`, in a process of its own: `python -P benchmarks/text_turn.py TASK`.

It needs only `loader` and numpy, so the penstock of another checkout runs it too.
"""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import loader

TOKENS = "tokens.npy"
MASK = "mask.npy"
PENSTOCK = "penstock"
GREEDY = "greedy loop"
STORED = "stored sequences"
LAID_OUT = "stored sequences with ids and masks"
STARTS = "starts.npy"
BATCH_TOKENS = 65_536
"""Tokens of a batch: 32 sequences of 2,048."""
N_WARM_STEPS = 3

Document = tuple[np.ndarray, np.ndarray]
"""int32 [T] tokens, and bool [T], True where a loss counts."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A measurement. Documents of one kind and number are the same in every process."""

    contestant: str
    folder: str
    """Folder with a root for each kind of documents."""
    kind: str
    """"even" or "long-tailed"."""
    n_documents: int
    length: int
    """Tokens of a sequence."""


def documents(kind: str, n_documents: int) -> Iterator[Document]:
    """Yield documents of 300 tokens on average: "even" ones of 200 to 400, "long-tailed" ones of 1 to 2,048."""
    draw = np.random.default_rng(1)
    if kind == "even":
        lengths = draw.integers(200, 401, n_documents)
    else:
        # With this sigma the mean is exp(0.6) times the median, before the cut.
        lengths = draw.lognormal(np.log(170), 1.1, n_documents).astype(np.int64)
        lengths = lengths.clip(1, 2_048)
    for length in lengths.tolist():
        tokens = draw.integers(0, 150_000, length, np.int32)
        mask = np.arange(length) >= length // 5
        yield tokens, mask


def write(folder: Path, kind: str, n_documents: int) -> None:
    """Write the documents as `text@1` of a root."""
    root = loader.Root(folder)
    root.create()
    with root.write("text") as writer:
        for number, (tokens, mask) in enumerate(documents(kind, n_documents)):
            writer.add(f"{number:07d}", {TOKENS: tokens, MASK: mask})


def greedy_sequences(rows: list[Document], length: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield sequences of documents in memory. A document that does not fit begins the next one."""
    offset = length  # the first document begins a sequence
    segment = 0
    sequence: dict[str, np.ndarray] = {}
    for tokens, mask in rows:
        stop = offset + len(tokens)
        if stop > length:
            if sequence:
                yield sequence
            sequence = {
                TOKENS: np.zeros(length, np.int32),
                MASK: np.zeros(length, np.bool_),
                "position_ids": np.zeros(length, np.int32),
                "segment_ids": np.zeros(length, np.int32),
                "loss_mask": np.zeros(length, np.bool_),
            }
            offset = 0
            stop = len(tokens)
            segment = 0
        segment += 1
        sequence[TOKENS][offset:stop] = tokens
        sequence[MASK][offset:stop] = mask
        sequence["position_ids"][offset:stop] = np.arange(len(tokens))
        sequence["segment_ids"][offset:stop] = segment
        sequence["loss_mask"][offset + 1 : stop] = True
        offset = stop
    if sequence:
        yield sequence


def measure_greedy(task: Task) -> dict[str, Any]:
    rows = list(documents(task.kind, task.n_documents))
    start_s = time.process_time()
    n_sequences = 0
    n_tokens = 0
    for sequence in greedy_sequences(rows, task.length):
        n_sequences += 1
        n_tokens += int(sequence[MASK].sum())
    spent_s = time.process_time() - start_s
    return {"sequences": n_sequences, "tokens": n_tokens, "cpu_s": spent_s}


def measure_penstock(task: Task) -> dict[str, Any]:
    """Measure an epoch of packed batches without the first steps, which fill caches."""
    version = loader.Root(Path(task.folder) / task.kind).open("text@1")
    view = version.select(TOKENS, MASK)
    pack = loader.pack(TOKENS, task.length, beside={MASK: 0})
    batch = BATCH_TOKENS // task.length
    plan = loader.plan({"text": view}, seed=1, global_batch=batch, boundary="mask", pack=pack)
    return measure_epoch(plan, {})


def sampled_tokens(batch: loader.Batch) -> int:
    """Return the number of tokens of the mask; 0 without one."""
    if MASK not in batch:
        return 0
    return int(batch[MASK].sum())


def measure_epoch(plan: loader.Plan, options: dict[str, Any]) -> dict[str, Any]:
    """Measure an epoch without the first steps. options: arguments of the Loader."""
    n_sequences = 0
    n_tokens = 0
    with loader.Loader(plan, 0, 1, epochs=1, workers=0, framework="numpy", **options) as batches:
        for _ in range(N_WARM_STEPS):
            n_tokens += sampled_tokens(next(batches))
        start_s = time.process_time()
        for batch_of_step in batches:
            n_sequences += int(batch_of_step.mask.sum())
            n_tokens += sampled_tokens(batch_of_step)
        spent_s = time.process_time() - start_s
    return {"sequences": n_sequences, "tokens": n_tokens, "cpu_s": spent_s}


def stored_dataset(length: int) -> str:
    """Return the name of the dataset of stored sequences."""
    return f"stored-{length}"


def measure_stored(task: Task) -> dict[str, Any]:
    """Measure an epoch of stored sequences as `measure_penstock` does: tokens, or all that a packed batch has."""
    dataset = stored_dataset(task.length)
    version = loader.Root(Path(task.folder) / task.kind).open(f"{dataset}@1")
    fields = [TOKENS]
    options: dict[str, Any] = {}
    if task.contestant == LAID_OUT:
        fields += [MASK, STARTS]
        options["transform"] = loader.laid_out(TOKENS)
    batch = BATCH_TOKENS // task.length
    plan = loader.plan({"text": version.select(*fields)}, seed=1, global_batch=batch, boundary="mask")
    return measure_epoch(plan, options)


def main() -> None:
    task = Task(**json.loads(sys.argv[1]))
    if task.contestant == GREEDY:
        result = measure_greedy(task)
    elif task.contestant in (STORED, LAID_OUT):
        result = measure_stored(task)
    else:
        result = measure_penstock(task)
    result["checkout"] = str(Path(loader.__file__).parents[1])
    print(json.dumps(result))


if __name__ == "__main__":
    main()
