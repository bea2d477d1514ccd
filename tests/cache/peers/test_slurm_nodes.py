"""Four nodes of Slurm train from one bucket through each other's pages, while a server and a reader are killed."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import loader
from benchmarks.latency_server import latency_store
from loader.cache.peers.lifetime import live_server
from tests.servers.patience import until
from tests.servers.ports import free_port
from tests.servers.slurm import NODES, Slurm, slurm

pytestmark = pytest.mark.slurm
HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
PAGE_BYTES = 65536
SAMPLE_BYTES = 6000
SAMPLES = 3200
STEPS = SAMPLES // (8 * len(NODES))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm(tmp_path_factory.mktemp("slurm")) as daemons:
        yield daemons


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """Return a folder with a root, which becomes a bucket."""
    generator = np.random.default_rng(5)
    folder = tmp_path / "bucket"
    with loader.Root(folder) as root, root.write("points", part_samples=200) as writer:
        for number in range(SAMPLES):
            writer.add(f"{number:05d}", {"x.npy": generator.integers(0, 256, SAMPLE_BYTES, np.uint8)})
    return folder


def job(cluster: Slurm, settings: dict[str, object], log: Path) -> "subprocess.Popen[bytes]":
    environment = {
        **cluster.environment,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "PYTHONPATH": str(REPOSITORY),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    command = ["srun", "--nodes=4", "--ntasks=4", "--label", sys.executable, str(HERE / "slurm_rank.py")]
    with log.open("wb") as output:
        return subprocess.Popen(
            [*command, json.dumps(settings)], env=environment, stdout=output, stderr=subprocess.STDOUT
        )


def digests(text: str) -> dict[int, dict[int, int]]:
    """Return rank -> step -> digest."""
    read: dict[int, dict[int, int]] = {}
    for rank, step, digest in re.findall(r"^(\d): read (\d+) (\d+)$", text, flags=re.M):
        read.setdefault(int(rank), {})[int(step)] = int(digest)
    return read


def test_four_nodes_read_each_byte_once(cluster: Slurm, bucket: Path, tmp_path: Path) -> None:
    size = sum(path.stat().st_size for path in bucket.rglob("*.tar"))
    log = tmp_path / "log"
    caches = tmp_path / "caches"
    caches.mkdir()
    with latency_store(bucket, 0.002, writable=True) as store:
        settings = {
            "options": store.options,
            "folder": str(caches),
            "limit_bytes": size,
            "page_bytes": PAGE_BYTES,
            "steps": 2 * STEPS,
        }
        training = job(cluster, settings, log)
        try:
            until(lambda: training.poll() is not None or log.read_text().count(": read ") >= 4 * STEPS)
            assert training.poll() is None, log.read_text()[-3000:]
            _, first_epoch = store.served()
            assert first_epoch <= 1.25 * size  # with indexes and tables, and what the first batches read
            server = live_server(str(caches / NODES[2]))
            assert server is not None
            os.kill(server.pid, signal.SIGKILL)
            assert training.wait(300) == 0, log.read_text()[-3000:]
        finally:
            training.kill()
            training.wait()
        _, second_epoch = store.served()
    text = log.read_text()
    metrics = [json.loads(one) for one in re.findall(r"metrics (\{.*\})", text)]
    assert len(metrics) == len(NODES)
    # The killed server owned about a quarter of the pages. Their samples come as ranges, and near ones as one read.
    assert second_epoch <= 0.5 * size
    assert sum(one["cache_peer_hits_total"] for one in metrics) > 0
    read = digests(text)
    assert sorted(read) == [0, 1, 2, 3]
    version = loader.Root(bucket).open("points")
    plan = loader.plan({"points": version}, seed=3, global_batch=8 * len(NODES))
    for rank, by_step in read.items():
        with loader.Loader(
            plan, loader.World(rank=rank, world_size=4), workers=0, steps=2 * STEPS
        ) as batches:
            assert {batch.step: batch.digest for batch in batches} == by_step
