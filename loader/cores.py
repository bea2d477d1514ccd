"""Cores and memory that this process or its rank may use, within its cgroup and shared among the machine's ranks."""

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
    """Return the number of cores that this process may use, given its affinity and its cgroup's CPU quota."""
    return max(1, ceil(min(_affinity(), cpu_quota())))


def rank_cores(environ: Mapping[str, str] | None = None) -> int:
    """Return this rank's share of the machine's cores.

    Ranks divide cores and quota, unless the launcher binds each rank to its own cores.
    """
    ranks, own, every = local_ranks(environ), _affinity(), os.cpu_count() or 1
    share = own if own * ranks <= every else own // ranks
    return max(1, ceil(min(share, cpu_quota() / ranks)))


def rank_memory_bytes(environ: Mapping[str, str] | None = None) -> int:
    """Return this rank's share of the machine's memory, or of its cgroup's limit."""
    every = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(min(every, memory_limit())) // local_ranks(environ)


def local_ranks(environ: Mapping[str, str] | None = None) -> int:
    """Return the launcher's number of ranks on this machine (`LOCAL_RANKS`); 1 if there is no launcher."""
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
    """Return the cgroup's CPU quota in cores; infinite if there is none. root: folder with /proc and /sys."""
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
    """Return the cgroup's memory limit in bytes; infinite if there is none. root: folder with /proc and /sys."""
    limits = [float("inf")]
    for folder in _cgroups(root, "memory"):
        text = (_read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")).strip()
        if text.isdecimal():
            limits.append(int(text))
    return min(limits)


def _affinity() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folder of this process's cgroup, then its parents. The lowest limit among them applies.

    A container may see its own cgroup as the root, unlike /proc.
    """
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if number == "0" and not controllers:  # cgroup version 2
            mount = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            mounts = (root / "sys/fs/cgroup" / name for name in (controllers, controller))
            mount = next((one for one in mounts if one.is_dir()), root)
        else:
            continue
        inside = Path(path.lstrip("/"))
        yield from (mount / one for one in (inside, *inside.parents))


def _slurm_counts(text: str) -> list[int]:
    """Return the tasks per node: [4, 4, 3] for "4(x2),3"; [] for other text."""
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
