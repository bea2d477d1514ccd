"""A training on four nodes of Slurm loses one, with its disk, and goes on at a near save on the other three."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import loader
from tests.penstock.checkpoints.near.slurm_near_rank import make_plan, train, weights
from tests.servers.patience import until
from tests.servers.ports import free_port
from tests.servers.slurm import NODES, Slurm, slurm

pytestmark = pytest.mark.slurm
HERE = Path(__file__).parent
REPOSITORY = HERE.parents[3]
SAMPLES = 1200
STEPS = 60
NEAR_EVERY = 5
STEP_S = 0.15


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Slurm]:
    folder = tmp_path / "slurm"
    folder.mkdir()
    with slurm(folder, accounts=True) as daemons:
        yield daemons


@pytest.fixture
def root(tmp_path: Path) -> Path:
    generator = np.random.default_rng(5)
    folder = tmp_path / "root"
    with loader.Root(folder) as root, root.write("points") as writer:
        for number in range(SAMPLES):
            writer.add(f"{number:05d}", {"x.npy": generator.integers(0, 256, 16, np.uint8)})
    return folder


def job(cluster: Slurm, nodes: int, settings: dict[str, object], log: Path) -> "subprocess.Popen[bytes]":
    environment = {
        **cluster.environment,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "PYTHONPATH": str(REPOSITORY),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    rank = HERE / "slurm_near_rank.py"
    command = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--label", "--kill-on-bad-exit"]
    with log.open("wb") as output:
        return subprocess.Popen(
            [*command, sys.executable, str(rank), json.dumps(settings)],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def losses(log: Path) -> dict[int, int]:
    """Return step -> loss, alike on all ranks."""
    by_step: dict[int, int] = {}
    for step, loss in re.findall(r"^\d: loss (\d+) (\d+)$", log.read_text(), flags=re.M):
        assert by_step.setdefault(int(step), int(loss)) == int(loss)
    return by_step


def reference_losses(root: Path) -> dict[int, int]:
    """Return step -> loss of one process that nothing disturbs."""
    state = {"weights": weights()}
    by_step: dict[int, int] = {}
    world = loader.World(rank=0, world_size=1)
    with loader.Loader(make_plan(root), world, workers=0, steps=STEPS) as batches:
        for batch in batches:
            total = int(batch["x.npy"].sum(dtype=torch.int64))
            by_step[batch.step] = train(state, total, batch.step)
    return by_step


def test_lost_node_costs_at_most_two_intervals(cluster: Slurm, root: Path, tmp_path: Path) -> None:
    caches = tmp_path / "caches"
    caches.mkdir()
    settings = {
        "root": str(root),
        "folder": str(caches),
        "near_every": NEAR_EVERY,
        "steps": STEPS,
        "step_s": STEP_S,
    }
    expected = reference_losses(root)
    first, second = tmp_path / "first", tmp_path / "second"
    training = job(cluster, 4, settings, first)
    lost = NODES[1]
    try:
        until(lambda: training.poll() is not None or max(losses(first), default=0) >= 33)
        assert training.poll() is None, first.read_text()[-3000:]
        cluster.kill_node(lost)
        until(lambda: training.poll() is not None)
    finally:
        training.kill()
        training.wait()
    cluster.end_jobs()
    shutil.rmtree(caches / lost)
    before = losses(first)
    assert max(before) < STEPS - 1, "it ended before its node was lost"
    assert not list((root / "checkpoints").glob("*/steps/*"))
    training = job(cluster, 3, settings, second)
    try:
        assert training.wait(300) == 0, second.read_text()[-3000:]
    finally:
        training.kill()
        training.wait()
    after = losses(second)
    repeated = max(before) + 1 - min(after)
    assert 0 <= repeated <= 2 * NEAR_EVERY
    assert max(after) == STEPS - 1
    assert before | after == expected
    assert {step: expected[step] for step in before} == before
