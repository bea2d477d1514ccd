"""Replicas that load one checkpoint through the nodes' caches, and what they read from the bucket."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import torch

import loader
from penstock.checkpoints import Checkpoints

from ..latency_server import BUCKET, latency_store
from .cluster import Node

RUN = "run"
TENSORS = 16
ROWS, COLUMNS = 1024, 1024
NODES, REPLICAS = 4, 16
LATENCY_S = 0.005


def checkpoint_reads(folder: Path) -> tuple[float, float]:
    """Return the bytes that the replicas read, as multiples of the checkpoint: without and with a cache."""
    bucket = folder / "bucket"
    state = {f"layer{number}": torch.randn(ROWS, COLUMNS) for number in range(TENSORS)}
    with Checkpoints(str(bucket), RUN, part_bytes=2**22) as saved:
        saved.create_root()
        saved.save(1, state)
    size = sum(path.stat().st_size for path in bucket.rglob("*.safetensors"))
    nodes = [Node(folder / f"node{number}", 2**30) for number in range(NODES)]
    with ExitStack() as stack:
        store = stack.enter_context(latency_store(bucket, LATENCY_S, writable=True))
        for node in nodes:
            stack.callback(node.kill)
            node.serve()
        peers = [node.address for node in nodes]
        read: list[float] = []
        for with_cache in (False, True):
            store.served()

            def load(number: int, *, with_cache: bool = with_cache) -> None:
                node = nodes[number % NODES]
                cache = None
                if with_cache:
                    cache = loader.NodeCache(path=node.folder, limit_bytes=node.limit_bytes, peers=peers)
                _load(store.options, cache, state)

            with ThreadPoolExecutor(REPLICAS) as pool:
                list(pool.map(load, range(REPLICAS)))
            _, nbytes = store.served()
            read.append(nbytes / size)
    return read[0], read[1]


def _load(
    options: dict[str, str], cache: "loader.NodeCache | None", expected: dict[str, torch.Tensor]
) -> None:
    state = {name: torch.zeros(ROWS, COLUMNS) for name in expected}
    root = loader.Root(f"s3://{BUCKET}", options=options)
    with Checkpoints(root, RUN, cache=cache) as saved:
        saved.load(state)
    for name, value in expected.items():
        if not torch.equal(state[name], value):
            raise RuntimeError(f"{name} differs")
