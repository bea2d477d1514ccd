"""Cores and memory that this process or its rank may use, within its cgroup and shared among the machine's ranks."""

import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from math import ceil
from pathlib import Path

from .local_ranks import local_ranks

_CPU_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")

MOST_CPUS_WITH_A_PROCESS_EACH = 16
"""Largest machine, in logical CPUs, that has a process on each of them. A larger one has a process per physical core.

Above, two processes on one core compete for its memory bandwidth. 16 processes on 16 logical CPUs decode the most
photos.
"""

BACKGROUND_NICE = 10
"""Nice value of threads that work beside a training: a tenth of the processor time of a thread with 0."""


def n_cores() -> int:
    """Return the number of cores that this process may use, given its affinity and its cgroup's CPU quota."""
    return max(1, ceil(min(_affinity(), cpu_quota())))


def rank_cores(environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> int:
    """Return this rank's share of the machine's cores.

    Ranks divide the quota, and the cores unless the launcher binds each rank to its own. root: folder with /proc and
    /sys.
    """
    ranks = local_ranks(environ, root)
    share = _affinity()
    if not _are_bound(ranks, root):
        share //= ranks
    quota_share = cpu_quota(root) / ranks
    return max(1, ceil(min(share, quota_share)))


def rank_processes(environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> int:
    """Return how many computing processes to start for this rank: at most one per physical core of a large machine.

    root: folder with /proc and /sys.
    """
    share = rank_cores(environ, root)
    machine_cpus = os.cpu_count() or 1
    if machine_cpus <= MOST_CPUS_WITH_A_PROCESS_EACH:
        return share
    ranks = local_ranks(environ, root)
    physical_cores = _physical_cores(root)  # that this process may use
    if not _are_bound(ranks, root):  # the other ranks may use them too
        physical_cores //= ranks
    return max(1, min(share, physical_cores))


def rank_memory_bytes(environ: Mapping[str, str] | None = None) -> int:
    """Return this rank's share of the machine's memory, or of its cgroup's limit."""
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    usable_bytes = int(min(machine_bytes, memory_limit()))
    return usable_bytes // local_ranks(environ)


def lower_thread_priority() -> None:
    """Let other threads run before the caller's. Only Linux has a priority for each thread; it never rises again."""
    if sys.platform != "linux":
        return
    thread = threading.get_native_id()
    if os.getpriority(os.PRIO_PROCESS, thread) < BACKGROUND_NICE:
        os.setpriority(os.PRIO_PROCESS, thread, BACKGROUND_NICE)


def cpu_quota(root: Path = Path("/")) -> float:
    """Return the cgroup's CPU quota in cores; infinite if there is none. root: folder with /proc and /sys."""
    quotas = [float("inf")]
    for folder in _cgroups(root, "cpu"):
        words = _read(folder / "cpu.max").split()
        if not words:
            words = [_read(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
        quota, period = (*words, "", "")[:2]  # an unreadable file has no words
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


def cpuset_cores(root: Path = Path("/")) -> int:
    """Return the number of CPUs in the cgroup's cpuset; 0 if unknown. root: folder with /proc and /sys."""
    for folder in _cgroups(root, "cpuset"):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            count = _count_cpus(_read(folder / name).strip())
            if count:
                return count
    return 0


def _are_bound(ranks: int, root: Path) -> bool:
    """Return whether the launcher has bound each rank to cores of its own."""
    # A container's cpuset limits all its ranks alike, so it counts as the whole machine.
    machine_cpus = cpuset_cores(root) or os.cpu_count() or 1
    # Bound ranks have as many CPUs each, and all of them together fit into the machine. Ranks without a binding each
    # have the whole machine.
    return _affinity() * ranks <= machine_cpus


def _physical_cores(root: Path) -> int:
    """Return the number of cores behind the CPUs of this process's affinity."""
    cores = set()
    for cpu in _affinity_cpus():
        siblings = _read(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").strip()
        cores.add(siblings or f"cpu {cpu}")  # without a list, each CPU counts as a core
    return len(cores)


def _count_cpus(text: str) -> int:
    """Return the number of CPUs in a list such as "0-15,32"; 0 for other text."""
    ranges = [_CPU_RANGE.fullmatch(part) for part in text.split(",")]
    bounds = [(int(one[1]), int(one[2] or one[1])) for one in ranges if one is not None]
    if len(bounds) < len(ranges):
        return 0
    return sum(max(0, last - first + 1) for first, last in bounds)


def _affinity_cpus() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _affinity() -> int:
    return len(_affinity_cpus())


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folder of this process's cgroup, then its parents. The lowest limit among them applies.

    A container may see its own cgroup as the root, unlike /proc.
    """
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, controllers, path = (*line.split(":", 2), "", "")[:3]  # a line of another form has fewer
        if number == "0" and not controllers:  # cgroup version 2
            mount = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            mounts = (root / "sys/fs/cgroup" / name for name in (controllers, controller))
            mount = next((one for one in mounts if one.is_dir()), root)
        else:
            continue
        inside = Path(path.lstrip("/"))
        yield from (mount / one for one in (inside, *inside.parents))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
