"""A Ray cluster of a head and two nodes on this machine, for tests marked `ray`: it asks for a token."""

import json
import os
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.servers.patience import until
from tests.servers.ports import free_port
from tests.servers.processes import command_line, environment_bytes

TOKEN = "planted-token-of-the-tests-0123456789"
VARIABLES = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": TOKEN,
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
}
"""Variables of who asks the cluster, and of its nodes."""
OURS = (b"runner_process", b"ray_driver", b"pool/worker.py")
"""Words of the commands of a job's processes."""
STORE_BYTES = 80 * 2**20
"""Memory of a node's objects: no bytes of a job are in it."""


class RayNodes:
    """A head and two nodes of two processors, as processes that a test may kill. head_cpus: 0 for no runner there.

    Each has two GPUs that do not exist.
    """

    def __init__(self, folder: Path, head_cpus: int = 2) -> None:
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self._folder, self._head_cpus = folder, head_cpus
        self._cluster: Any = None
        self._nodes: list[Any] = []

    def start(self) -> None:
        """Start all, and wait until the head answers."""
        from ray.cluster_utils import Cluster

        told = {"num_cpus": self._head_cpus, "num_gpus": 2, "object_store_memory": STORE_BYTES}
        agent = {
            "dashboard_agent_listen_port": free_port()
        }  # Ray's own is taken while another cluster runs here
        head = {**told, **agent, "include_dashboard": True, "dashboard_port": self.port}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._nodes = []
        self.add_node()
        self.add_node()
        until(self._answers)

    def add_node(self) -> None:
        """Start another node."""
        self._nodes.append(self._cluster.add_node(num_cpus=2, num_gpus=2, object_store_memory=STORE_BYTES))

    def kill_node(self) -> None:
        """As a power cut: a node's daemons, and its workers with what they began."""
        self._cluster.remove_node(self._nodes.pop(), allow_graceful=False)

    def kill_node_of(self, runner: int) -> str:
        """Kill the node on which a runner works, and return its name; "" for the head, or a runner that has ended."""
        try:
            told = Path("/proc", str(runner), "environ").read_bytes()
        except OSError:
            return ""
        for node in self._nodes:
            (raylet,) = node.all_processes["raylet"]
            if f"RAY_RAYLET_PID={raylet.process.pid}".encode() in told.split(b"\0"):
                self._nodes.remove(node)
                self._cluster.remove_node(node, allow_graceful=False)
                return f"raylet {raylet.process.pid}"
        return ""

    def fill(self) -> None:
        """Take all processors of all nodes, by jobs that sleep."""
        for number in range(3):
            asked = {"entrypoint": "sleep 3600", "entrypoint_num_cpus": 2, "submission_id": f"other-{number}"}
            self._asked("/api/jobs/", json.dumps(asked).encode())

    def empty(self) -> None:
        """End them."""
        for number in range(3):
            self._asked(f"/api/jobs/other-{number}/stop", b"")

    def unfinished(self) -> str:
        """Return the names of jobs that wait or run."""
        jobs = json.loads(self._asked("/api/jobs/"))
        return " ".join(one["submission_id"] for one in jobs if one["status"] in ("PENDING", "RUNNING"))

    def kill_head(self) -> None:
        """As a power cut of all: a head that is lost takes its nodes along."""
        self._cluster.shutdown()

    def processes(self) -> set[int]:
        """Return the processes of runners, and of their workers."""
        mark = f"RAY_TMPDIR={self._folder}".encode()
        pids = map(int, filter(str.isdigit, os.listdir("/proc")))
        runners = [pid for pid in pids if any(map(command_line(pid).count, OURS))]
        return {pid for pid in runners if mark in environment_bytes(pid)}

    def _answers(self) -> bool:
        try:
            return bool(self._asked("/api/jobs/"))
        except (OSError, HTTPException):
            return False

    def _asked(self, path: str, data: bytes | None = None) -> bytes:
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.address + path, data, headers)
        with urllib.request.urlopen(request, timeout=5) as answer:
            return bytes(answer.read())


@contextmanager
def ray_nodes(head_cpus: int = 2) -> Iterator[RayNodes]:
    """Yield a fresh cluster, of which this process has the variables; both end with the block."""
    with (
        tempfile.TemporaryDirectory(prefix="ray-") as folder,  # a short path, for sockets
        patch.dict(os.environ, {**VARIABLES, "RAY_TMPDIR": folder}),
    ):
        nodes = RayNodes(Path(folder), head_cpus)
        try:
            nodes.start()
            yield nodes
        finally:
            nodes.kill_head()
