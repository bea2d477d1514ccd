"""The JobSet of a run, and what its cluster's file and its own take; no server is asked."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from loader.errors import InvalidCluster, InvalidSpec
from penstock.compute.cluster import Cluster, Slot, read_cluster
from penstock.compute.engines.kubernetes import Placing
from penstock.train.launch.jobset import JobSets
from penstock.train.launch.jobset_object import object_name
from penstock.train.launch.jobset_pod import pod_torchrun
from penstock.train.launched import Launched
from penstock.train.replay_run import without_nodes
from penstock.train.run_spec import RunSpec, parse_spec
from penstock.train.submitting import record_launcher
from tests.refusals import refusal
from tests.servers.jobset_api import wrong_in_jobset

IMAGE = f"registry.example/penstock@sha256:{'0' * 64}"
CLUSTER = Cluster(
    engine="kubernetes",
    image=IMAGE,
    queue="team-a",
    secret="stores",
    slot=Slot(cpus=8, memory="32GiB", scratch="100GiB"),
    kubernetes=Placing(namespace="train", topology="cloud.example/block"),
    priorities={"low": "penstock-low"},
)
SPEC = RunSpec(
    run="big_7",
    command=("python", "train.py", "--note", "$HOME"),
    nodes="6-8",
    ranks_per_node=8,
    gpus_per_node=8,
    priority="low",
    walltime_s=86_400,
    grace_s=180,
    record="memory://jobsets",
    env={"NAME": "costs $(5)"},
)


def describe_jobset(cluster: Cluster = CLUSTER, spec: RunSpec = SPEC) -> dict:
    return json.loads(JobSets(spec.record, cluster).describe(spec))


def test_jobset_is_queued_as_a_whole_with_its_priority_and_topology() -> None:
    body = describe_jobset()
    assert body["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    assert body["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "penstock-low"
    assert body["metadata"]["namespace"] == "train"
    assert body["spec"]["suspend"] is True
    ((replicated,),) = [body["spec"]["replicatedJobs"]]
    job = replicated["template"]["spec"]
    assert (replicated["replicas"], job["completions"], job["parallelism"]) == (1, 8, 8), "the larger of 6-8"
    annotations = job["template"]["metadata"]["annotations"]
    assert annotations == {"kueue.x-k8s.io/podset-required-topology": "cloud.example/block"}


def test_jobset_begins_again_without_counting_a_stop_a_disruption_or_the_walltime() -> None:
    body = describe_jobset()
    over, again, failed = body["spec"]["failurePolicy"]["rules"]
    assert (over["action"], over["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    assert over["onJobFailureMessagePatterns"] == ["failed with exit code 76 matching FailJob rule"]
    assert again["action"] == "RestartJobSetAndIgnoreMaxRestarts"
    assert again["onJobFailureReasons"] == ["PodFailurePolicy", "DeadlineExceeded"]
    assert failed == {"name": "failed", "action": "RestartJobSet"}
    assert body["spec"]["failurePolicy"]["maxRestarts"] > 0
    job = body["spec"]["replicatedJobs"][0]["template"]["spec"]
    stopped, disrupted = job["podFailurePolicy"]["rules"]
    assert (stopped["action"], stopped["onExitCodes"]["values"]) == ("FailJob", [75, 76])
    assert disrupted["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert (job["backoffLimit"], job["activeDeadlineSeconds"]) == (0, 86_400)


def test_pod_has_the_share_the_secret_and_the_grace() -> None:
    pod = describe_jobset()["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > 180
    (container,) = pod["containers"]
    limits = container["resources"]["limits"]
    assert (limits["nvidia.com/gpu"], limits["cpu"]) == ("8", "8")
    assert container["envFrom"] == [{"secretRef": {"name": "stores"}}]
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/scratch", "/dev/shm"}
    sources = {
        one["name"]: one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath") for one in container["env"]
    }
    assert sources["PENSTOCK_ATTEMPT"] == "metadata.annotations['jobset.sigs.k8s.io/restart-attempt']"
    run = container["command"][-1]
    assert "$$HOME" in run
    assert "$$(5)" in run, "else Kubernetes would expand it"
    assert parse_spec(json.loads(run.replace("$$", "$")), "the pod") == SPEC


def test_replay_avoids_nodes_by_their_names() -> None:
    body = describe_jobset(
        without_nodes(replace(CLUSTER, kubernetes=Placing(excluded_nodes=("m9",))), ["m3", "m1"])
    )
    pod = body["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert [(field["key"], field["operator"], field["values"]) for field in term["matchFields"]] == [
        ("metadata.name", "NotIn", [node]) for node in ("m1", "m3", "m9")
    ]
    assert wrong_in_jobset(body) == ""
    assert (
        "affinity"
        not in describe_jobset()["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    )


def test_first_pod_is_where_the_ranks_meet() -> None:
    body = describe_jobset()
    name = body["metadata"]["name"]
    (container,) = body["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"]
    (meeting,) = [one["value"] for one in container["env"] if one["name"] == "PENSTOCK_MEETING"]
    assert meeting == f"{name}-ranks-0-0.{name}:29500"
    command = pod_torchrun(SPEC, "3", meeting)
    assert {"--nnodes=8", "--node-rank=3", "--rdzv-backend=static", "--nproc-per-node=8"} <= set(command)
    assert f"--master-addr={name}-ranks-0-0.{name}" in command
    assert "--standalone" not in command
    assert command[-len(SPEC.command) :] == list(SPEC.command)


def test_record_names_the_node_and_not_the_pod() -> None:
    """Signs of bad nodes are counted by it, and Kubernetes cordons by it."""
    assert Launched.from_env({"PENSTOCK_NODE": "gpu-7", "PENSTOCK_ATTEMPT": "2"}).node == "gpu-7"
    pod = describe_jobset()["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    sources = {one["name"]: one.get("valueFrom") for one in pod["containers"][0]["env"]}
    assert sources["PENSTOCK_NODE"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}


@pytest.mark.parametrize("run", ["big-7", "Big.7_", "7", "._.x", "x" * 100])
def test_name_is_a_host_name_whatever_the_run_is_called(run: str) -> None:
    name = object_name("s3://lab/penstock", run)
    assert f"{name}-ranks-0-99999".replace("-", "").isalnum()
    assert name == name.lower()
    assert len(f"{name}-ranks-0-99999") <= 63
    assert name != object_name("s3://lab/other", run), "two records may have runs of one name"


@pytest.mark.parametrize(
    ("cluster", "spec", "error", "what", "value"),
    [
        (replace(CLUSTER, queue=""), SPEC, InvalidCluster, "queue", 8),
        (CLUSTER, replace(SPEC, ranks_per_node=9), InvalidCluster, "slot.cpus", 8),
        (CLUSTER, replace(SPEC, priority="top"), InvalidSpec, "priority", "top"),
        (replace(CLUSTER, image="penstock:latest"), SPEC, InvalidCluster, "image", "penstock:latest"),
    ],
)
def test_file_that_cannot_run_is_refused(
    cluster: Cluster, spec: RunSpec, error: type[Exception], what: str, value: object
) -> None:
    with refusal(error, what=what, given=value):
        describe_jobset(cluster, spec)


def test_run_on_one_node_needs_no_queue() -> None:
    body = describe_jobset(replace(CLUSTER, queue=""), replace(SPEC, nodes="1", priority=""))
    assert body["spec"]["suspend"] is False
    assert not [label for label in body["metadata"]["labels"] if "kueue" in label]


def test_cluster_file_chooses_the_launcher(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(
        f'engine = "kubernetes"\nimage = "{IMAGE}"\nqueue = "team-a"\n[kubernetes]\ntopology = "cloud.example/block"\n'
        '[priorities]\nlow = "penstock-low"\n'
    )
    cluster = read_cluster(tmp_path / "cluster.toml")
    assert isinstance(record_launcher("memory://jobsets", cluster), JobSets)
    assert cluster.kubernetes.topology == "cloud.example/block"
