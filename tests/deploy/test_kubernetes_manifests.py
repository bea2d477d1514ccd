"""deploy/kubernetes and deploy/kueue: held to schemas, to deploy/production, and to what penstock asks."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.cli import parser
from penstock.compute.cluster import Cluster, read_cluster
from penstock.nodes.control import node_control
from penstock.train.launch.jobset import JobSets
from penstock.train.run_spec import RunSpec
from tests.deploy import kueue_kinds
from tests.servers.kubernetes_api import kubeconfig, kubernetes

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
SERVICES = ("code-server", "daemon", "metrics", "viewer", "webserver")
Json = dict[str, Any]


def objects(folder: str) -> list[Json]:
    paths = sorted((DEPLOY / folder).glob("*.yaml"))
    found = [body for path in paths for body in yaml.safe_load_all(path.read_text(encoding="utf-8"))]
    return [body for body in found if body["kind"] != "Kustomization"]


def find_object(folder: str, kind: str, name: str) -> Json:
    (body,) = [one for one in objects(folder) if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return body


def workloads() -> Iterator[tuple[str, Json]]:
    """Yield the component and the pod template of each."""
    for body in objects("kubernetes"):
        if body["kind"] in ("Deployment", "StatefulSet"):
            template = body["spec"]["template"]
            yield template["metadata"]["labels"]["app.kubernetes.io/component"], template


def container(component: str) -> Json:
    (found,) = dict(workloads())[component]["spec"]["containers"]
    return dict(found)


@pytest.mark.k8s
@pytest.mark.parametrize("folder", ["kubernetes", "kueue"])
def test_core_kinds_have_the_schema_of_the_release(folder: str) -> None:
    import kubernetes_validate

    core = [body for body in objects(folder) if "kueue" not in body["apiVersion"]]
    assert core
    for body in core:
        kubernetes_validate.validate(body, "1.37", strict=True)


def test_kinds_of_kueue_have_its_fields() -> None:
    own = [body for body in objects("kueue") if "kueue" in body["apiVersion"]]
    assert {body["kind"] for body in own} == {*kueue_kinds.SPECS, "WorkloadPriorityClass"}
    for body in own:
        assert kueue_kinds.schema_errors(body) == [], body["metadata"]["name"]


def test_wrong_field_of_kueue_is_seen() -> None:
    body = find_object("kueue", "ClusterQueue", "team-a")
    spec = body["spec"]
    assert kueue_kinds.schema_errors({**body, "spec": {**spec, "cohort": "gpus"}}) == [
        "ClusterQueue.spec.cohort is unknown"
    ]
    assert kueue_kinds.schema_errors({**body, "apiVersion": "kueue.x-k8s.io/v1beta1"})
    del spec["cohortName"]
    assert kueue_kinds.schema_errors(body) == ["borrowingLimit needs cohortName"]


def test_queues_flavors_and_topologies_that_are_named_are_there() -> None:
    names = {(body["kind"], body["metadata"]["name"]) for body in objects("kueue")}
    namespaces = {name for kind, name in names if kind == "Namespace"}
    for body in objects("kueue"):
        spec = body.get("spec", {})
        if body["kind"] == "LocalQueue":
            assert ("ClusterQueue", spec["clusterQueue"]) in names
            assert body["metadata"]["namespace"] in namespaces
        if body["kind"] == "ClusterQueue":
            assert spec["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] in namespaces
            assert {("ResourceFlavor", one["name"]) for one in spec["resourceGroups"][0]["flavors"]} <= names
        if body["kind"] == "ResourceFlavor":
            assert ("Topology", spec["topologyName"]) in names


def test_cluster_file_names_what_the_manifests_hold() -> None:
    cluster = read_cluster(DEPLOY / "kueue" / "cluster.toml")
    queues = {
        (one["metadata"]["namespace"], one["metadata"]["name"]): one["spec"]["clusterQueue"]
        for one in objects("kueue")
        if one["kind"] == "LocalQueue"
    }
    cluster_queue = find_object("kueue", "ClusterQueue", queues[cluster.kubernetes.namespace, cluster.queue])
    for value in cluster.priorities.values():
        assert find_object("kueue", "WorkloadPriorityClass", value)
    levels = find_object("kueue", "Topology", "gpu-blocks")["spec"]["levels"]
    assert cluster.kubernetes.topology in {level["nodeLabel"] for level in levels}
    spec = RunSpec(
        run="big-7",
        command=("python",),
        nodes="8",
        ranks_per_node=8,
        gpus_per_node=8,
        priority="low",
        record="memory://x",
    )
    body = json.loads(JobSets("memory://x", cluster).describe(spec))
    pod = body["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    asked = pod["containers"][0]["resources"]["requests"]
    covered = cluster_queue["spec"]["resourceGroups"][0]["coveredResources"]
    assert set(asked) <= set(covered), "Kueue admits nothing that asks for a resource without a quota"


@pytest.mark.k8s
def test_role_of_node_watchers_allows_what_they_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kubernetes(tmp_path) as server:
        (tmp_path / "kubeconfig").write_text(kubeconfig(server.port))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        server.cluster.nodes["gpu-7"] = {
            "metadata": {"name": "gpu-7"},
            "spec": {},
            "status": {"conditions": []},
        }
        control = node_control(Cluster(engine="kubernetes"))
        control.states()
        control.drain("gpu-7", "penstock q-1: planted")
        assert server.cluster.requests == {("GET", "/api/v1/nodes"), ("PATCH", "/api/v1/nodes/gpu-7/status")}
    rules = find_object("kueue", "ClusterRole", "penstock-node-watcher")["rules"]
    assert [(rule["resources"], rule["verbs"]) for rule in rules] == [
        (["nodes"], ["list"]),
        (["nodes/status"], ["patch"]),
    ]


@pytest.mark.parametrize("component", [*SERVICES, "postgres"])
def test_pod_is_as_restricted_as_its_namespace_asks(component: str) -> None:
    pod = dict(workloads())[component]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for one in [*pod["containers"], *pod.get("initContainers", [])]:
        security = one["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert {"requests", "limits"} <= one["resources"].keys()
        mounts = {mount["name"] for mount in one["volumeMounts"]}
        assert mounts <= {volume["name"] for volume in pod["volumes"]} | {"data"}
    assert "livenessProbe" in container(component)
    assert "startupProbe" in container(component), "a slow start is not a failure"


def test_commands_and_ports_are_those_of_compose() -> None:
    compose = yaml.safe_load((DEPLOY / "production" / "compose.yaml").read_text(encoding="utf-8"))["services"]
    for component in ("code-server", "daemon", "metrics", "webserver"):
        words = shlex.split(compose[component]["command"])
        if words[0] == "sh":
            migrate, _, words = words[2].partition(" && exec ")  # type: ignore[assignment]
            (first,) = dict(workloads())[component]["spec"]["initContainers"]
            assert first["command"] == shlex.split(migrate)
            words = shlex.split(words)  # type: ignore[arg-type]
        own = container(component)
        assert [*own["command"], *own.get("args", [])] == words
        for port in compose[component].get("ports", []):
            assert own["ports"][0]["containerPort"] == int(port.rpartition(":")[2])
    assert container("postgres")["image"] == compose["postgres"]["image"]


def test_viewer_starts_by_a_command_of_penstock() -> None:
    own = container("viewer")
    arguments = parser().parse_args(own["command"][1:])
    assert (arguments.host, arguments.port) == ("0.0.0.0", own["ports"][0]["containerPort"])


def test_user_and_folders_are_those_of_the_image() -> None:
    image = (DEPLOY / "production" / "Dockerfile").read_text(encoding="utf-8")
    user = re.search(r"^USER (\d+)$", image, re.M)
    home = re.search(r"^ENV DAGSTER_HOME=(\S+)$", image, re.M)
    folder = re.search(r"^WORKDIR (\S+)$", image, re.M)
    assert user
    assert home
    assert folder
    assert f"--uid {user[1]} " in image
    for component in SERVICES:
        assert dict(workloads())[component]["spec"]["securityContext"]["runAsUser"] == int(user[1])
        mounts = {mount["mountPath"] for mount in container(component)["volumeMounts"]}
        assert f"{home[1]}/storage" in mounts
        if "-w" in container(component)["command"]:
            assert "workspace.production.yaml" in image
    words = container("code-server")["args"]
    assert words[words.index("-d") + 1] == folder[1]


def test_settings_are_those_of_the_environment_and_no_secret_is_among_them() -> None:
    text = (DEPLOY / "environment.example").read_text(encoding="utf-8")
    known = {line.partition("=")[0] for line in text.splitlines() if "=" in line and not line.startswith("#")}
    settings = find_object("kubernetes", "ConfigMap", "penstock")["data"]
    assert settings.keys() <= known
    assert not settings.keys() & {"PENSTOCK_DAGSTER_POSTGRES", "PENSTOCK_ALERTS"}
    assert settings["PENSTOCK_CODE_HOST"] in {
        body["metadata"]["name"] for body in objects("kubernetes") if body["kind"] == "Service"
    }
    assert not [body for body in objects("kubernetes") if body["kind"] == "Secret"]


def test_each_service_has_the_secrets_that_it_needs() -> None:
    secrets = {
        component: {one["secretRef"]["name"] for one in container(component)["envFrom"] if "secretRef" in one}
        for component in SERVICES
    }
    assert secrets == {
        "code-server": {"penstock-stores", "penstock-dagster"},
        "daemon": {"penstock-dagster"},
        "metrics": {"penstock-stores"},
        "viewer": {"penstock-stores"},
        "webserver": {"penstock-dagster"},
    }


def test_services_and_rules_of_the_network_reach_pods_and_ports_that_there_are() -> None:
    labels = {component: template["metadata"]["labels"] for component, template in workloads()}
    ports = {
        component: {port["name"]: port["containerPort"] for port in container(component).get("ports", [])}
        for component in labels
    }
    for body in objects("kubernetes"):
        spec = body.get("spec", {})
        if body["kind"] == "Service":
            (component,) = [name for name, own in labels.items() if spec["selector"].items() <= own.items()]
            (port,) = spec["ports"]
            assert ports[component][port["targetPort"]] == port["port"]
        if body["kind"] == "NetworkPolicy" and spec["podSelector"]:
            chosen = [name for name, own in labels.items() if selects(spec["podSelector"], own)]
            opened = {port["port"] for rule in spec["ingress"] for port in rule["ports"]}
            assert opened == {number for name in chosen for number in ports[name].values()}
    closed = find_object("kubernetes", "NetworkPolicy", "penstock")["spec"]
    assert closed["podSelector"] == {}
    assert "ingress" not in closed
    listening = {name for name, own in ports.items() if own}
    opened_names = {
        name
        for body in objects("kubernetes")
        if body["kind"] == "NetworkPolicy" and body["spec"]["podSelector"]
        for name, own in labels.items()
        if selects(body["spec"]["podSelector"], own)
    }
    assert opened_names == listening


def selects(selector: Json, labels: Json) -> bool:
    expressions = all(labels.get(one["key"]) in one["values"] for one in selector.get("matchExpressions", []))
    return expressions and selector.get("matchLabels", {}).items() <= labels.items()


def test_what_must_not_run_twice_is_recreated() -> None:
    for name in ("code-server", "daemon"):
        spec = find_object("kubernetes", "Deployment", f"penstock-{name}")["spec"]
        assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")
    pod = dict(workloads())["code-server"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 600, "as compose's stop_grace_period"


def test_kustomization_names_every_file() -> None:
    path = DEPLOY / "kubernetes" / "kustomization.yaml"
    resources = yaml.safe_load(path.read_text(encoding="utf-8"))["resources"]
    assert sorted([*resources, path.name]) == sorted(one.name for one in path.parent.iterdir())
