"""A training on three nodes loses all processes of one, and its disk; the next start goes on at a near save.

Planted: parts without a second copy.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from loader.cache.peers.lifetime import live_server
from tests.penstock.checkpoints.near.test_slurm_near import HERE, REPOSITORY, reference_losses, root
from tests.servers.patience import until
from tests.servers.ports import free_port

__all__ = ["root"]  # a fixture

STEPS = 60
EVERY = 5
LOST_AFTER = 23


class NodeProcesses:
    """A server and a rank in one process group, which a lost node ends at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder.with_suffix(".log")
        self.rank: subprocess.Popen[bytes] | None = None
        command = [sys.executable, "-m", "loader.cache.peers.serve", "--path", str(folder)]
        command += ["--listen", "127.0.0.1:0", "--limit-bytes", str(2**26)]
        self.server = subprocess.Popen(command, process_group=0, stderr=subprocess.DEVNULL)
        until(lambda: live_server(str(folder)) is not None)
        record = live_server(str(folder))
        assert record is not None
        self.address = record.address

    def start(self, settings: dict[str, object], environment: dict[str, str]) -> None:
        command = [sys.executable, str(HERE / "slurm_near_rank.py"), json.dumps(settings)]
        with self.log.open("wb") as output:
            self.rank = subprocess.Popen(
                command,
                env={**os.environ, **environment, "NEAR_FOLDER": str(self.folder)},
                process_group=self.server.pid,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def end(self) -> None:
        """End all processes by SIGKILL."""
        if self.server.returncode is None:
            os.killpg(self.server.pid, signal.SIGKILL)
            self.server.wait()
            if self.rank is not None:
                self.rank.wait()

    def end_rank(self) -> None:
        """End the rank, as a launcher does once another one is lost: gloo may wait for that one for 30 minutes."""
        assert self.rank is not None
        self.rank.kill()
        self.rank.wait()

    def status(self) -> int | None:
        """Return the exit status of the rank; None while it runs."""
        assert self.rank is not None
        return self.rank.poll()

    def losses(self) -> dict[int, int]:
        """Return step -> loss of this rank."""
        pairs = re.findall(r"^loss (\d+) (\d+)$", self.log.read_text(), flags=re.M)
        return {int(step): int(loss) for step, loss in pairs}


def start(nodes: list[NodeProcesses], root: Path) -> None:
    """Start a rank on each node."""
    settings = {
        "root": str(root),
        "peers": [node.address for node in nodes],
        "near_every": EVERY,
        "steps": STEPS,
        "step_s": 0.05,
    }
    environment = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(len(nodes)),
        "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}{os.pathsep}{REPOSITORY}",
        "OMP_NUM_THREADS": "1",
    }
    for rank, node in enumerate(nodes):
        node.start(settings, {**environment, "RANK": str(rank), "LOCAL_RANK": "0"})


def test_lost_node_costs_at_most_two_intervals_without_slurm(root: Path, tmp_path: Path) -> None:
    expected = reference_losses(root)
    with ExitStack() as stack:
        nodes = []
        for number in range(3):
            node = NodeProcesses(tmp_path / f"node{number}")
            stack.callback(node.end)
            nodes.append(node)
        start(nodes, root)
        lost, *others = reversed(nodes)
        until(lambda: lost.status() is not None or max(lost.losses(), default=0) >= LOST_AFTER)
        lost.end()
        for node in others:
            node.end_rank()
        before = lost.losses()
        assert LOST_AFTER <= max(before) < STEPS - 1, lost.log.read_text()[-3000:]
        shutil.rmtree(lost.folder)
        assert not list((root / "checkpoints").glob("*/steps/*"))
        start(others, root)
        until(lambda: all(node.status() is not None for node in others))
        for node in others:
            assert node.status() == 0, node.log.read_text()[-3000:]
        after = others[0].losses()
    repeated = max(before) + 1 - min(after)
    assert 0 <= repeated <= 2 * EVERY
    assert max(after) == STEPS - 1
    assert before | after == expected
    assert {step: expected[step] for step in before} == before
