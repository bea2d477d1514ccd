"""`python -m benchmarks.checkpoint_restore`: what each rank reads if a checkpoint of 100 GB comes back on fewer ranks.

Eight ranks save the state of a transformer of 8 billion parameters with AdamW's moments, sharded by rows, and six ranks
load it from a store that speaks S3. Every size is divided by 1,024: rows and columns by 32, parts, blocks, requests
and gaps by 1,024. Tensors, parts and requests are as many as for 100 GB. Ranks are processes.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import sections
from .latency_server import BUCKET, latency_store

SCALE = 1024
"""Divisor of all sizes in bytes."""
WIDTH, WORDS, LAYERS = 4096, 32_000, 41
SIDE = 32
"""Divisor of rows and columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReads:
    """What one rank read."""

    rank: int
    """Number of the rank."""
    share: int
    """Bytes of its share of the state."""
    nbytes: int
    """Bytes that it asked for."""
    parts: int
    """Parts that it read from."""
    requests: int
    """Requests that it made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """A save on some ranks, and a load on others."""

    saved_by: int
    """Ranks that saved."""
    tensors: int
    """Number of tensors."""
    parts: int
    """Number of parts."""
    nbytes: int
    """Bytes of the checkpoint, divided by `SCALE`."""
    ranks: list[RankReads]
    """Ranks that loaded."""
    served: tuple[int, int]
    """Requests and bytes that the server counted for all ranks."""


def shapes(layers: int) -> dict[str, tuple[int, int]]:
    """Name -> rows and columns of a parameter, before they are divided."""
    block = {
        **{f"attention.{name}": (WIDTH, WIDTH) for name in ("query", "key", "value", "out")},
        "up": (4 * WIDTH, WIDTH),
        "down": (WIDTH, 4 * WIDTH),
        **dict.fromkeys(("norm_1", "norm_2"), (WIDTH, 1)),
    }
    named = {f"layers.{layer}.{name}": shape for layer in range(layers) for name, shape in block.items()}
    return {"embed": (WORDS, WIDTH), **named, "head": (WORDS, WIDTH)}


def state(layers: int, fill: float) -> dict[str, Any]:
    """This rank's share of all parameters and moments."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, zeros

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    out = {}
    for name, (rows, columns) in shapes(layers).items():
        size = (rows // SIDE, max(1, columns // SIDE))
        for kind in ("param", "exp_avg", "exp_avg_sq"):
            out[f"{kind}.{name}"] = zeros(*size, device_mesh=mesh, placements=[Shard(0)])
            out[f"{kind}.{name}"].to_local().fill_(fill)
    return out


def scale_down() -> None:
    """Divide the sizes that decide how checkpoints are cut and read, in this process and its forks."""
    from penstock.checkpoints import parts, reader

    for module in (parts, reader):
        module.BLOCK_BYTES = 2**20 // SCALE  # type: ignore[attr-defined]
    reader.REQUEST_BYTES //= SCALE
    reader._GAP_BYTES //= SCALE


def save(root: str, layers: int) -> None:
    """Save on this rank."""
    from penstock.checkpoints import Checkpoints
    from penstock.checkpoints.parts import PART_BYTES

    with Checkpoints(root, "run", part_bytes=PART_BYTES // SCALE) as run:
        run.save(1, state(layers, 1.0))


def load(options: dict[str, str], layers: int, rank: int) -> RankReads:
    """Load on this rank, and check what came."""
    import loader
    from loader.storage.requests import Traffic, count_requests
    from penstock.checkpoints import Checkpoints

    tensors = state(layers, 0.0)
    root, nbytes, keys = loader.Root(f"s3://{BUCKET}", options=options), [0], set[str]()
    read = root.store.get_ranges

    def get_ranges(key: str, spans: Iterable[Any], **limits: Any) -> Any:
        keys.add(key)
        blobs = read(key, list(spans), **limits)
        nbytes[0] += sum(len(blob.data) for blob in blobs)
        return blobs

    root.store.get_ranges = get_ranges  # type: ignore[method-assign]
    traffic = Traffic()
    with Checkpoints(root, "run") as run, count_requests(traffic):
        run.load(tensors)
    assert all((tensor.to_local() == 1).all() for tensor in tensors.values())
    share = sum(tensor.to_local().nbytes for tensor in tensors.values())
    return RankReads(rank=rank, share=share, nbytes=nbytes[0], parts=len(keys), requests=traffic.requests)


def forked(world: int, work: Callable[[int], Any]) -> list[Any]:
    """Run `work(rank)` in a process per rank of a group; return its answers by rank."""
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(world):
            if not (child := os.fork()):
                code = 1
                try:
                    Path(folder, f"{rank}.json").write_text(json.dumps(_grouped(folder, world, rank, work)))
                    code = 0
                finally:
                    sys.stderr.flush()
                    os._exit(code)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        assert not any(codes), codes
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(world)]


def _grouped(folder: str, world: int, rank: int, work: Callable[[int], Any]) -> Any:
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    try:
        return work(rank)
    finally:
        distributed.destroy_process_group()


def restore(folder: str, layers: int, saved_by: int, loaded_by: int) -> Restore:
    """Save and load in forks of this process, which uses torch for nothing else."""
    import torch.distributed.checkpoint
    import torch.distributed.tensor  # noqa: F401 - imported once, before the forks

    from loader.storage import open_store
    from penstock.checkpoints import marker, reader, writer  # noqa: F401

    scale_down()
    forked(saved_by, lambda rank: save(folder, layers))
    checkpoint = marker.read(open_store(folder), "run", 1)
    with latency_store(Path(folder), latency_s=0) as server:
        ranks = forked(loaded_by, lambda rank: asdict(load(server.options, layers, rank)))
        served = server.served()
    return Restore(
        saved_by=saved_by,
        tensors=3 * len(shapes(layers)),
        parts=len(checkpoint.parts),
        nbytes=checkpoint.nbytes,
        ranks=[RankReads(**one) for one in ranks],
        served=served,
    )


def _range(values: Sequence[float], digits: int = 0) -> str:
    return f"{min(values):,.{digits}f} to {max(values):,.{digits}f}"


def page_of(result: Restore) -> str:
    """A section of docs/benchmarks-stores.md."""
    gb, ranks = SCALE / 1e9, result.ranks
    lines = [
        "# A checkpoint of 100 GB on other ranks",
        "",
        "Made by `python -m benchmarks.checkpoint_restore`, with all sizes divided by 1,024: counts match the whole.",
        "",
        f"{result.saved_by} ranks save {result.tensors:,} tensors, {result.nbytes * gb:.0f} GB, and {len(ranks)} load "
        "them over S3.",
        f"A rank reads {_range([one.nbytes * gb for one in ranks], 2)} GB for its share of "
        f"{_range([one.share * gb for one in ranks], 2)} GB, in",
        f"{_range([one.requests for one in ranks])} requests. Only the first rank reads marker and index.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint_restore", description=__doc__)
    options.add_argument("--layers", type=int, default=LAYERS)
    options.add_argument("--saved-by", type=int, default=8)
    options.add_argument("--loaded-by", type=int, default=6)
    options.add_argument("--json", action="store_true", help="print the counts, write no page")
    options.add_argument("--out", type=Path, help="write here, not to docs/benchmarks-stores.md")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = restore(folder, given.layers, given.saved_by, given.loaded_by)
    if given.json:
        print(json.dumps(asdict(result)))
        return 0
    page = page_of(result)
    sections.write("benchmarks.checkpoint_restore", page, given.out)
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
