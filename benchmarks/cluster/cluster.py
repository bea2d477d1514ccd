"""Nodes as processes: a rank, a folder and a server of pages each, over one bucket that counts."""

import json
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import loader
from loader.cache.peers.lifetime import live_server

from ..contest import ROOT
from ..latency_server import Served, latency_store
from .rank import DATASET

SAMPLE_BYTES = 90_000
PART_SAMPLES = 200
START_S = 60.0


def make_root(folder: Path, samples: int) -> int:
    """Write a root of random samples under a folder that becomes a bucket; return the bytes of its shards."""
    with loader.Root(folder) as root, root.write(DATASET, part_samples=PART_SAMPLES) as writer:
        for number in range(samples):
            value = np.frombuffer(secrets.token_bytes(SAMPLE_BYTES), np.uint8)
            writer.add(f"{number:06d}", {"x.npy": value})
    return sum(path.stat().st_size for path in folder.rglob("*.tar"))


class Node:
    """One node. Without a limit it has no folder, and reads ranges of the bucket."""

    def __init__(self, folder: Path, limit_bytes: int | None) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self.server: subprocess.Popen[bytes] | None = None
        self.rank: subprocess.Popen[str] | None = None
        self.address = ""

    def serve(self) -> None:
        """Start the server of the node's pages, at the address that it had."""
        command = [sys.executable, "-m", "loader.cache.peers.serve", "--path", str(self.folder)]
        command += ["--listen", self.address or "127.0.0.1:0", "--limit-bytes", str(self.limit_bytes)]
        self.server = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
        deadline_s = time.monotonic() + START_S
        while (record := live_server(str(self.folder))) is None:
            if time.monotonic() > deadline_s:
                raise RuntimeError("a cache server does not come up")
            time.sleep(0.02)
        self.address = record.address

    def start(self, number: int, settings: dict[str, Any]) -> int:
        """Start the node's rank; return the steps of an epoch."""
        own = {"rank": number, "limit_bytes": self.limit_bytes}
        own["folder"] = None if self.limit_bytes is None else str(self.folder)
        command = [sys.executable, "-m", "benchmarks.cluster.rank", json.dumps({**settings, **own})]
        self.rank = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return int(self.answer()["steps_per_epoch"])

    def ask(self) -> None:
        """Let the rank read its next step."""
        assert self.rank is not None
        assert self.rank.stdin is not None
        self.rank.stdin.write("\n")
        self.rank.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Return the next line of the rank."""
        assert self.rank is not None
        assert self.rank.stdout is not None
        line = self.rank.stdout.readline()
        if not line:
            raise RuntimeError(f"a rank ended with {self.rank.wait()}")
        return dict(json.loads(line))

    def end(self) -> dict[str, Any]:
        """End the rank's input; return its counters."""
        assert self.rank is not None
        assert self.rank.stdin is not None
        self.rank.stdin.close()
        counters = self.answer()
        self.rank.wait()
        return counters

    def kill(self) -> None:
        """Kill what still runs."""
        for process in (self.rank, self.server):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()


class Cluster:
    """Nodes whose ranks go in step."""

    def __init__(self, nodes: list[Node], store: Served, steps_per_epoch: int) -> None:
        self.nodes = nodes
        self.store = store
        self.steps_per_epoch = steps_per_epoch

    def step(self) -> list[dict[str, Any]]:
        """Let all ranks read one step; return their lines."""
        alive = [node for node in self.nodes if node.rank is not None and node.rank.poll() is None]
        for node in alive:
            node.ask()
        return [node.answer() for node in alive]

    def epoch(self) -> tuple[int, int, list[int]]:
        """Read an epoch; return (requests, bytes) of the bucket and the digests of rank 0."""
        self.store.served()
        digests = [self.step()[0]["digest"] for _ in range(self.steps_per_epoch)]
        requests, nbytes = self.store.served()
        return requests, nbytes, digests


@contextmanager
def cluster(
    bucket: Path,
    folder: Path,
    n: int,
    limit_bytes: int | None,
    *,
    with_peers: bool = True,
    batch: int = 4,
    latency_s: float = 0.005,
) -> Iterator[Cluster]:
    """Yield n nodes over a bucket. limit_bytes: of each node's folder; None keeps nothing."""
    nodes = [Node(folder / f"node{number}", limit_bytes) for number in range(n)]
    with ExitStack() as stack:
        store = stack.enter_context(latency_store(bucket, latency_s, writable=True))
        for node in nodes:
            stack.callback(node.kill)
            if limit_bytes is not None and with_peers:
                node.serve()
        peers = [node.address for node in nodes] if with_peers and limit_bytes is not None else None
        settings = {
            "options": store.options,
            "global_batch": batch * n,
            "ranks": n,
            "peers": peers,
        }
        steps = [node.start(number, settings) for number, node in enumerate(nodes)]
        yield Cluster(nodes, store, steps[0])
