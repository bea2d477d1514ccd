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
        ({"LOCAL_SIZE": "8", "LOCAL_RANK": "3", "WORLD_SIZE": "16"}, 8),  # DeepSpeed
        ({"MV2_COMM_WORLD_LOCAL_SIZE": "4"}, 4),
        ({"PMI_LOCAL_SIZE": "4"}, 4),
        # Lightning's own launcher on one node; its rank 0 has the same variables in its own environment only.
        ({"LOCAL_RANK": "3", "WORLD_SIZE": "8", "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1"}, 8),
        ({"LOCAL_RANK": "0", "WORLD_SIZE": "8", "MASTER_ADDR": "localhost"}, 8),
        ({"RANK": "5", "WORLD_SIZE": "16", "MASTER_ADDR": "10.0.0.7", "CROSS_SIZE": "2"}, 8),
        ({"RANK": "5", "WORLD_SIZE": "16", "MASTER_ADDR": "10.0.0.7", "SLURM_NNODES": "4"}, 4),
        # One task of Slurm whose script starts the ranks.
        ({"SLURM_NTASKS_PER_NODE": "1", "WORLD_SIZE": "8", "MASTER_ADDR": "127.0.0.1", "LOCAL_RANK": "0"}, 8),
        ({"LOCAL_RANK": "3"}, 4),  # at least: ranks of a node are numbered without gaps
        ({"LOCAL_RANK": "7", "WORLD_SIZE": "2"}, 2),
        ({"RANK": "0", "WORLD_SIZE": "1"}, 1),
        ({"LOCAL_RANK": "9" * 5000}, 1),
        ({"WORLD_SIZE": "0", "LOCAL_RANK": "one"}, 1),
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
    monkeypatch.setattr(cores, "cpu_quota", lambda root: quota)
    monkeypatch.setattr(cores, "cpuset_cores", lambda root: 0)
    assert cores.rank_cores({"LOCAL_WORLD_SIZE": str(ranks)}) == share


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({}, 0),
        (V2, 0),
        (V2 | {"sys/fs/cgroup/pod/job/cpuset.cpus.effective": "0-15\n"}, 16),
        (V2 | {"sys/fs/cgroup/pod/cpuset.cpus.effective": "0-3,8,10-11"}, 7),
        (V2 | {"sys/fs/cgroup/cpuset.cpus.effective": "\n"}, 0),
        (V2 | {"sys/fs/cgroup/cpuset.cpus.effective": "0-many"}, 0),
        ({"proc/self/cgroup": "3:cpuset:/a\n", "sys/fs/cgroup/cpuset/a/cpuset.effective_cpus": "4-7"}, 4),
        ({"proc/self/cgroup": "3:cpuset:/a\n", "sys/fs/cgroup/cpuset/cpuset.cpus": "0-1"}, 2),
    ],
)
def test_cpuset_cores_of_both_versions(tmp_path, files, count):
    assert cores.cpuset_cores(cgroup(tmp_path, files)) == count


@pytest.mark.parametrize(
    ("affinity", "ranks", "share"),
    [
        (16, 2, 8),  # all CPUs of the container: no rank is bound
        (16, 1, 16),
        (16, 16, 1),
        (8, 2, 8),  # each rank has half of the container
    ],
)
def test_containers_cpuset_binds_no_rank(tmp_path, monkeypatch, affinity, ranks, share):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(affinity)))
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    root = cgroup(tmp_path, V2 | {"sys/fs/cgroup/cpuset.cpus.effective": "0-15\n"})
    assert cores.rank_cores({"LOCAL_WORLD_SIZE": str(ranks)}, root) == share


@pytest.mark.parametrize(
    ("cpus", "ranks", "quota", "processes"),
    [
        (128, 1, "max", 64),
        (128, 8, "max", 8),
        (32, 1, "max", 16),
        (16, 1, "max", 16),  # a small machine: two processes on a core gain
        (128, 1, "1600000", 16),  # a quota is time, whichever CPUs give it
        (128, 64, "max", 1),
    ],
)
def test_rank_processes_are_one_per_physical_core_of_a_large_machine(
    tmp_path, monkeypatch, cpus, ranks, quota, processes
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cpus)))
    monkeypatch.setattr(os, "cpu_count", lambda: cpus)
    files = V2 | {"sys/fs/cgroup/cpu.max": f"{quota} 100000"}
    for cpu in range(cpus):
        pair = cpu % (cpus // 2)
        files[f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"] = f"{pair},{pair + cpus // 2}"
    root = cgroup(tmp_path, files)
    assert cores.rank_processes({"LOCAL_WORLD_SIZE": str(ranks)}, root) == processes
    assert cores.rank_processes({"LOCAL_WORLD_SIZE": "1"}, tmp_path / "none") == cpus, "no topology"


def test_ranks_are_counted_below_the_given_root(tmp_path, monkeypatch):
    """No launcher states their number: the processes of `root`'s /proc count, and not this machine's."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(32)))
    monkeypatch.setattr(os, "cpu_count", lambda: 32)
    files = dict(V2)
    own = os.getpid()
    for rank, pid in enumerate((own, own + 1, own + 2, own + 3)):
        files[f"proc/{pid}/stat"] = f"{pid} (python) S 1 1"
        files[f"proc/{pid}/cmdline"] = "python\0train.py"
        files[f"proc/{pid}/environ"] = f"RANK={rank}\0MASTER_ADDR=10.0.0.7\0MASTER_PORT=29400"
    root = cgroup(tmp_path, files)
    environ = {"RANK": "0", "WORLD_SIZE": "8", "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29400"}
    assert cores.local_ranks(environ, root) == 4
    assert cores.rank_cores(environ, root) == 8
    assert cores.rank_processes(environ, root) == 8


def test_rank_memory_is_a_share_of_the_limit(monkeypatch):
    monkeypatch.setattr(cores, "memory_limit", lambda: 2**30)
    assert cores.rank_memory_bytes({"LOCAL_WORLD_SIZE": "4"}) == 2**28
    monkeypatch.setattr(cores, "memory_limit", lambda: float("inf"))
    assert 2**28 < cores.rank_memory_bytes({}) < 2**60
