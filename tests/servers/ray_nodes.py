"""A Ray cluster of a head and two nodes on this machine, for tests marked `ray`: it asks for a token."""

import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.servers.ports import free_port
from tests.servers.slurm import until

TOKEN = "planted-token-of-the-tests-0123456789"
OURS = (b"runner_process", b"ray_driver", b"pool/worker.py")
"""Words of the commands of a job's processes."""
STORE_BYTES = 80 * 2**20
"""Memory of a node's objects: no bytes of a job are in it."""


class RayNodes:
    """A head and two nodes of two processors, as processes that a test may kill."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._cluster: Any = None
        self._nodes: list[Any] = []

    def start(self) -> None:
        """Start all, and wait until the head answers."""
        from ray.cluster_utils import Cluster

        told = {"num_cpus": 2, "object_store_memory": STORE_BYTES}
        agent = {
            "dashboard_agent_listen_port": free_port()
        }  # Ray's own is taken while another cluster runs here
        head = {**told, **agent, "include_dashboard": True, "dashboard_port": self.port}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._nodes = [self._cluster.add_node(**told) for _ in range(2)]
        until(self._answers)

    def kill_node(self) -> None:
        """As a power cut: a node's daemons, and its workers with what they began."""
        self._cluster.remove_node(self._nodes.pop(), allow_graceful=False)

    def kill_head(self) -> None:
        """As a power cut of all: a head that is lost takes its nodes along."""
        self._cluster.shutdown()

    def processes(self) -> set[int]:
        """Return the processes of runners, and of their workers."""
        mark = f"RAY_TMPDIR={self._folder}".encode()
        found = set()
        for entry in os.listdir("/proc"):
            try:
                words = Path("/proc", entry, "cmdline").read_bytes() if entry.isdigit() else b""
                if (
                    any(word in words for word in OURS)
                    and mark in Path("/proc", entry, "environ").read_bytes()
                ):
                    found.add(int(entry))
            except OSError:
                continue
        return found

    def _answers(self) -> bool:
        request = urllib.request.Request(
            f"{self.address}/api/jobs/", headers={"Authorization": f"Bearer {TOKEN}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False


@contextmanager
def ray_nodes(folder: Path) -> Iterator[RayNodes]:
    """Yield a fresh cluster; it ends with the block. folder: a short path, for sockets."""
    nodes = RayNodes(folder)
    try:
        nodes.start()
        yield nodes
    finally:
        nodes.kill_head()
