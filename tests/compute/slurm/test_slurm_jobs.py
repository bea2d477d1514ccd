"""Jobs on a real Slurm of four nodes have the outcomes of an undisturbed one here, whoever is killed meanwhile."""

import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from loader.errors import JobCancelled
from penstock.compute.attach import attach, cancel
from penstock.compute.cluster import Cluster, Slot
from tests.compute.batch_checks import NETWORKS, assert_same_batch
from tests.compute.job_checks import (
    REPOSITORY,
    assert_a_gpu_has_a_worker,
    bytes_done,
    done_by,
    folder_of,
    job_in,
    numbers,
    told_of,
)
from tests.servers.patience import until
from tests.servers.processes import command_name, end

pytestmark = pytest.mark.slurm
INLINE = Cluster(engine="inline", packages=("tests",))
ENDS = {1: "raise", 3: "memory", 5: "wrong type", 7: "raise"}

WAITER = """\
import sys
from pathlib import Path
from penstock.compute.cluster import read_cluster
from tests.compute.job_checks import done_by, job_in, numbers
job = job_in(Path(sys.argv[1]))
done_by(job, numbers(40, where=sys.argv[1], seconds=0.3), read_cluster(sys.argv[2]))
"""


@pytest.fixture
def cluster(slurm_cluster, tmp_path):
    """The cluster, whose nodes import the works of the tests; its file lies beside the job."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "environment").write_text(f"PYTHONPATH={REPOSITORY}:{NETWORKS}\n")
    (tmp_path / "cluster.toml").write_text(
        f'engine = "slurm"\npackages = ["tests", "tests_networks"]\nlogs = "{tmp_path}/logs"\n'
        f'environment = "{tmp_path}/environment"\n[slot]\nnumber = 8\n'
    )
    from penstock.compute.cluster import read_cluster

    return read_cluster(tmp_path / "cluster.toml")


@pytest.fixture
def quick(monkeypatch):
    """Looks at Slurm come sooner than in a run of hours."""
    from penstock.compute.engines.slurm import SlurmEngine

    monkeypatch.setattr(SlurmEngine, "poll_s", 0.5)


def test_outcomes_are_the_same_bytes_as_here(cluster, quick, tmp_path):
    here, there = job_in(tmp_path / "here"), job_in(tmp_path / "there")
    first = told_of(done_by(here, numbers(11, ENDS), INLINE))
    assert told_of(done_by(there, numbers(11, ENDS), cluster)) == first
    assert list(bytes_done(there).values()) == list(bytes_done(here).values())


def test_slurm_gives_a_runner_gpus_and_each_has_a_worker(cluster, quick, tmp_path):
    slot = replace(cluster.slot, cpus=2, gpus=2, gpu_type="fake", number=2)
    assert_a_gpu_has_a_worker(tmp_path / "gpus", replace(cluster, slot=slot), {"0", "1"})


def test_unit_that_kills_its_runner_begins_its_block_five_times_in_one_attempt(cluster, quick, tmp_path):
    job = job_in(tmp_path)
    units = numbers(4, {2: "kill the runner"}, where=str(tmp_path))
    assert told_of(done_by(job, units, cluster)) == [0, 1, "crashed", 9]
    assert len(folder_of(job).starts(1)) == 5
    assert folder_of(job).newest_attempt()[0] == 1


def test_while_runners_a_node_the_controller_and_who_waits_are_killed(
    cluster, quick, slurm_cluster, tmp_path
):
    here, there = job_in(tmp_path / "here"), job_in(tmp_path)
    units = numbers(40, where=str(tmp_path), seconds=0.3)
    done_by(here, numbers(40, where=str(tmp_path), seconds=0.0), INLINE)
    waiter = subprocess.Popen(
        [sys.executable, "-c", WAITER, str(tmp_path), str(tmp_path / "cluster.toml")],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    until(lambda: len(folder_of(there).done()) > 2)
    waiter.kill()
    waiter.wait()
    for pid in slurm_cluster.processes("m1"):
        if command_name(pid).startswith("python"):
            end(pid)
    slurm_cluster.kill_node("m3")
    slurm_cluster.kill_head()
    time.sleep(1)
    slurm_cluster.start_head()
    # The node stays away: of one that boots at once, Slurm learns half a minute later that its jobs are gone.
    done = done_by(there, units, cluster, lambda state: slurm_cluster.resume())
    assert told_of(done) == [n**2 for n in range(40)]
    slurm_cluster.start_node("m3")
    assert list(bytes_done(there).values()) == list(bytes_done(here).values())


def test_job_is_cancelled_to_its_last_process(cluster, quick, slurm_cluster, tmp_path):
    job, engine = job_in(tmp_path), cluster.open()
    waiting = attach(job, numbers(7, {4: "sleep"}, seconds=0.0), engine, cluster)
    next(waiting)
    cancel(folder_of(job), engine)
    until(lambda: not slurm_cluster.processes())  # the kernel takes them away a moment after Slurm's word
    with pytest.raises(JobCancelled):
        list(waiting)


def test_cluster_of_one_slot(cluster, quick, tmp_path):
    one = replace(cluster, slot=Slot(number=1, cpus=2))
    assert told_of(done_by(job_in(tmp_path), numbers(6), one)) == [n**2 for n in range(6)]


def test_batch_has_the_same_bytes_though_a_runner_is_killed(cluster, quick, slurm_cluster, tmp_path):
    def runners():
        return [pid for pid in slurm_cluster.processes() if command_name(pid).startswith("python")]

    assert_same_batch(cluster, tmp_path, runners)
