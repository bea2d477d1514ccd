"""Runs on an emulated Kubernetes with JobSet: queued, admitted, evicted, drained, failed, stopped and cancelled."""

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import loader
from loader.errors import EngineUnreachable, InvalidCluster, InvalidRuntime
from penstock.compute.cluster import Cluster, Slot
from penstock.train.goodput.run_usage import run_goodput
from penstock.train.launch import jobset_object
from penstock.train.launch.jobset import JobSets
from penstock.train.launch.jobset_object import object_name
from penstock.train.run_folder import RunFolder
from penstock.train.run_spec import RunSpec
from penstock.train.submitting import resume, stop, submit
from tests.refusals import refusal
from tests.servers.jobset_api import JobSetCluster, wrong_in_jobset
from tests.servers.kubernetes_api import Server, kubeconfig, kubernetes
from tests.servers.patience import until

pytestmark = pytest.mark.k8s
REPOSITORY = Path(__file__).parents[3]
TRAINING = str(Path(__file__).with_name("training.py"))
IMAGE = f"registry.example/penstock@sha256:{'0' * 64}"
SECRET = "planted-secret-of-the-pods"
PREEMPTED = "Preempted to accommodate a workload (UID: 7) due to prioritization in the ClusterQueue"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    (tmp_path / "pods").mkdir()
    with kubernetes(tmp_path / "pods", JobSetCluster) as server:
        (tmp_path / "kubeconfig").write_text(kubeconfig(server.port))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        monkeypatch.setattr("penstock.train.launch.jobset.ASK_S", 0.05)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            monkeypatch.setattr(
                jobset_object, "PORT", free.getsockname()[1]
            )  # pods share the machine's address
        server.cluster.secrets["stores"] = {
            "PYTHONPATH": str(REPOSITORY),
            "CUDA_VISIBLE_DEVICES": "",
            "PLANTED": SECRET,
        }
        yield server


@pytest.fixture
def launcher(server: Server, root: str) -> JobSets:
    cluster = Cluster(
        engine="kubernetes", image=IMAGE, venv=sys.prefix, queue="team-a", secret="stores", slot=Slot(cpus=2)
    )
    return JobSets(root, cluster)


def spec(root: str, *options: object, **more: object) -> RunSpec:
    command = (sys.executable, TRAINING, root, *map(str, options))
    facts = {"run": "big-7", "nodes": "2", "record": root, "grace_s": 60, "command": command, **more}
    return RunSpec(**facts)  # type: ignore[arg-type]


def sleeper(root: str) -> RunSpec:
    return spec(root, command=("sleep", "600"), grace_s=1)


def test_jobset_fits_the_published_model(root: str, launcher: JobSets) -> None:
    body = json.loads(launcher.describe(spec(root, walltime_s=60)))
    assert wrong_in_jobset(body) == ""
    assert "supend is unknown" in wrong_in_jobset({**body, "spec": {**body["spec"], "supend": True}})
    body["spec"]["replicatedJobs"][0]["template"]["spec"]["paralellism"] = 2
    assert "paralellism" in wrong_in_jobset(body)


def test_run_waits_runs_is_evicted_and_cancelled(root: str, server: Server, launcher: JobSets) -> None:
    run, name = sleeper(root), object_name(loader.Root(root).url, "big-7")
    assert launcher.status("big-7").state == "unknown"
    place = submit(run, launcher)
    assert place == f"JobSet {name} in namespace default, queue team-a"
    assert submit(run, launcher) == place, "it is found"
    assert len(server.cluster.jobsets) == 1
    assert SECRET not in json.dumps(server.cluster.jobsets[name])
    waits = launcher.status("big-7")
    assert (waits.state, waits.reason) == ("waiting", "suspended by queue team-a: no word of Kueue")
    message = "couldn't assign flavors to pod set ranks: insufficient unused quota for nvidia.com/gpu"
    conditions = [{"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": message}]
    server.cluster.workloads = [{"status": {"conditions": conditions}}]
    assert launcher.why("big-7") == f"QuotaReserved False, Pending: {message}"

    conditions[:] = [{"type": "QuotaReserved", "status": "True", "reason": "QuotaReserved"}]
    server.cluster.admit(name)
    until(lambda: launcher.status("big-7").state == "running")
    assert launcher.why("big-7") == ""
    (span,) = launcher.spans("big-7")
    assert (span.nodes, span.ended_us) == (2, None)
    assert span.node_names

    conditions.append({"type": "Evicted", "status": "True", "reason": "Preempted", "message": PREEMPTED})
    server.cluster.evict(name)
    until(lambda: not server.cluster.pods)
    waits = launcher.status("big-7")
    assert (waits.state, waits.reason) == ("waiting", f"Evicted True, Preempted: {PREEMPTED}")
    server.cluster.admit(name)
    until(lambda: launcher.status("big-7").state == "running")
    processes = [pod.process for pod in server.cluster.pods.values()]
    launcher.cancel("big-7")
    assert all(process is None or process.poll() is not None for process in processes)
    assert launcher.status("big-7").state == "unknown"


def test_pods_that_do_not_fit_are_named(root: str, server: Server, launcher: JobSets) -> None:
    server.cluster.free = 0
    submit(sleeper(root), launcher)
    server.cluster.admit(object_name(loader.Root(root).url, "big-7"))
    words = "Unschedulable: 0/3 nodes are available: 3 Insufficient cpu."
    until(lambda: launcher.status("big-7").reason == words)
    assert launcher.status("big-7").state == "waiting"
    launcher.cancel("big-7")


def test_waiting_jobset_is_replaced_by_one_of_the_nodes_that_are_named(
    root: str, server: Server, launcher: JobSets
) -> None:
    run, name = replace(sleeper(root), nodes="1-3"), object_name(loader.Root(root).url, "big-7")

    def nodes() -> int:
        (job,) = server.cluster.jobsets[name]["spec"]["replicatedJobs"]
        return int(job["template"]["spec"]["completions"])

    submit(run, launcher)
    assert nodes() == 3
    assert "the file before" not in resume(run, launcher, 2)
    assert nodes() == 2, "it waited in the queue"
    server.cluster.free = 0
    server.cluster.admit(name)
    until(lambda: launcher.status("big-7").reason.startswith("Unschedulable"))
    assert "the file before" not in submit(run, launcher, 1)
    assert nodes() == 1, "it waited for nodes"
    launcher.cancel("big-7")


def test_role_of_submitters_allows_what_runs_and_data_jobs_ask(
    root: str, server: Server, launcher: JobSets
) -> None:
    launcher.submit(sleeper(root))
    launcher.status("big-7")
    server.cluster.admit(object_name(loader.Root(root).url, "big-7"))
    until(lambda: launcher.status("big-7").state == "running")
    launcher.logs("big-7")
    launcher.cancel("big-7")
    engine = replace(launcher._cluster, slot=Slot(number=1)).open()
    engine.submit("pk-a-1", ["sleep", "600"], 1)
    engine.status("pk-a-1")
    engine.cancel("pk-a-1")
    asked = {right(*request) for request in server.cluster.requests}
    paths = (REPOSITORY / "deploy" / "kueue" / "submitters.yaml").read_text()
    (role,) = [body for body in yaml.safe_load_all(paths) if body["kind"] == "Role"]
    allowed = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert asked == allowed


def right(method: str, path: str) -> tuple[str, str, str]:
    """Return group, resource and verb of a request, as roles name them."""
    words = path.strip("/").split("/")
    group, rest = ("", words[4:]) if words[0] == "api" else (words[1], words[5:])
    if len(rest) == 3:
        return group, f"{rest[0]}/{rest[2]}", "get"
    return (
        group,
        rest[0],
        {"GET": "get" if len(rest) == 2 else "list", "POST": "create"}.get(method, "delete"),
    )


def test_server_checks_a_dry_run_and_keeps_nothing(root: str, server: Server, launcher: JobSets) -> None:
    assert "the server takes JobSet pk-big-7-" in launcher.check(sleeper(root))
    assert not server.cluster.jobsets
    body = json.loads(launcher.describe(sleeper(root)))
    body["spec"]["supend"] = True
    with pytest.raises(InvalidCluster, match=r"422: JobSet\.spec\.supend is unknown"):
        launcher._api.create_jobset(body, dry_run=True)
    server.away()
    with refusal(EngineUnreachable, what="answer", where="API server"):
        launcher.check(sleeper(root))


def test_cluster_without_jobset_is_named(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kubernetes(tmp_path) as server:
        (tmp_path / "kubeconfig").write_text(kubeconfig(server.port))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        cluster = Cluster(engine="kubernetes", image=IMAGE, queue="team-a", slot=Slot(cpus=2))
        with pytest.raises(InvalidCluster, match=r"404: .* is JobSet installed"):
            JobSets(root, cluster).submit(sleeper(root))


def test_run_that_fails_twice_alike_ends_with_the_words_of_the_jobset(
    root: str, server: Server, launcher: JobSets
) -> None:
    """The second time no pod waits."""
    launcher._cluster = replace(launcher._cluster, queue="")
    script = (
        "import os, sys, time\n"
        "print('rank', os.environ['RANK'], flush=True)\n"
        "raise ValueError('planted') if os.environ['RANK'] == '1' else time.sleep(600)\n"
    )
    run = spec(root, command=(sys.executable, "-c", script), nodes="1", ranks_per_node=2)
    submit(run, launcher)
    until(lambda: "it restarts in 10 s" in launcher.logs("big-7"), lambda: launcher.logs("big-7"))
    assert {"rank 1", "ValueError: planted"} <= set(launcher.logs("big-7", rank=1).splitlines())
    assert "rank 0" not in launcher.logs("big-7", rank=1)
    until(lambda: launcher.status("big-7").state == "ended", lambda: launcher.logs("big-7"))
    assert launcher.status("big-7").reason.startswith("FailJobSetFailurePolicyAction: ")
    (jobset,) = server.cluster.jobsets.values()
    assert (jobset["status"]["restarts"], jobset["status"]["restartsCountTowardsMax"]) == (1, 1)
    text = launcher.logs("big-7")
    assert "failed twice alike without a step between; it is over" in text
    assert "ended with 76" in text
    store = loader.Root(root).store
    (first, second) = [store.get(info.key).data for info in store.list("trainings/big-7/failures/")]
    assert b'"line":"ValueError: planted"' in first
    assert b'"over":true' in second
    before, after = launcher.spans("big-7")  # no rank met in either
    assert (before.state, before.nodes) == ("failed", 1)
    assert 10_000_000 <= before.ended_us - before.begun_us <= 60_000_000, "its wait of 10 s included"
    assert before.ended_us - 2_000_000 <= after.begun_us
    with refusal(InvalidRuntime, what="start", where="big-7", given=0):
        launcher.logs("big-7", start=0)


def test_run_that_asks_for_it_begins_again_without_counting(
    root: str, server: Server, launcher: JobSets
) -> None:
    """A rank that leaves the file of the stop, then fails: torchrun ends with 1, the pod with 75."""
    script = (
        "import os, pathlib, sys\n"
        "again = os.environ['PENSTOCK_ATTEMPT'] == '0'\n"
        "again and pathlib.Path(os.environ['PENSTOCK_STOPPED']).touch()\n"
        "sys.exit(75 if again else 0)\n"
    )
    launcher._cluster = replace(launcher._cluster, queue="")
    submit(spec(root, command=(sys.executable, "-c", script), nodes="1"), launcher)
    until(lambda: launcher.status("big-7").state == "ended", lambda: launcher.logs("big-7"))
    (jobset,) = server.cluster.jobsets.values()
    assert jobset["status"]["conditions"][0]["type"] == "Completed"
    assert (jobset["status"]["restarts"], jobset["status"]["restartsCountTowardsMax"]) == (1, 0)


def test_run_begins_again_after_its_walltime_without_counting(
    root: str, server: Server, launcher: JobSets
) -> None:
    launcher._cluster = replace(launcher._cluster, queue="")
    submit(replace(sleeper(root), nodes="1", walltime_s=1), launcher)
    (jobset,) = server.cluster.jobsets.values()
    until(lambda: jobset["status"]["restarts"] == 1)
    assert jobset["status"]["restartsCountTowardsMax"] == 0
    launcher.cancel("big-7")


def test_run_is_evicted_drained_stopped_and_resumed(root: str, server: Server, launcher: JobSets) -> None:
    """Two pods with torchrun each: no step is lost, none done twice, and no restart counts."""
    run, folder = spec(root, "--step-s", 0.1, "--steps", 90), RunFolder(loader.Root(root).store, "big-7")
    name = object_name(loader.Root(root).url, "big-7")
    logs = Path(server.cluster.folder)

    def text() -> str:
        return "".join(path.read_text() for path in logs.iterdir())

    def has_first_batch(attempt: int) -> bool:
        names = [event.name for event in folder.events() if event.attempt == attempt]
        return "first_batch" in names

    submit(run, launcher)
    server.cluster.admit(name)
    until(lambda: has_first_batch(1), text)
    server.cluster.evict(name)  # by Kueue
    until(lambda: not server.cluster.pods, text)
    server.cluster.admit(name)
    until(lambda: has_first_batch(2), text)
    server.cluster.kill(evicted=True)  # by a drained node
    until(lambda: has_first_batch(3), text)
    (jobset,) = server.cluster.jobsets.values()
    assert (jobset["status"]["restarts"], jobset["status"]["restartsCountTowardsMax"]) == (1, 0)
    assert folder.attempts()[3]["restarts"] == 1, "PENSTOCK_ATTEMPT"
    assert folder.attempts()[3]["node"] in {"node-0", "node-1", "node-2"}
    stop(folder)
    until(lambda: launcher.status("big-7").state == "ended", text)
    assert launcher.status("big-7").reason == ""
    resume(run, launcher)
    server.cluster.admit(name)
    until(lambda: has_first_batch(4), text)
    ranks = [pod.process.pid for pod in server.cluster.pods.values() if pod.process is not None]
    os.kill(ranks[0], signal.SIGUSR1)  # the starter passes it on
    until(lambda: folder.events()[-1].name == "ended", text)
    until(lambda: launcher.status("big-7").state == "ended", text)
    assert text().count("took 0 ") == text().count("took 1 ") == 90, "each step once on each rank"
    starts = run_goodput(folder, launcher)
    assert [start.attempt for start in starts] == [1, 2, 3, 4, 5]
    assert sum(start.lost_steps for start in starts) == 0
    assert [start.nodes for start in starts] == [2] * 5
