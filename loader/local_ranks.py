"""Number of a training's ranks on this machine, by the launcher's variables, else by its processes.

Not every launcher states the number: Lightning sets LOCAL_RANK and WORLD_SIZE, `mp.spawn` sets nothing. A rank that
takes itself for the only one starts a worker per core: 8 ranks on 64 cores would start 512. The processes are read
only then: of this user, of the same training.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .local_processes import Process

STATED_BY_PARENT = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "HOROVOD_LOCAL_SIZE")
"""Variables of torchrun, DeepSpeed and Horovod, which start the ranks themselves: their number is exact."""
STATED_BY_CLUSTER = (
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_NTASKS_PER_NODE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "MV2_COMM_WORLD_LOCAL_SIZE",
    "PMI_LOCAL_SIZE",
    "PALS_LOCAL_SIZE",
)
"""Variables of Slurm (twice), Open MPI, MPICH and Intel MPI, MVAPICH, Cray: a task may start ranks by itself."""
WORLD_SIZES = ("WORLD_SIZE", "PMI_SIZE")
NODES_VARIABLE = "PENSTOCK_NODES"
"""Variable with the number of a training's machines. A `Run` sets it if its ranks count more than others state."""
NODES = (
    "CROSS_SIZE",
    "GROUP_WORLD_SIZE",
    "NNODES",
    "SLURM_STEP_NUM_NODES",
    "SLURM_NNODES",
    "SLURM_JOB_NUM_NODES",
)
"""Variables of DeepSpeed, torchrun and Slurm with the number of a job's machines."""
LOCAL_RANKS = ("LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK")
RANKS = ("RANK", "PMI_RANK")
RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT")
"""Variables that all ranks of a training share, and no other training on the machine has."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

_SLURM_GROUP = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def local_ranks(environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> int:
    """Return the number of this training's ranks on this machine; 1 if there is no sign of others.

    root: folder with /proc.
    """
    environ = os.environ if environ is None else environ
    for name in STATED_BY_PARENT:
        stated = _read_variable(name, environ)
        if stated:
            return stated
    for name in STATED_BY_CLUSTER:
        stated = _read_variable(name, environ)
        if stated > 1:
            return stated
        if stated == 1:  # this one task may start the ranks itself
            break

    world_size = _world_size(environ)
    if world_size == 1:
        return 1
    is_one_of_several = world_size > 1 or _is_multiprocessing_child()
    has_rank_number = any(_number(environ, name) is not None for name in (*LOCAL_RANKS, *RANKS))
    if not is_one_of_several and not has_rank_number:
        return 1
    # Separate trainings of one script have equal command lines too, such as the trials of a search.
    count = _census(environ, root, by_command=is_one_of_several)
    nodes = _nodes(environ)
    if nodes:
        ranks_per_node = -(-world_size // nodes)  # rounded up
        count = max(count, ranks_per_node)
    if world_size:
        count = min(count, world_size)
    return count


def node_count(environ: Mapping[str, str] | None = None) -> int:
    """Return the number of this training's machines; 1 if the launcher does not state it. Reads no processes."""
    environ = os.environ if environ is None else environ
    nodes = _nodes(environ)
    if nodes:
        return nodes
    for name in (*STATED_BY_PARENT, *STATED_BY_CLUSTER):
        stated = _read_variable(name, environ)
        if stated:
            nodes = -(-_world_size(environ) // stated)  # rounded up
            return max(1, nodes)
    return 1


def _read_variable(name: str, environ: Mapping[str, str]) -> int:
    """Return the number of ranks that a variable states for this machine; 0 without one."""
    counts = _slurm_counts(environ.get(name, ""))
    if len(counts) == 1:
        return max(1, counts[0])
    node = environ.get("SLURM_NODEID", "")
    if counts and node.isdecimal() and int(node) < len(counts):
        return max(1, counts[int(node)])
    return 0


def _slurm_counts(text: str) -> list[int]:
    """Return the tasks per node: [4, 4, 3] for "4(x2),3"; [] for other text."""
    counts: list[int] = []
    for group in text.split(","):
        match = _SLURM_GROUP.fullmatch(group)
        if match is None:
            return []
        n_tasks = int(match[1])
        n_nodes = int(match[2] or 1)
        if len(counts) + n_nodes > 2**20:  # no cluster has as many: the text would fill the memory
            return []
        counts += [n_tasks] * n_nodes
    return counts


def _world_size(environ: Mapping[str, str]) -> int:
    """Return the training's number of ranks; 0 if unknown. Imports nothing."""
    distributed = sys.modules.get("torch.distributed")
    # (torch may be built without it, or be imported by another thread at this moment)
    is_initialized = getattr(distributed, "is_initialized", None)
    if distributed is not None and is_initialized is not None and is_initialized():
        return int(distributed.get_world_size())
    sizes = [_number(environ, name) for name in WORLD_SIZES]
    return next((size for size in sizes if size), 0)


def _nodes(environ: Mapping[str, str]) -> int:
    """Return the training's number of machines; 0 if unknown."""
    counted = _number(environ, NODES_VARIABLE)
    if counted:
        return counted
    if environ.get("MASTER_ADDR") in LOOPBACK:
        return 1
    counts = [_number(environ, name) for name in NODES]
    return next((count for count in counts if count), 0)


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    # (int() takes time that grows with the square of the digits)
    return int(text) if text.isdecimal() and len(text) < 10 else None


def _is_multiprocessing_child() -> bool:
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def _census(environ: Mapping[str, str], root: Path, *, by_command: bool) -> int:
    """Return the number of ranks among this user's processes, this one included.

    by_command: also count processes of the same parent and the same command line.
    """
    from .local_processes import own_processes  # only where no launcher states the number

    processes = {process.pid: process for process in own_processes(root)}
    own = processes.pop(os.getpid(), None)
    same_training: list[Process] = []
    twins: list[Process] = []
    # Without this process, if /proc does not show it, there is nothing to compare others with.
    if own is not None:
        others = processes.values()
        same_training = [other for other in others if _is_same_training(environ, own, other)]
        if by_command:
            twins = [other for other in others if _is_twin(environ, own, other)]

    # Launchers leave different signs, and each count is a lower bound: some set LOCAL_RANK, some only RANK, and
    # `mp.spawn` sets nothing.
    environs = [environ, *(other.environ for other in same_training)]
    local_numbers = _distinct_numbers(environs, LOCAL_RANKS)
    ranks = _distinct_numbers(environs, RANKS)
    # Local ranks count from 0. Their highest number counts, not how many are seen: Lightning's rank 0 sets its own
    # variable after its start, which /proc does not show.
    n_by_local_number = max(local_numbers, default=-1) + 1
    n_by_command = len(twins) + 1
    return max(n_by_local_number, len(ranks), n_by_command)


def _is_same_training(environ: Mapping[str, str], own: "Process", other: "Process") -> bool:
    if all(name in environ for name in RENDEZVOUS):
        return all(environ[name] == other.environ.get(name) for name in RENDEZVOUS)
    return other.parent in (own.pid, own.parent) or other.pid == own.parent


def _is_twin(environ: Mapping[str, str], own: "Process", other: "Process") -> bool:
    """Return whether a process has the same parent and command line, and no other rendezvous."""
    if other.parent != own.parent or other.command != own.command:
        return False
    for name in RENDEZVOUS:
        # (a rank may set its own variables later, which /proc does not show)
        is_comparable = name in environ and name in other.environ
        if is_comparable and environ[name] != other.environ[name]:
            return False
    return True


def _distinct_numbers(environs: Sequence[Mapping[str, str]], names: tuple[str, ...]) -> set[int]:
    """Return the numbers that environments state, each by the first of its variables that holds one."""
    distinct: set[int] = set()
    for environ in environs:
        numbers = [_number(environ, name) for name in names]
        stated = [number for number in numbers if number is not None]
        distinct.update(stated[:1])
    return distinct
