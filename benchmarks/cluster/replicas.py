"""Replicas that load one checkpoint through the nodes' caches, and what they read from the bucket."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

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


class CheckpointReads(NamedTuple):
    """Bytes that all replicas read from the bucket, as multiples of a checkpoint."""

    without: float
    through: float
    """Through the caches of the nodes."""
    near: float
    """From a newer near save, after the node that saved it was lost."""


def checkpoint_reads(folder: Path) -> CheckpointReads:
    """Load a checkpoint by all replicas at once, three times."""
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
                    cache = _cache(node, peers)
                _load(store.options, cache, state)

            with ThreadPoolExecutor(REPLICAS) as pool:
                list(pool.map(load, range(REPLICAS)))
            _, nbytes = store.served()
            read.append(nbytes / size)
        newer = {name: value + 1 for name, value in state.items()}
        _save_near(store.options, _cache(nodes[0], peers), newer)
        nodes[0].kill()
        store.served()

        def load_near(number: int) -> None:
            node = nodes[1 + number % (NODES - 1)]
            cache = _cache(node, peers)
            _load(store.options, cache, newer, near=cache)

        with ThreadPoolExecutor(REPLICAS) as pool:
            list(pool.map(load_near, range(REPLICAS)))
        _, nbytes = store.served()
        read.append(nbytes / size)
    return CheckpointReads(*read)


def _cache(node: Node, peers: list[str]) -> "loader.NodeCache":
    return loader.NodeCache(path=node.folder, limit_bytes=node.limit_bytes, peers=peers)


def _save_near(options: dict[str, str], near: "loader.NodeCache", state: dict[str, torch.Tensor]) -> None:
    root = loader.Root(f"s3://{BUCKET}", options=options)
    with Checkpoints(root, RUN, near=near, near_every=1, part_bytes=2**22) as saved:
        saved.save_near(2, state)
        saved.wait()
        counts = saved.near_counts()
    if counts is None or counts.saved != 1:
        raise RuntimeError(f"the near save failed: {counts}")


def _load(
    options: dict[str, str],
    cache: "loader.NodeCache | None",
    expected: dict[str, torch.Tensor],
    near: "loader.NodeCache | None" = None,
) -> None:
    state = {name: torch.zeros(ROWS, COLUMNS) for name in expected}
    root = loader.Root(f"s3://{BUCKET}", options=options)
    with Checkpoints(root, RUN, cache=cache, near=near) as saved:
        saved.load(state)
    for name, value in expected.items():
        if not torch.equal(state[name], value):
            raise RuntimeError(f"{name} differs")
