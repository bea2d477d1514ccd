"""Jobs on a real Ray of three nodes have the outcomes of an undisturbed one here, whoever is killed meanwhile."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from loader.errors import EngineUnreachable, InvalidCluster, JobCancelled
from penstock.compute.attach import attach
from penstock.compute.cluster import Cluster, read_cluster
from penstock.compute.engines.ray_engine import RayEngine
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
from tests.servers.patience import PATIENCE_S, until
from tests.servers.processes import command_line, end
from tests.servers.ray_nodes import TOKEN

pytestmark = pytest.mark.ray
INLINE = Cluster(engine="inline", packages=("tests",))
ENDS = {1: "raise", 3: "memory", 5: "wrong type", 7: "raise"}
SECRET = "planted-secret-of-the-nodes"
FILE = "cluster.toml"

WAITER = """\
import sys
from pathlib import Path
from penstock.compute.cluster import read_cluster
from tests.compute.job_checks import done_by, job_in, numbers
job = job_in(Path(sys.argv[1]), "killed")
done_by(job, numbers(25, where=sys.argv[1], seconds=0.8), read_cluster(sys.argv[2]))
"""


@pytest.fixture
def cluster(ray_cluster, tmp_path, monkeypatch):
    """The cluster, whose nodes import the works of the tests; its file lies beside the job."""
    monkeypatch.setattr(RayEngine, "poll_s", 0.5)  # looks come sooner than in a run of hours
    (tmp_path / "environment").write_text(f"PYTHONPATH={REPOSITORY}:{NETWORKS}\nPLANTED={SECRET}\n")
    (tmp_path / "cluster.toml").write_text(
        f'engine = "ray"\npackages = ["tests", "tests_networks"]\naddress = "{ray_cluster.address}"\n'
        f'environment = "{tmp_path}/environment"\n[slot]\nnumber = 5\ncpus = 1\n'
    )
    return read_cluster(tmp_path / "cluster.toml")


def get_text(ray_cluster, path):
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with urllib.request.urlopen(
        urllib.request.Request(ray_cluster.address + path, headers=headers)
    ) as answer:
        return answer.read().decode()


def test_outcomes_are_the_same_bytes_as_here_and_no_secret_is_anywhere(cluster, ray_cluster, tmp_path):
    here, there = job_in(tmp_path / "here"), job_in(tmp_path / "there")
    looks = []
    first = told_of(done_by(here, numbers(11, ENDS), INLINE))
    slower = numbers(11, ENDS, seconds=0.3)  # a look falls into each block
    assert told_of(done_by(there, slower, cluster, lambda state: looks.append(state.status))) == first
    assert list(bytes_done(there).values()) == list(bytes_done(here).values())
    assert {"waiting", "running"} <= {look.state for look in looks}
    assert any("of the cluster's 6 CPUs" in look.reason for look in looks)
    name = folder_of(there).attempt_name(1)
    said = get_text(ray_cluster, "/api/jobs/") + get_text(ray_cluster, f"/api/jobs/{name}/logs")
    kept = b"".join(path.read_bytes() for path in (tmp_path / "there").rglob("*") if path.is_file())
    assert name in said
    for secret in (SECRET, TOKEN):
        assert secret not in said
        assert secret.encode() not in kept
    env = {
        one["submission_id"]: one["runtime_env"] for one in json.loads(get_text(ray_cluster, "/api/jobs/"))
    }
    assert set(env[name]["env_vars"]) == {"RAY_JOB_STOP_WAIT_TIME_S"}
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_AUTH_TOKEN", "another")
        with pytest.raises(InvalidCluster, match=r"40[13]"):
            cluster.open().status(name)


def test_ray_gives_a_runner_gpus_and_each_has_a_worker(cluster, tmp_path):
    slot = replace(cluster.slot, cpus=2, gpus=2, number=2)
    assert_a_gpu_has_a_worker(tmp_path / "gpus", replace(cluster, slot=slot), {"0", "1"})


def test_unit_that_kills_its_runner_begins_its_block_five_times_in_one_attempt(cluster, tmp_path):
    job = job_in(tmp_path, "five")
    units = numbers(4, {2: "kill the runner"}, where=str(tmp_path))
    assert told_of(done_by(job, units, cluster)) == [0, 1, "crashed", 9]
    assert len(folder_of(job).starts(1)) == 5
    assert folder_of(job).newest_attempt()[0] == 1
    assert "ended with -9" in jobs(tmp_path, "logs", job.id, "--element", "1", "--cluster", FILE)
    job.store.delete_many([folder_of(job).key("done/0.jsonl.zst")])
    vouched = "--sha256", folder_of(job).description().sha256
    assert jobs(tmp_path, "attach", job.id, "--cluster", FILE, *vouched, code=1) == (
        "3 units done, 1 failed: crashed 1\n"
    )
    assert folder_of(job).newest_attempt()[0] == 2


def test_job_is_looked_at_and_cancelled_to_its_last_process_by_commands(cluster, ray_cluster, tmp_path):
    job, engine = job_in(tmp_path, "cancelled"), cluster.open()
    waiting = attach(job, numbers(7, {4: "sleep"}, seconds=0.0), engine, cluster)
    next(waiting)
    assert ray_cluster.processes()
    assert job.id in jobs(tmp_path, "ls")
    assert "of 3 blocks done, 7 units, attempt 1" in jobs(tmp_path, "show", job.id[:6])
    why = jobs(tmp_path, "why", job.id[:6], "--cluster", FILE)
    assert f"runs as Ray job {ray_cluster.address}/#/jobs/" in why
    assert "is cancelled" in jobs(tmp_path, "cancel", job.id, "--cluster", FILE)
    assert not ray_cluster.processes()
    assert "has ended" in jobs(tmp_path, "why", job.id, "--cluster", FILE)
    with pytest.raises(JobCancelled):
        list(waiting)


def test_while_a_node_the_driver_runners_and_who_waits_are_killed(cluster, ray_cluster, tmp_path):
    here, there = job_in(tmp_path / "here", "killed"), job_in(tmp_path, "killed")
    units = numbers(25, where=str(tmp_path), seconds=0.8)
    done_by(here, numbers(25, where=str(tmp_path), seconds=0.0), INLINE)
    command = [sys.executable, "-c", WAITER, str(tmp_path), str(tmp_path / "cluster.toml")]
    waiter = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
    until(lambda: len(folder_of(there).done()) > 1)
    drivers = [pid for pid in ray_cluster.processes() if b"ray_driver" in command_line(pid)]
    for pid in drivers:
        os.kill(pid, signal.SIGSTOP)  # no other block begins until all are killed
    waiter.kill()
    waiter.wait()
    runners = [pid for pid in ray_cluster.processes() if b"runner_process" in command_line(pid)]
    end(runners[0])
    ray_cluster.kill_node()
    for pid in drivers:
        end(pid)
    assert told_of(done_by(there, units, cluster)) == [n**2 for n in range(25)]
    assert list(bytes_done(there).values()) == list(bytes_done(here).values())


def test_batch_has_the_same_bytes_though_a_runner_is_killed(cluster, ray_cluster, tmp_path):
    def runners():
        return [pid for pid in ray_cluster.processes() if b"runner_process" in command_line(pid)]

    assert_same_batch(cluster, tmp_path, runners)


def test_head_that_begins_anew_knows_no_attempt_and_one_that_is_away_says_nothing(
    cluster, ray_cluster, tmp_path
):
    """The last test of the module: it takes the head away, and gives it back."""
    here, there = job_in(tmp_path / "here", "head"), job_in(tmp_path, "head")
    done_by(here, numbers(16), INLINE)
    engine, looks = cluster.open(), []
    waiting = attach(
        there, numbers(16, seconds=0.4), engine, cluster, lambda state: looks.append(state.status)
    )
    next(waiting)
    ray_cluster.kill_head()
    with pytest.raises(EngineUnreachable):
        engine.status(folder_of(there).attempt_name(1))
    ray_cluster.start()
    assert len(list(waiting)) == len(bytes_done(here)) - 1
    assert list(bytes_done(there).values()) == list(bytes_done(here).values())
    assert folder_of(there).newest_attempt()[0] == 2


def jobs(folder: Path, *words: str, code: int = 0) -> str:
    """What `penstock jobs` writes, as a process, of the jobs there; the token is not in it."""
    command = [sys.executable, "-m", "penstock", "jobs", *words, "--root", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ended.returncode == code, ended.stderr
    assert TOKEN not in ended.stdout + ended.stderr
    return ended.stdout
