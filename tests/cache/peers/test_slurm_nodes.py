"""Four nodes of Slurm train from one bucket through each other's pages, while a reader and a server are killed."""

import json
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

import loader
from benchmarks.latency_server import latency_store
from loader.cache.peers.lifetime import live_server
from penstock.compute.cluster import read_cluster
from penstock.train.launch.slurm_job import SlurmJobs
from penstock.train.run_spec import RunSpec
from penstock.train.submitting import submit
from tests.servers.patience import until
from tests.servers.processes import command_line
from tests.servers.slurm import NODES, Slurm, slurm

pytestmark = pytest.mark.slurm
HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
RANK = str(HERE / "slurm_rank.py")
RUN = "cluster"
PAGE_BYTES = 8192
SAMPLE_BYTES = 6000
SAMPLES = 3200
STEPS = SAMPLES // (8 * len(NODES))
SAVE_EVERY = 10
LATENCY_S = 0.1
PAUSE_S = 0.1
"""Length of a step: the kill must find an epoch that has pages to read."""
SETTLE_S = 1.0
"""Longer than a claim of a reader that runs, shorter than the 5 s after which another takes a claim over."""
CLUSTER = """\
engine = "slurm"
logs = "{folder}/logs"
environment = "{folder}/environment"
"""
ENVIRONMENT = f"""\
PYTHONPATH={REPOSITORY}
GLOO_SOCKET_IFNAME=lo
OMP_NUM_THREADS=1
CUDA_VISIBLE_DEVICES=
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm(tmp_path_factory.mktemp("slurm")) as daemons, pytest.MonkeyPatch.context() as patched:
        patched.setenv("SLURM_CONF", str(daemons.conf))
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


@pytest.fixture
def launcher(cluster: Slurm, tmp_path: Path) -> SlurmJobs:
    (tmp_path / "logs").mkdir()
    (tmp_path / "environment").write_text(ENVIRONMENT)
    (tmp_path / "cluster.toml").write_text(CLUSTER.format(folder=tmp_path))
    return SlurmJobs(loader.Root(tmp_path / "record").url, read_cluster(tmp_path / "cluster.toml"))


class ShardBytes:
    """Bytes of shards that left the bucket: those that left it first, and those that had left it before."""

    def __init__(self, bucket: Path) -> None:
        self._read: dict[str, np.ndarray[Any, np.dtype[np.bool_]]] = {}
        for path in bucket.rglob("*.tar"):
            key = path.relative_to(bucket).as_posix()
            self._read[key] = np.zeros(path.stat().st_size, np.bool_)
        self.size = sum(len(read) for read in self._read.values())

    def count(self, requests: list[dict[str, Any]]) -> tuple[float, float]:
        """Return the bytes read first and read again, in sets."""
        first = again = 0
        for request in requests:
            key = urlsplit(request["target"]).path.removeprefix("/bucket/")
            if request["method"] != "GET" or key not in self._read:
                continue
            start, stop = request["range"].removeprefix("bytes=").split("-")
            read = self._read[key][int(start) : int(stop) + 1]
            again += int(read.sum())
            first += int((~read).sum())
            read[:] = True
        return first / self.size, again / self.size


def digests(text: str) -> dict[int, dict[int, int]]:
    """Return rank -> step -> digest, the same in every attempt."""
    read: dict[int, dict[int, int]] = {}
    for rank, step, digest in re.findall(r"\bread (\d) (\d+) (\d+)$", text, flags=re.M):
        of_rank = read.setdefault(int(rank), {})
        assert of_rank.setdefault(int(step), int(digest)) == int(digest), f"step {step} differs"
    return read


def last_step(text: str) -> int:
    """Return the last step that all ranks have read."""
    ranks = Counter(step for of_rank in digests(text).values() for step in of_rank)
    return max((step for step, count in ranks.items() if count == len(NODES)), default=-1)


def claims(caches: Path) -> list[str]:
    """Return the claims that some reader has."""
    folders = [caches / node / "claims" for node in NODES]
    return sorted(name for folder in folders for name in os.listdir(folder))


def rank_pid(cluster: Slurm, node: str) -> int:
    """Return the process of a node's rank."""
    ranks = []
    for pid in cluster.processes(node):
        words = command_line(pid).split(b"\0")
        if b"python" in words[0] and RANK.encode() in words[1:2]:
            ranks.append(pid)
    (pid,) = ranks
    return pid


def kill_with_claims(pid: int, caches: Path) -> list[str]:
    """Kill a reader while it has claims, which nobody ends; return them."""
    for number in range(100):
        os.kill(pid, signal.SIGSTOP)
        # The others' claims end meanwhile: a stopped reader's stay.
        time.sleep(SETTLE_S)
        left = claims(caches)
        if left:
            os.kill(pid, signal.SIGKILL)
            return left
        os.kill(pid, signal.SIGCONT)
        # Else it may always stop in the same part of a step.
        time.sleep(0.01 * (number % 13))
    raise AssertionError("the reader never has a claim")


def test_four_nodes_read_each_byte_once(
    cluster: Slurm, launcher: SlurmJobs, bucket: Path, tmp_path: Path
) -> None:
    shards = ShardBytes(bucket)
    caches = tmp_path / "caches"
    caches.mkdir()
    with latency_store(bucket, LATENCY_S, record=True, writable=True) as store:
        settings = {
            "options": store.options,
            "folder": str(caches),
            "limit_bytes": 2 * shards.size,
            "page_bytes": PAGE_BYTES,
            "steps": 2 * STEPS,
            "save_every": SAVE_EVERY,
            "pause_s": PAUSE_S,
        }
        command = (sys.executable, RANK, json.dumps(settings))
        record = loader.Root(tmp_path / "record").url
        submit(RunSpec(run=RUN, command=command, nodes="4", record=record), launcher)

        def log() -> str:
            return launcher.logs(RUN)

        until(lambda: last_step(log()) > SAVE_EVERY, log)
        orphans = kill_with_claims(rank_pid(cluster, NODES[1]), caches)
        before_kills = shards.count(store.recorded())
        until(lambda: last_step(log()) > STEPS + SAVE_EVERY, log)
        reader_kill = shards.count(store.recorded())
        server = live_server(str(caches / NODES[2]))
        assert server is not None
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: log().count("metrics ") == len(NODES), log)
        server_kill = shards.count(store.recorded())
    text = log()
    print(f"in sets: {sum(before_kills):.3f} until the first kill, {before_kills[1]:.3f} of them again")
    print(f"killed with {len(orphans)} claims: {reader_kill[0]:.3f} first, {reader_kill[1]:.3f} again")
    print(f"without a server: {server_kill[0]:.3f} first, {server_kill[1]:.3f} again")
    costs = reader_kill[1] + server_kill[1]
    total = sum(before_kills) + sum(reader_kill) + sum(server_kill)
    assert total - costs <= 1.05
    # The end of the job's step kills all ranks, each with pages that wait to be sent; and the first batches are ranges.
    assert reader_kill[1] <= 0.3
    # The killed server owned about a quarter of the pages. Their samples come as ranges, and near ones as one read.
    assert server_kill[1] <= 0.5
    metrics = [json.loads(one) for one in re.findall(r"metrics (\{.*\})", text)]
    assert sum(one["cache_peer_hits_total"] for one in metrics) > 0
    assert text.count(f"steps {2 * STEPS}\n") == len(NODES)
    read = digests(text)
    assert sorted(read) == [0, 1, 2, 3]
    version = loader.Root(bucket).open("points")
    plan = loader.plan({"points": version}, seed=3, global_batch=8 * len(NODES))
    for rank, by_step in read.items():
        with loader.Loader(
            plan, loader.World(rank=rank, world_size=4), workers=0, steps=2 * STEPS
        ) as batches:
            assert {batch.step: batch.digest for batch in batches} == by_step
