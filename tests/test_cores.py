"""The share of a machine's cores and memory that a rank may use: affinity, cgroups, and the ranks beside it."""

import os

import pytest

from loader import cores


def cgroup(root, files):
    """A /proc and /sys with these files."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V2 = {"proc/self/cgroup": "0::/pod/job\n"}
V1 = {
    "proc/self/cgroup": "5:memory:/docker/af\n4:cpuacct,cpu:/docker/af\n1:name=systemd:/docker/af\n0::/other\n"
}


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, float("inf")),
        (V2, float("inf")),
        (V2 | {"sys/fs/cgroup/pod/job/cpu.max": "max 100000\n"}, float("inf")),
        (V2 | {"sys/fs/cgroup/pod/job/cpu.max": "250000 100000\n"}, 2.5),
        # The least limit of all above counts; inside a container its own cgroup is the root.
        (
            V2
            | {
                "sys/fs/cgroup/pod/job/cpu.max": "800000 100000",
                "sys/fs/cgroup/pod/cpu.max": "400000 100000",
            },
            4,
        ),
        (V2 | {"sys/fs/cgroup/cpu.max": "150000 50000\n"}, 3),
        (V2 | {"sys/fs/cgroup/pod/job/cpu.max": "nonsense"}, float("inf")),
        (
            V1
            | {
                "sys/fs/cgroup/cpuacct,cpu/docker/af/cpu.cfs_quota_us": "600000\n",
                "sys/fs/cgroup/cpuacct,cpu/docker/af/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpuacct,cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpuacct,cpu/cpu.cfs_period_us": "100000\n",
            },
            6,
        ),
        (
            V1
            | {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
    ],
)
def test_cpu_quota_of_both_versions(tmp_path, files, quota):
    assert cores.cpu_quota(cgroup(tmp_path, files)) == quota


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, float("inf")),
        (V2 | {"sys/fs/cgroup/pod/job/memory.max": "max\n"}, float("inf")),
        (V2 | {"sys/fs/cgroup/pod/job/memory.max": "8000\n", "sys/fs/cgroup/pod/memory.max": "6000\n"}, 6000),
        (V1 | {"sys/fs/cgroup/memory/docker/af/memory.limit_in_bytes": "7000\n"}, 7000),
    ],
)
def test_memory_limit_of_both_versions(tmp_path, files, limit):
    assert cores.memory_limit(cgroup(tmp_path, files)) == limit


@pytest.mark.parametrize(
    ("environ", "ranks"),
    [
        ({}, 1),
        ({"LOCAL_WORLD_SIZE": "8"}, 8),
        ({"LOCAL_WORLD_SIZE": "many"}, 1),
        ({"LOCAL_WORLD_SIZE": "0"}, 1),
        ({"SLURM_NTASKS_PER_NODE": "4"}, 4),
        ({"SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NTASKS_PER_NODE": "4"}, 2),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_NODEID": "1"}, 4),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2),3", "SLURM_NODEID": "2"}, 3),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2),3", "SLURM_NODEID": "9"}, 1),
        ({"LOCAL_WORLD_SIZE": "2", "SLURM_NTASKS_PER_NODE": "1"}, 2),  # torchrun started by one task of Slurm
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "6"}, 6),
        ({"MPI_LOCALNRANKS": "5"}, 5),
    ],
)
def test_local_ranks_of_each_launcher(environ, ranks):
    assert cores.local_ranks(environ) == ranks


@pytest.mark.parametrize(
    ("affinity", "machine", "quota", "ranks", "share"),
    [
        (16, 16, float("inf"), 1, 16),
        (16, 16, float("inf"), 8, 2),
        (2, 16, float("inf"), 8, 2),  # the launcher has bound each rank to its own
        (4, 4, float("inf"), 8, 1),
        (64, 64, 16.0, 1, 16),
        (64, 64, 16.0, 4, 4),
        (64, 64, 2.5, 1, 3),
    ],
)
def test_rank_cores_divide_what_ranks_share(monkeypatch, affinity, machine, quota, ranks, share):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(affinity)))
    monkeypatch.setattr(os, "cpu_count", lambda: machine)
    monkeypatch.setattr(cores, "cpu_quota", lambda: quota)
    assert cores.rank_cores({"LOCAL_WORLD_SIZE": str(ranks)}) == share


def test_rank_memory_is_a_share_of_the_limit(monkeypatch):
    monkeypatch.setattr(cores, "memory_limit", lambda: 2**30)
    assert cores.rank_memory_bytes({"LOCAL_WORLD_SIZE": "4"}) == 2**28
    monkeypatch.setattr(cores, "memory_limit", lambda: float("inf"))
    assert 2**28 < cores.rank_memory_bytes({}) < 2**60
