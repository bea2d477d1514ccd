"""The clusters on which the demo runs: each is started, hit while a job's runners work, and begun again."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from tests.servers.patience import until
from tests.servers.processes import command_name
from tests.servers.ray_nodes import TOKEN, RayNodes, ray_nodes
from tests.servers.slurm import NODES, Slurm, slurm

REPOSITORY = Path(__file__).resolve().parents[2]


class Placed(Protocol):
    """A cluster whose nodes a test may kill."""

    file: Path
    """File of the cluster, as penstock reads it."""
    variables: dict[str, str]
    """Variables of who submits."""
    why: str
    """Words for why a job waits while there is no room."""

    def runners(self) -> set[int]:
        """Return the processes of runners."""
        ...

    def kill_a_node(self) -> str:
        """Kill a node that works, and return its name; "" where none does, or the head alone."""
        ...

    def mend(self) -> None:
        """Bring all nodes back."""
        ...

    def left(self) -> str:
        """Return what the engine still has to do, "" for nothing."""
        ...

    def kill_the_head(self) -> None:
        """Kill the head, and bring it back."""
        ...

    def fill(self) -> None:
        """Leave no room for a runner."""
        ...

    def empty(self) -> None:
        """Give the room back."""
        ...


class OnSlurm:
    """Four nodes of two processors."""

    why = "DRAINED"

    def __init__(self, folder: Path, cluster: Slurm) -> None:
        self._cluster = cluster
        self._dead: list[str] = []
        (folder / "logs").mkdir()
        (folder / "environment").write_text(f"PYTHONPATH={REPOSITORY}\n")
        self.file = folder / "slurm.toml"
        self.file.write_text(
            f'engine = "slurm"\nqueue = "batch"\nlogs = "{folder}/logs"\n'
            f'environment = "{folder}/environment"\n[slot]\nnumber = 4\n'
        )
        self.variables = {"SLURM_CONF": str(cluster.conf)}

    def runners(self) -> set[int]:
        return {pid for pid in self._cluster.processes() if command_name(pid).startswith("python")}

    def kill_a_node(self) -> str:
        node = next((name for name in NODES if self._cluster.processes(name) & self.runners()), "")
        if node:
            self._cluster.kill_node(node)
            self._dead.append(node)
        return node

    def mend(self) -> None:
        while self._dead:
            node = (
                self._dead.pop()
            )  # it boots behind the controller's word: that of a node that is back comes later
            until(lambda node=node: node in self._cluster.told("sinfo", "-h", "-N", "-t", "down", "-o", "%N"))
            self._cluster.start_node(node)
        self.empty()  # of nodes that Slurm drained, as an administrator does

    def left(self) -> str:
        return self._cluster.told("squeue", "-h", "-r", "-o", "%i %j %T %r")

    def kill_the_head(self) -> None:
        self._cluster.kill_head()
        self._cluster.start_head()

    def fill(self) -> None:
        self._cluster.told("scontrol", "update", "nodename=m[1-4]", "state=drain", "reason=maintenance")

    def empty(self) -> None:
        self._cluster.told("scontrol", "update", "nodename=m[1-4]", "state=resume")


class OnRay:
    """A head that runs nothing, and two nodes of two processors."""

    why = "4 of the cluster's 4 CPUs are in use"

    def __init__(self, folder: Path, nodes: RayNodes) -> None:
        self._nodes, self._dead = nodes, 0
        (folder / "environment").write_text(f"PYTHONPATH={REPOSITORY}\n")
        self.file = folder / "ray.toml"
        self.file.write_text(
            f'engine = "ray"\naddress = "{nodes.address}"\nenvironment = "{folder}/environment"\n'
            "[slot]\nnumber = 4\n"
        )
        self.variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}

    def runners(self) -> set[int]:
        return {pid for pid in self._nodes.processes() if b"runner_process" in _words(pid)}

    def kill_a_node(self) -> str:
        for pid in self.runners():
            if killed := self._nodes.kill_node_of(pid):
                self._dead += 1
                return killed
        return ""

    def mend(self) -> None:
        while self._dead:
            self._nodes.add_node()
            self._dead -= 1

    def left(self) -> str:
        return self._nodes.unfinished()

    def kill_the_head(self) -> None:
        self._nodes.kill_head()
        self._nodes.start()
        self._dead = 0

    def fill(self) -> None:
        self._nodes.fill()

    def empty(self) -> None:
        self._nodes.empty()


def _words(pid: int) -> bytes:
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:
        return b""


@contextmanager
def on_slurm(folder: Path) -> Iterator[OnSlurm]:
    """Yield a fresh Slurm. folder: empty."""
    (folder / "slurm").mkdir()
    with slurm(folder / "slurm") as cluster:
        yield OnSlurm(folder, cluster)


@contextmanager
def on_ray(folder: Path) -> Iterator[OnRay]:
    """Yield a fresh Ray. folder: empty."""
    with ray_nodes(head_cpus=0) as nodes:
        yield OnRay(folder, nodes)


CLUSTERS = {"ray": on_ray, "slurm": on_slurm}
"""Clusters by the name of their engine."""
