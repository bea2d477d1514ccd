"""The first epoch after `penstock cache fill`, against local files: two ranks that take turns, one is stopped."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import loader

from ..contest import ROOT
from ..data import images
from ..latency_server import BUCKET, CREDENTIALS, Served, latency_store
from .cluster import Node
from .rank import DATASET

NODES = 4
PART_SAMPLES = 400
WORKERS = 2
LATENCY_S = 0.02
WARM_STEPS = 20
"""Steps before the turns, in which both ranks begin to read ahead."""
TURNS = 4
TURN_STEPS = 90
"""Steps of a turn: half a second. The first tenth shows how a stopped rank gets going again, not its steady rate."""
ROUNDS = 3


class Photos(NamedTuple):
    """JPEG photos, enough for an epoch of all turns."""

    side_px: int
    batch: int
    """Photos of a step."""

    @property
    def n(self) -> int:
        """Number of photos."""
        steps = WARM_STEPS + (TURNS + 1) * TURN_STEPS
        return steps * self.batch


SMALL_PHOTOS = Photos(side_px=256, batch=32)
LARGE_PHOTOS = Photos(side_px=768, batch=8)
"""About 100 kB each, as the cluster's other samples."""


class FilledEpoch(NamedTuple):
    """The first epoch of a rank whose nodes filled their caches."""

    ratio: float
    """Samples per second against local files."""
    local_us: float
    """Processor time of a sample from local files."""
    reader_us: float
    """Processor time of a sample in the rank."""
    servers_us: float
    """Processor time of a sample in the servers."""
    requests: float
    """Requests to the bucket in the turns."""


def make_photos(folder: Path, photos: Photos) -> int:
    """Write a root of photos under a folder that becomes a bucket; return their mean size in bytes."""
    total_bytes = 0
    with loader.Root(folder) as root, root.write(DATASET, part_samples=PART_SAMPLES) as writer:
        for number, (jpeg, _) in enumerate(images(photos.n, photos.side_px)):
            writer.add(f"{number:06d}", {"x.jpg": jpeg})
            total_bytes += len(jpeg)
    return total_bytes // photos.n


def filled_epoch(bucket: Path, folder: Path, photos: Photos) -> FilledEpoch:
    """Return the median of ROUNDS epochs, each with fresh caches."""
    rounds: list[FilledEpoch] = []
    for number in range(ROUNDS):
        figures = _round(bucket, folder / f"round{number}", photos.batch)
        rounds.append(figures)
    columns = zip(*rounds, strict=True)
    return FilledEpoch(*(statistics.median(column) for column in columns))


def _round(bucket: Path, folder: Path, batch: int) -> FilledEpoch:
    nodes = [Node(folder / f"node{number}", 2**30) for number in range(NODES)]
    with ExitStack() as stack:
        store = stack.enter_context(latency_store(bucket, LATENCY_S, writable=True))
        for node in nodes:
            stack.callback(node.kill)
            node.serve()
        peers = [node.address for node in nodes]
        for node in nodes:
            _fill(node, peers, store.options["endpoint_url"])
        settings = {"global_batch": batch, "ranks": 1, "peers": peers, "memory_bytes": 0, "workers": WORKERS}
        reader = nodes[0]
        reader.start(0, {**settings, "root": f"s3://{BUCKET}", "options": store.options})
        local = stack.enter_context(_local_rank(bucket, folder, settings))
        return _turns(reader, local, nodes, store, batch)


def _turns(reader: Node, local: Node, nodes: list[Node], store: Served, batch: int) -> FilledEpoch:
    pair = (local, reader)
    for node in pair:
        node.ask(WARM_STEPS)
        node.answer()
        node.pause()
    store.served()
    servers_s = -sum(node.server_s() for node in nodes)
    seconds = dict.fromkeys(pair, 0.0)
    process_s = dict.fromkeys(pair, 0.0)
    for _ in range(TURNS):
        for node in pair:
            node.proceed()
            node.ask(TURN_STEPS)
            answer = node.answer()
            node.pause()
            seconds[node] += answer["s"]
            process_s[node] += answer["process_s"]
    servers_s += sum(node.server_s() for node in nodes)
    requests, _ = store.served()
    per_sample_us = 1e6 / (TURNS * TURN_STEPS * batch)
    return FilledEpoch(
        ratio=seconds[local] / seconds[reader],
        local_us=process_s[local] * per_sample_us,
        reader_us=process_s[reader] * per_sample_us,
        servers_us=servers_s * per_sample_us,
        requests=requests,
    )


@contextmanager
def _local_rank(bucket: Path, folder: Path, settings: dict[str, Any]) -> Iterator[Node]:
    node = Node(folder / "local", None)
    try:
        node.start(0, {**settings, "root": str(bucket), "options": None})
        yield node
    finally:
        node.kill()


def _fill(node: Node, peers: list[str], endpoint: str) -> None:
    command = [sys.executable, "-m", "penstock", "cache", "fill", DATASET]
    command += ["--root", f"s3://{BUCKET}", "--path", str(node.folder), "--peers", ",".join(peers), "--json"]
    environment = {**os.environ, **CREDENTIALS, "AWS_ENDPOINT_URL": endpoint}
    filled = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if filled.returncode:
        raise RuntimeError(f"the fill ended with {filled.returncode}: {filled.stderr[-300:]}")
    report = json.loads(filled.stdout)
    if report["refused"]:
        raise RuntimeError(f"a node has no room for {report['refused']} pages")
