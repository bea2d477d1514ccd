"""Read what a launcher put into the environment: ranks, the run's name, the places it writes to."""

import getpass
import logging
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loader import World
from loader.errors import InvalidRuntime
from loader.local_ranks import NODES_VARIABLE, node_count

from ..checkpoints.ranks import from_all_ranks
from .step_file import VARIABLE as STEP_FILE

_log = logging.getLogger(__name__)
LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
"""torchrun, Slurm, Open MPI, MPICH: the number of a process on its node."""
LOCAL_SIZES = ("PENSTOCK_RANKS_PER_NODE", "LOCAL_WORLD_SIZE")
"""`penstock train`, torchrun: the number of processes on a node."""
ATTEMPTS = ("PENSTOCK_ATTEMPT", "SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT")
"""Launchers' counts of the starts before this one."""
STEPS = "PENSTOCK_REPLAY"
ORIGIN = "PENSTOCK_REPLAY_OF"
"""Variables of a replay's ranks: its steps, and the run that it repeats."""
LEAST_SECRET = 6
"""Least characters of a secret: shorter values are parts of words."""
_SECRET = re.compile(r"SECRET|TOKEN|PASSW|CREDENTIAL|_KEY", re.IGNORECASE)
GRACE_S = 30
"""Slurm's default KillWait, and Kubernetes' default grace period."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """This process as its launcher sees it."""

    world: World
    """Number of this process among all of the run."""
    grouped: bool
    """True if a launcher started the process: its ranks, or this one, form a process group."""
    local_rank: int
    """Number of this process on its node."""
    ranks_per_node: int
    """Processes on its node; 0 if the launcher does not name it."""
    name: str | None
    """Name of the run; None without a launcher of penstock's."""
    attempt: int
    """Number of this start, from 0 on."""
    record: str | None
    """Root that gets the record of the run; None for none."""
    checkpoints: str | None
    """Root that gets the checkpoints; None for none."""
    trackers: tuple[str, ...]
    """Experiment trackers of the run."""
    grace_s: int
    """Seconds from the signal to stop until the processes are killed."""
    stopped_file: Path | None
    """File that asks the node's launcher to start the run again: torchrun loses the exit code."""
    step_file: str | None
    """File of the node's launcher for the steps of the first rank; None for other ranks."""
    launcher: str
    """Job of the scheduler, such as "slurm 8123"."""
    node: str
    """Name of this node."""
    replay: tuple[str, str] | None
    """Steps to repeat, and their run (`replay_run`); None for a run of its own."""
    meeting: str | None
    """URL at which the ranks meet, for `torch.distributed`; None: from MASTER_ADDR and MASTER_PORT."""

    def facts(self) -> dict[str, str | int]:
        """Return what the record of a start holds."""
        facts: dict[str, str | int] = {
            "launcher": self.launcher,
            "node": self.node,
            "user": user_name(),
            "ranks": self.world.world_size,
            "restarts": self.attempt,
        }
        if self.ranks_per_node:
            facts["ranks_per_node"] = self.ranks_per_node
        return facts

    def tell_launcher(self) -> None:
        """Leave the file for the node's launcher: torchrun ends with 1, whatever its ranks end with."""
        if self.stopped_file is None or self.local_rank != 0:
            return
        try:
            self.stopped_file.touch(mode=0o600)
        except OSError as error:
            _log.error("could not ask the launcher to begin again: %s", error)

    @staticmethod
    def from_env(environ: Mapping[str, str] | None = None) -> "Launched":
        """Return what torchrun, Slurm, Open MPI, MPICH or `penstock train` set; a single process without a launcher.

        Raises: InvalidRuntime for a variable that is not a number.
        """
        environ = os.environ if environ is None else environ
        world = World.from_env(environ)
        stopped = environ.get("PENSTOCK_STOPPED")
        return Launched(
            world=world,
            grouped=world.world_size > 1 or {"RANK", "MASTER_ADDR"} <= environ.keys(),
            local_rank=_number(environ, LOCAL_RANKS, 0),
            ranks_per_node=_number(environ, LOCAL_SIZES, 0),
            name=environ.get("PENSTOCK_RUN") or None,
            attempt=_number(environ, ATTEMPTS, 0),
            record=environ.get("PENSTOCK_RECORD") or None,
            checkpoints=environ.get("PENSTOCK_CHECKPOINTS") or None,
            trackers=tuple(filter(None, environ.get("PENSTOCK_TRACKERS", "").split(","))),
            grace_s=_number(environ, ("PENSTOCK_GRACE_S",), GRACE_S),
            stopped_file=Path(stopped) if stopped else None,
            step_file=(environ.get(STEP_FILE) or None) if world.rank == 0 else None,
            launcher=_launcher(environ),
            node=environ.get("SLURMD_NODENAME")
            or environ.get("PENSTOCK_NODE")  # a pod's host name is not its node's
            or socket.gethostname(),
            replay=(environ[STEPS], environ.get(ORIGIN, "")) if environ.get(STEPS) else None,
            meeting=_meeting(environ) if world.world_size > 1 else None,
        )


def rank_device(launched: Launched) -> Any:
    """Return the `torch.device` of this process: its GPU, which becomes the current one, or the CPU."""
    import torch

    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", launched.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def await_device(device: Any) -> None:
    """Wait until a `torch.device` has done all work that this process gave it."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def user_name() -> str:
    """Return who runs this process; "" for a number without a name, as in containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def secret_values() -> list[str]:
    """Return the values of variables that are named like secrets, long ones first."""
    values = [value for name, value in os.environ.items() if _SECRET.search(name)]
    # Long ones first: a short secret may be part of a longer one, whose rest would stay.
    return sorted((value for value in values if len(value) >= LEAST_SECRET), key=len, reverse=True)


def _launcher(environ: Mapping[str, str]) -> str:
    """Return the job as its scheduler names it."""
    if "SLURM_JOB_ID" in environ:
        return f"slurm {environ['SLURM_JOB_ID']}"
    if "KUBERNETES_SERVICE_HOST" in environ:
        return f"kubernetes {environ.get('HOSTNAME', '')}"
    return "local"


def _number(environ: Mapping[str, str], names: tuple[str, ...], default: int) -> int:
    # The first that is set: penstock's own before the launcher below it.
    for name in names:
        if name in environ:
            try:
                return int(environ[name])
            except ValueError:
                raise InvalidRuntime(
                    f"{name}={environ[name]!r} in the environment; a whole number is needed",
                    what=name,
                    where="environment",
                    given=environ[name],
                    accepted="a whole number",
                ) from None
    return default


def _meeting(environ: Mapping[str, str]) -> str | None:
    """Return where the ranks of a Slurm job step meet: on its first node, at a port of the job's own."""
    if "MASTER_ADDR" in environ:
        return None
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST")
    if nodes is None:
        raise InvalidRuntime(
            "several ranks, and no MASTER_ADDR in the environment: start them by torchrun, srun or `penstock train`",
            what="MASTER_ADDR",
            where="environment",
        )
    # Depends on job and step, so that two jobs on a node rarely meet at one port.
    port = (
        20_000
        + (_number(environ, ("SLURM_JOB_ID",), 0) * 7 + _number(environ, ("SLURM_STEP_ID",), 0)) % 20_000
    )
    return f"tcp://{first_node(nodes)}:{environ.get('MASTER_PORT', port)}"


def first_node(nodes: str) -> str:
    """Return the first of Slurm's node names: `gpu07` of `gpu[07-09,12],other`. Raises: InvalidRuntime."""
    match = re.match(r"([^,\[\]]+)(?:\[(\w+)[^\]]*\]([^,\[\]]*))?", nodes)
    if match is None:
        raise InvalidRuntime(f"{nodes!r} is not a list of Slurm's nodes; set MASTER_ADDR to the first node")
    return "".join(part or "" for part in match.groups())


def share_nodes(node: str) -> None:
    """Let this process's loaders know on how many nodes its group runs, if the launcher states fewer.

    Every rank calls it. node: name of this node.
    """
    nodes = from_all_ranks(node)
    n_nodes = len(set(nodes))
    if n_nodes > node_count():
        os.environ[NODES_VARIABLE] = str(n_nodes)
