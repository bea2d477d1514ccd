"""Requests of real ranks up to their first batch, as the store receives them."""

import json
import os
import re
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import loader
from loader.dataset.log.dataset_starts import write_dataset_start
from penstock.checkpoints import Checkpoints

from ..cluster.cluster import Node
from ..contest import ROOT
from ..latency_server import BUCKET, CREDENTIALS, Served, latency_store
from .rank import BATCH, DATASET, RUN

LATENCY_S = 0.4
"""Latency of the store that records: longer than a rank's own work between two requests that it makes at once."""
PART_SAMPLES, PARTS = 16, 16
"""Samples of a part, and parts of a publish: a batch's samples lie in different shards."""
RANKS = 2
KINDS = {
    "listing": r"^/?$",
    "marker": r"/penstock\.json",
    "lease": r"/leases/",
    "log": r"/log/",
    "plan": r"/plans/",
    "start": r"/starts/",
    "checkpoint": r"/checkpoints/",
    "manifest": r"/manifest",
    "shards": r"/shards|/part",
    "index": r"\.index\.parquet",
    "samples": r"\.tar",
}
"""Kind of an object -> pattern of its path; the first that fits."""


@dataclass(frozen=True, kw_only=True)
class RankRequests:
    """Requests of one rank."""

    waves: Sequence[Sequence[str]]
    """Kinds of the requests up to the first batch; a wave began before an answer to it arrived."""
    ahead: int
    """Requests after it, up to the one for the second batch."""

    @property
    def n(self) -> int:
        """Requests up to the first batch."""
        return sum(map(len, self.waves))

    @property
    def opening(self) -> Sequence[Sequence[str]]:
        """Waves before the checkpoint's."""
        return self.waves[: self.waves.index(["checkpoint"])]

    @property
    def rest(self) -> Sequence[Sequence[str]]:
        """Waves from the checkpoint's on."""
        return self.waves[len(self.opening) :]

    def by_kind(self) -> Counter[str]:
        """Return kind -> requests."""
        return Counter(kind for wave in self.waves for kind in wave)


def make_root(folder: Path, publishes: int) -> str:
    """Write a root of so many publishes, with a checkpoint, in a folder that becomes a bucket; return a saved plan."""
    with loader.Root(folder) as root:
        for number in range(publishes):
            with root.write(DATASET, part_samples=PART_SAMPLES) as writer:
                for k in range(PART_SAMPLES * PARTS):
                    value = np.frombuffer(secrets.token_bytes(4096), np.uint8)
                    writer.add(f"{number:05d}-{k:05d}", {"x.npy": value})
        write_dataset_start(root.store, root.state, DATASET)  # publishers write it to buckets, not to disks
        plan = loader.plan({DATASET: root.open(DATASET)}, seed=7, global_batch=BATCH * RANKS)
        with loader.Loader(plan, steps=1, workers=0) as batches, Checkpoints(str(folder), RUN) as saved:
            for _ in batches:
                saved.save(1, {"weights": torch.ones(1000)}, batches)
        return plan.save(root)


def counted(folder: Path, plans: str, caches: Path | None = None) -> RankRequests:
    """Return the requests of the last rank. plans: as for `rank.train`.

    caches: for a folder of each rank's node. The nodes' servers are filled first, as an epoch would.
    """
    with ExitStack() as stack:
        server = stack.enter_context(latency_store(folder, LATENCY_S, record=True))
        arguments: list[list[str]] = [[] for _ in range(RANKS)]
        if caches is not None:
            arguments = _filled_caches(stack, caches, server)
        server.recorded()
        ranks = []
        port = str(20_000 + secrets.randbelow(20_000))
        for rank in range(RANKS):
            environment = {
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(RANKS),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "AWS_ACCESS_KEY_ID": f"rank{rank}",
                "AWS_SECRET_ACCESS_KEY": "secret",
                "AWS_DEFAULT_REGION": "us-east-1",
                "AWS_ENDPOINT_URL": str(server.options["endpoint_url"]),
                "OMP_NUM_THREADS": "1",
            }
            command = [sys.executable, "-m", "benchmarks.fleet_start.rank", plans, *arguments[rank]]
            ranks.append(
                subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
            )
        lines = [process.communicate()[0] for process in ranks]
        if any(process.returncode for process in ranks):
            raise RuntimeError(f"ranks ended with {[process.returncode for process in ranks]}")
        return requests_of(server.recorded(), f"rank{RANKS - 1}", json.loads(lines[-1]))


def _filled_caches(stack: ExitStack, folder: Path, server: Served) -> list[list[str]]:
    """Start the cache server of each rank's node, and fill it; return each rank's folder and peers."""
    nodes = [Node(folder / f"node{number}", 2**30) for number in range(RANKS)]
    for node in nodes:
        stack.callback(node.kill)
        node.serve()
    peers = ",".join(node.address for node in nodes)
    environment = {
        **os.environ,
        **CREDENTIALS,
        "AWS_ENDPOINT_URL": str(server.options["endpoint_url"]),
    }
    for node in nodes:
        command = [sys.executable, "-m", "penstock", "cache", "fill", DATASET]
        command += ["--root", f"s3://{BUCKET}", "--path", str(node.folder), "--peers", peers]
        command += ["--limit", str(node.limit_bytes)]
        subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    return [[str(node.folder), peers] for node in nodes]


def requests_of(
    recorded: Sequence[Mapping[str, Any]], client: str, times: Mapping[str, float]
) -> RankRequests:
    """Return the requests of a client, divided by its times."""
    own = sorted((one for one in recorded if one["client"] == client), key=lambda one: float(one["at_s"]))
    waves: list[list[str]] = []
    wave_ends_s = 0.0
    for one in own:
        if one["at_s"] > times["first_s"]:
            break
        if not waves or one["at_s"] >= wave_ends_s:
            waves.append([])
            wave_ends_s = one["at_s"] + LATENCY_S
        waves[-1].append(kind_of(one["target"]))
    waves = _joined(waves)
    later = own[sum(map(len, waves)) :]
    ahead = sum(one["at_s"] < times["second_asked_s"] for one in later)
    return RankRequests(waves=waves, ahead=ahead)


def _joined(waves: Sequence[list[str]]) -> list[list[str]]:
    """Return the waves, neighbours of equal kinds as one: a busy machine divides a wave."""
    joined: list[list[str]] = []
    for wave in waves:
        if joined and set(joined[-1]) == set(wave):
            joined[-1] += wave
        else:
            joined.append(wave)
    return joined


def kind_of(target: str) -> str:
    """Return the kind of an object that was asked for."""
    path = target.partition("?")[0].removeprefix(f"/{BUCKET}")
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, path)), path)
