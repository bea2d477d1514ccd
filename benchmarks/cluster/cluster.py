"""Nodes as processes: a rank, a folder and a server of pages each, over one bucket that counts."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import loader
from loader.cache.peers.environment import TOKEN_VARIABLE
from loader.cache.peers.lifetime import live_server
from loader.cache.spec import PAGE_BYTES

from ..contest import ROOT
from ..latency_server import BUCKET, Served, latency_store
from .namespaces import LOOPBACK, Place, namespaces
from .rank import DATASET

SAMPLE_BYTES = 90_000
PART_SAMPLES = 200
START_S = 60.0
TICKS = os.sysconf("SC_CLK_TCK")
TOKEN = secrets.token_urlsafe(32)
"""Token of the servers that listen beyond the loopback interface."""


def make_root(
    folder: Path, samples: int, sample_bytes: int = SAMPLE_BYTES, part_samples: int = PART_SAMPLES
) -> int:
    """Write a root of random samples under a folder that becomes a bucket; return the bytes of its shards."""
    with loader.Root(folder) as root, root.write(DATASET, part_samples=part_samples) as writer:
        for number in range(samples):
            value = np.frombuffer(secrets.token_bytes(sample_bytes), np.uint8)
            writer.add(f"{number:06d}", {"x.npy": value})
    return sum(path.stat().st_size for path in folder.rglob("*.tar"))


class Node:
    """One node. Without a limit it has no folder, and reads ranges of the bucket."""

    def __init__(
        self,
        folder: Path,
        limit_bytes: int | None,
        place: Place = LOOPBACK,
        page_bytes: int = PAGE_BYTES,
    ) -> None:
        self.place = place
        self.folder = folder
        self.page_bytes = page_bytes
        self.limit_bytes = limit_bytes
        self.server: subprocess.Popen[bytes] | None = None
        self.rank: subprocess.Popen[str] | None = None
        self.address = ""

    def serve(self) -> None:
        """Start the server of the node's pages, at the address that it had."""
        listen = self.address or f"{self.place.host}:0"
        command = [*self.place.command, sys.executable, "-m", "loader.cache.peers.serve"]
        command += ["--path", str(self.folder), "--listen", listen, "--limit-bytes", str(self.limit_bytes)]
        command += ["--page-bytes", str(self.page_bytes)]
        self.server = subprocess.Popen(command, cwd=ROOT, env=self._environment(), stderr=subprocess.DEVNULL)
        deadline_s = time.monotonic() + START_S
        while (record := live_server(str(self.folder))) is None:
            if time.monotonic() > deadline_s:
                raise RuntimeError("a cache server does not come up")
            time.sleep(0.02)
        self.address = record.address

    def start(self, number: int, settings: dict[str, Any]) -> int:
        """Start the node's rank; return the steps of an epoch."""
        own: dict[str, Any] = {"rank": number, "limit_bytes": self.limit_bytes}
        own["page_bytes"] = self.page_bytes
        own["folder"] = None if self.limit_bytes is None else str(self.folder)
        command = [*self.place.command, sys.executable, "-m", "benchmarks.cluster.rank"]
        command.append(json.dumps({**settings, **own}))
        self.rank = subprocess.Popen(
            command,
            cwd=ROOT,
            env=self._environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return int(self.answer()["steps_per_epoch"])

    def ask(self, steps: int = 1) -> None:
        """Let the rank read its next steps."""
        assert self.rank is not None
        assert self.rank.stdin is not None
        self.rank.stdin.write(f"{steps}\n")
        self.rank.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Return the next line of the rank."""
        assert self.rank is not None
        assert self.rank.stdout is not None
        line = self.rank.stdout.readline()
        if not line:
            raise RuntimeError(f"a rank ended with {self.rank.wait()}")
        return dict(json.loads(line))

    def server_s(self) -> float:
        """Return the processor time of the server."""
        assert self.server is not None
        fields = Path(f"/proc/{self.server.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def pause(self) -> None:
        """Stop the rank until `proceed`."""
        assert self.rank is not None
        self.rank.send_signal(signal.SIGSTOP)

    def proceed(self) -> None:
        """Let a stopped rank go on."""
        assert self.rank is not None
        self.rank.send_signal(signal.SIGCONT)

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

    def _environment(self) -> dict[str, str]:
        if self.place == LOOPBACK:
            return dict(os.environ)
        return {**os.environ, TOKEN_VARIABLE: TOKEN}


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

    def epoch(self, pause_s: float = 0.0) -> tuple[int, int, list[int]]:
        """Read an epoch; return (requests, bytes) of the bucket and the digests of rank 0.

        pause_s: between two steps, as a training has them.
        """
        self.store.served()
        digests = []
        for _ in range(self.steps_per_epoch):
            time.sleep(pause_s)
            digests.append(self.step()[0]["digest"])
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
    page_bytes: int = PAGE_BYTES,
    memory_bytes: int = 0,
    prefetch_bytes: int | None = None,
    latency_s: float = 0.005,
    has_namespaces: bool = False,
) -> Iterator[Cluster]:
    """Yield n nodes over a bucket. limit_bytes: of each node's folder; None keeps nothing.

    memory_bytes: of ranges that a rank without a folder reads ahead. prefetch_bytes: of batches that a rank makes
    ahead; None sizes it by need.

    has_namespaces: each node and the bucket have a network namespace of their own.
    """
    with ExitStack() as stack:
        places = [LOOPBACK] * (n + 1)
        if has_namespaces:
            places = stack.enter_context(namespaces(n + 1))
        *node_places, bucket_place = places
        nodes: list[Node] = []
        for number, place in enumerate(node_places):
            nodes.append(Node(folder / f"node{number}", limit_bytes, place, page_bytes))
        bucket_server = latency_store(
            bucket,
            latency_s,
            writable=True,
            host=bucket_place.host,
            prefix=bucket_place.command,
        )
        store = stack.enter_context(bucket_server)
        for node in nodes:
            stack.callback(node.kill)
            if limit_bytes is not None and with_peers:
                node.serve()
        peers = [node.address for node in nodes] if with_peers and limit_bytes is not None else None
        settings = {
            "root": f"s3://{BUCKET}",
            "options": store.options,
            "global_batch": batch * n,
            "ranks": n,
            "peers": peers,
            "memory_bytes": memory_bytes,
            "prefetch_bytes": prefetch_bytes,
        }
        steps = [node.start(number, settings) for number, node in enumerate(nodes)]
        yield Cluster(nodes, store, steps[0])
