"""The cores and the memory of this machine that this process, or its rank, may use.

A container sees all of a machine's cores and memory, and is throttled or killed beyond its cgroup's limits. Ranks that
a launcher starts side by side share both.
"""

import os
import re
from collections.abc import Iterator, Mapping
from math import ceil
from pathlib import Path

LOCAL_RANKS = (
    "LOCAL_WORLD_SIZE",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_NTASKS_PER_NODE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
)
"""Variables of torchrun, Slurm (twice), Open MPI, and MPICH and Intel MPI, in this order of preference."""

_SLURM_GROUP = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def n_cores() -> int:
    """Return the number of cores that this process may use, by its affinity and the CPU quota of its cgroup."""
    return max(1, ceil(min(_affinity(), cpu_quota())))


def rank_cores(environ: Mapping[str, str] | None = None) -> int:
    """Return the number of cores that this process may use beside the other ranks of this machine.

    Ranks divide their cores and their quota. A launcher that binds each rank to cores of its own has divided them.
    """
    ranks, own, every = local_ranks(environ), _affinity(), os.cpu_count() or 1
    share = own if own * ranks <= every else own // ranks
    return max(1, ceil(min(share, cpu_quota() / ranks)))


def rank_memory_bytes(environ: Mapping[str, str] | None = None) -> int:
    """Return this rank's share of the machine's memory, or of its cgroup's limit."""
    every = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(min(every, memory_limit())) // local_ranks(environ)


def local_ranks(environ: Mapping[str, str] | None = None) -> int:
    """Return the number of ranks on this machine that the launcher names (`LOCAL_RANKS`); 1 where it names none."""
    environ = os.environ if environ is None else environ
    for name in LOCAL_RANKS:
        counts = _slurm_counts(environ.get(name, ""))
        if len(counts) == 1:
            return max(1, counts[0])
        node = environ.get("SLURM_NODEID", "")
        if counts and node.isdecimal() and int(node) < len(counts):
            return max(1, counts[int(node)])
    return 1


def cpu_quota(root: Path = Path("/")) -> float:
    """Return the cores that the cgroup of this process may keep busy; infinite without a quota.

    root: of /proc and /sys.
    """
    quotas = [float("inf")]
    for folder in _cgroups(root, "cpu"):
        words = _read(folder / "cpu.max").split()
        if not words:
            words = [_read(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
        quota, period = (*words, "", "")[:2]
        if quota.isdecimal() and period.isdecimal() and int(period):  # else "max", or -1
            quotas.append(int(quota) / int(period))
    return min(quotas)


def memory_limit(root: Path = Path("/")) -> float:
    """Return the bytes that the cgroup of this process may have; infinite without a limit.

    root: of /proc and /sys.
    """
    limits = [float("inf")]
    for folder in _cgroups(root, "memory"):
        text = (_read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")).strip()
        if text.isdecimal():
            limits.append(int(text))
    return min(limits)


def _affinity() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folder of this process's cgroup and of all above it: the least limit of them counts.

    A container may see its own cgroup as the root, though /proc names it by its path on the host.
    """
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if number == "0" and not controllers:  # version 2
            mount = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            mounts = (root / "sys/fs/cgroup" / name for name in (controllers, controller))
            mount = next((one for one in mounts if one.is_dir()), root)
        else:
            continue
        inside = Path(path.lstrip("/"))
        yield from (mount / one for one in (inside, *inside.parents))


def _slurm_counts(text: str) -> list[int]:
    """Return the tasks of each node of "4(x2),3": [4, 4, 3]; nothing for any other text."""
    groups = [_SLURM_GROUP.fullmatch(part) for part in text.split(",")]
    limits = [(int(one[1]), int(one[2] or 1)) for one in groups if one is not None]
    if len(limits) < len(groups) or sum(nodes for _, nodes in limits) > 2**20:
        return []
    return [count for count, nodes in limits for _ in range(nodes)]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
