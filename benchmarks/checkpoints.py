"""`python -m benchmarks.checkpoints`: saving and loading the state of a training, against torch's own files.

A transformer of 100 million parameters with AdamW's moments, sharded by FSDP over two ranks with gloo, each a process
with one thread for torch. In each round both save and both load the same state, by turns, on the same disk. The
slowest rank's seconds count, the processor seconds of all, and the most memory that one had at once above what it had
before. The table goes to docs/benchmarks-stores.md.
"""

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from . import sections
from .contest import ROOT
from .page import shown

RANKS = 2
WORDS, WIDTH, DEPTH = 20_001, 768, 12
TORCH, OURS = "torch", "penstock"
WHY = "Both saves sync. penstock also hashes every byte, by SHA-256 and CRC-32C."
Cost = dict[str, float]
"""seconds, processor seconds, MiB: of one rank, or of all."""


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m benchmarks.checkpoints", description=__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--folder", type=Path, help="on the disk to measure (default: temporary)")
    options.add_argument("--words", type=int, default=WORDS, help="fewer for a smaller model")
    options.add_argument("--note", default="", help="a sentence for the page's head, about the machine")
    options.add_argument("--out", type=Path, help="write here, not to docs/benchmarks-stores.md")
    options.add_argument("--rank", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.rank:
        as_rank(**json.loads(given.rank))
        return 0
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        work = {"folder": folder, "rounds": given.rounds, "words": given.words}
        commands = [
            [sys.executable, "-m", "benchmarks.checkpoints", "--rank", json.dumps({"rank": rank, **work})]
            for rank in range(RANKS)
        ]
        ranks = [subprocess.Popen(command, cwd=ROOT) for command in commands]
        codes = [rank.wait() for rank in ranks]
        if any(codes):
            return 1
        said = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(RANKS)]
    page = page_of(said, given.rounds, given.note)
    sections.write("benchmarks.checkpoints", page, given.out)
    print(page)
    return 0


def as_rank(rank: int, folder: str, rounds: int, words: int) -> None:
    """One rank's turns; what they cost goes to `folder`."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    state = {"train": training(words)}
    turns: dict[str, list[Cost]] = {}
    try:
        for number in range(rounds):
            ways = [(OURS, ours), (TORCH, torchs)]
            for name, way in ways if number % 2 else reversed(ways):
                for what, call in way(f"{folder}/{name}", state, number).items():
                    turns.setdefault(f"{what} {name}", []).append(measured(call))
            distributed.barrier()
            if rank == 0:
                shutil.rmtree(f"{folder}/{TORCH}")
                shutil.rmtree(f"{folder}/{OURS}")
            distributed.barrier()
    finally:
        distributed.destroy_process_group()
    nbytes = sum(tensor.nbytes for tensor in local_tensors(state["train"].state_dict()))
    Path(folder, f"{rank}.json").write_text(json.dumps({"turns": turns, "nbytes": nbytes}))


def training(words: int) -> Any:
    """The state of a model and its optimizer after a step, sharded."""
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from penstock.checkpoints import TrainingState

    torch.manual_seed(0)
    layer = [
        nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(DEPTH)
    ]
    model = nn.Sequential(nn.Embedding(words, WIDTH), *layer)
    mesh = init_device_mesh("cpu", (RANKS,))
    for one in model[1:]:
        fully_shard(one, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return TrainingState(model, optimizer)


def local_tensors(state: Any) -> Iterable[Any]:
    """This rank's share of every tensor in a nested state."""
    from torch.distributed.tensor import DTensor

    for value in state.values():
        if isinstance(value, dict):
            yield from local_tensors(value)
        elif isinstance(value, DTensor):
            yield value.to_local()


def ours(folder: str, state: dict[str, Any], step: int) -> dict[str, Callable[[], object]]:
    """Save and load as trainings do."""
    from penstock.checkpoints import Checkpoints

    run = Checkpoints(folder, "run")
    return {"save": lambda: run.save(step, state), "load": lambda: run.load(state)}


def torchs(folder: str, state: dict[str, Any], step: int) -> dict[str, Callable[[], object]]:
    """The same, into torch's files, which are synced too."""
    from torch.distributed import checkpoint as dcp

    place = f"{folder}/{step}"
    return {
        "save": lambda: dcp.save(state, storage_writer=dcp.FileSystemWriter(place)),
        "load": lambda: dcp.load(state, storage_reader=dcp.FileSystemReader(place)),
    }


def measured(call: Callable[[], object]) -> Cost:
    """What a call costs this rank, begun by all at once."""
    from torch import distributed

    distributed.barrier()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, start, used = memory_mib("VmRSS"), time.perf_counter(), time.process_time()
    call()
    cost = {"s": time.perf_counter() - start, "cpu_s": time.process_time() - used}
    return {**cost, "mib": memory_mib("VmHWM") - before}


def memory_mib(which: str) -> float:
    found = re.search(rf"{which}:\s*([0-9]+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def together(said: list[dict[str, Any]], turn: str) -> list[Cost]:
    """Per round, of all ranks: the slowest's seconds, everybody's processor seconds, the most memory of one."""
    rounds = zip(*(one["turns"][turn] for one in said), strict=True)
    return [
        {
            "s": max(one["s"] for one in ranks),
            "cpu_s": sum(one["cpu_s"] for one in ranks),
            "mib": max(one["mib"] for one in ranks),
        }
        for ranks in rounds
    ]


def page_of(said: list[dict[str, Any]], rounds: int, note: str) -> str:
    """docs/benchmarks-stores.md."""
    gib = sum(one["nbytes"] for one in said) / 2**30
    lines = [
        "# Checkpoints",
        "",
        f"Made by `python -m benchmarks.checkpoints --rounds {rounds}` on {platform.machine()}, Python "
        f"{platform.python_version()}, {os.cpu_count()} cores. {note}".rstrip(),
        "",
        f"100 million parameters with AdamW's moments, {gib:.2f} GiB, sharded by FSDP over {RANKS} ranks, on a local",
        "disk, against torch.distributed.checkpoint. Processor seconds are of all ranks, MiB the most that one adds.",
        "",
        "| | torch: seconds, processor s, MiB | penstock | seconds, times torch's | processor, times torch's |",
        "| --- | --- | --- | --- | --- |",
    ]
    for what in ("save", "load"):
        theirs, mine = (together(said, f"{what} {name}") for name in (TORCH, OURS))
        digits = {"s": 2, "cpu_s": 2, "mib": 0}
        cells = [
            ", ".join(f"{statistics.median(one[unit] for one in costs):.{n}f}" for unit, n in digits.items())
            for costs in (theirs, mine)
        ]
        for unit in ("s", "cpu_s"):
            ratios = [a[unit] / b[unit] for a, b in zip(mine, theirs, strict=True)]
            cells.append(shown(ratios))
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", WHY]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
