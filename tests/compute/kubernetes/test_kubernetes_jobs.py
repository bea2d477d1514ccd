"""Jobs on an emulated Kubernetes have the outcomes of an undisturbed one here, whoever is killed meanwhile."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from loader.errors import EngineUnreachable, JobCancelled
from penstock.compute.attach import attach, cancel
from penstock.compute.cluster import Cluster, read_cluster
from penstock.compute.engines.kubernetes import KubernetesCluster, KubernetesEngine, job_object
from tests.compute.batch_checks import NETWORKS, assert_same_batch
from tests.compute.job_checks import REPOSITORY, bytes_done, done_by, folder_of, job_in, numbers, told_of
from tests.refusals import refusal
from tests.servers.kubernetes_api import job_error, kubeconfig, kubernetes
from tests.servers.patience import until

pytestmark = pytest.mark.k8s
INLINE = Cluster(engine="inline", packages=("tests",))
ENDS = {1: "raise", 3: "memory", 5: "wrong type", 7: "raise"}
IMAGE = f"registry.example/penstock@sha256:{'0' * 64}"
SECRET = "planted-secret-of-the-pods"

WAITER = """\
import sys
from pathlib import Path
from penstock.compute.cluster import read_cluster
from tests.compute.job_checks import done_by, job_in, numbers
job = job_in(Path(sys.argv[1]))
done_by(job, numbers(19, where=sys.argv[1], seconds=0.4), read_cluster(sys.argv[2]))
"""


@pytest.fixture
def server(tmp_path, monkeypatch):
    (tmp_path / "pods").mkdir()
    with kubernetes(tmp_path / "pods") as server:
        (tmp_path / "kubeconfig").write_text(kubeconfig(server.port))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        monkeypatch.setattr(KubernetesEngine, "poll_s", 0.3)  # looks come sooner than in a run of hours
        server.cluster.secrets["stores"] = {"PYTHONPATH": f"{REPOSITORY}:{NETWORKS}", "PLANTED": SECRET}
        yield server


@pytest.fixture
def cluster(server, tmp_path):
    """The cluster by its file; pods find the works of the tests."""
    (tmp_path / "cluster.toml").write_text(
        f'engine = "kubernetes"\npackages = ["tests", "tests_networks"]\nimage = "{IMAGE}"\nvenv = "{sys.prefix}"\n'
        'secret = "stores"\n[slot]\nnumber = 3\ncpus = 1\nmemory = "1GiB"\nscratch = "1GiB"\n'
        '[kubernetes]\nnamespace = "tests"\nservice_account = "runner"\nnode_selector = { disk = "nvme" }\n'
        'tolerations = [{ key = "batch", operator = "Exists", effect = "NoSchedule" }]\n'
    )
    return read_cluster(tmp_path / "cluster.toml")


@pytest.fixture(autouse=True)
def scratch_of_this_machine(monkeypatch):
    """Pods are processes here, and share the machine's folders."""
    monkeypatch.setattr("penstock.compute.engines.kubernetes.SCRATCH", "/tmp")


def test_outcomes_are_the_same_bytes_as_here_and_no_secret_is_anywhere(cluster, server, tmp_path):
    here, there = job_in(tmp_path / "here"), job_in(tmp_path / "there")
    looks = []
    first = told_of(done_by(here, numbers(11, ENDS), INLINE))
    assert (
        told_of(done_by(there, numbers(11, ENDS), cluster, lambda state: looks.append(state.status))) == first
    )
    assert list(bytes_done(there).values()) == list(bytes_done(here).values())
    assert "running" in {look.state for look in looks}
    (job,) = server.cluster.jobs.values()
    kept = b"".join(path.read_bytes() for path in (tmp_path / "there").rglob("*") if path.is_file())
    logs = b"".join(path.read_bytes() for path in (tmp_path / "pods").iterdir())
    assert SECRET not in json.dumps(job)
    assert SECRET.encode() not in kept + logs
    assert {one.node for one in folder_of(there).starts(0)} <= {"node-0", "node-1", "node-2"}


def test_unit_that_kills_its_runner_begins_its_block_five_times_in_one_attempt(cluster, tmp_path):
    job = job_in(tmp_path)
    units = numbers(4, {2: "kill the runner"}, where=str(tmp_path))
    assert told_of(done_by(job, units, cluster)) == [0, 1, "crashed", 9]
    assert len(folder_of(job).starts(1)) == 5
    assert folder_of(job).newest_attempt()[0] == 1
    assert "ended with" in cluster.open().logs(folder_of(job).attempt_name(1), 1)


def test_while_pods_who_waits_and_the_api_server_go_away(cluster, server, tmp_path):
    here, there = job_in(tmp_path / "here"), job_in(tmp_path)
    units = numbers(19, where=str(tmp_path), seconds=0.4)
    done_by(here, numbers(19, where=str(tmp_path)), INLINE)
    command = [sys.executable, "-c", WAITER, str(tmp_path), str(tmp_path / "cluster.toml")]
    waiter = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
    until(lambda: folder_of(there).done())
    waiter.kill()
    waiter.wait()
    server.cluster.kill()
    server.cluster.kill(evicted=True)
    looks = []

    def record_state(state):
        looks.append(state.status.state)
        if len(looks) == 1:
            server.away()
        elif looks[-1] == "unknown":
            server.start()

    assert told_of(done_by(there, units, cluster, record_state)) == [n**2 for n in range(19)]
    assert list(bytes_done(there).values()) == list(bytes_done(here).values())
    assert "unknown" in looks
    assert folder_of(there).newest_attempt()[0] == 1


def test_job_is_cancelled_to_its_last_process(cluster, server, tmp_path):
    job, engine = job_in(tmp_path), cluster.open()
    waiting = attach(job, numbers(7, {4: "sleep"}), engine, cluster)
    next(waiting)
    processes = [pod.process for pod in server.cluster.pods.values()]
    cancel(folder_of(job), engine)
    assert all(process is None or process.poll() is not None for process in processes)
    assert not server.cluster.pods
    with pytest.raises(JobCancelled):
        list(waiting)


def test_batch_has_the_same_bytes_though_a_runner_is_killed(cluster, server, tmp_path):
    def runners():
        with server.cluster.lock:
            pods = [pod.process for pod in server.cluster.pods.values()]
        return [process.pid for process in pods if process is not None and process.poll() is None]

    assert_same_batch(cluster, tmp_path, runners)


def test_why_pods_wait_is_told_in_the_words_of_who_lets_them_wait(cluster, server):
    engine, queued = cluster.open(), replace(cluster, queue="team").open()
    server.cluster.free = 1
    engine.submit("pk-a-1", ["sleep", "60"], 3)
    until(lambda: engine.status("pk-a-1").running == 1)
    look = engine.status("pk-a-1")
    assert (look.state, look.waiting) == ("running", 2)
    assert look.reason == "Unschedulable: 0/3 nodes are available: 3 Insufficient cpu. (2)"
    assert look.place == "Kubernetes Job pk-a-1 in namespace tests"
    engine.submit("pk-a-1", ["sleep", "60"], 3)  # it is there, and counts
    queued.submit("pk-b-1", ["sleep", "60"], 3)
    assert queued.status("pk-b-1").reason == "suspended by queue team: no word of Kueue"
    condition = {"type": "QuotaReserved", "status": "False", "message": "couldn't assign flavors"}
    server.cluster.workloads = [{"status": {"conditions": [condition]}}]
    assert queued.status("pk-b-1").reason == "suspended by queue team: couldn't assign flavors"
    assert queued.status("pk-b-1").state == "waiting"
    for name in ("pk-a-1", "pk-b-1"):
        engine.cancel(name)
        assert not engine.find(name)
    server.away()
    with refusal(EngineUnreachable, what="answer", where="API server"):
        engine.status("pk-a-1")


def test_job_has_the_schema_of_the_release():
    for more in ({}, {"gpus": 2, "queue": "team", "secret": "s", "memory_bytes": 2**30}):
        body = job_object(KubernetesCluster(slots=2, image=IMAGE, **more), "pk-a-1", ["python"], 9, (0, 3))
        assert not job_error(body)
        assert job_error({**body, "spec": {**body["spec"], "paralellism": 2}})
        del body["spec"]["completions"]
        assert "completions" in job_error({**body, "spec": {**body["spec"], "completions": 0}})
