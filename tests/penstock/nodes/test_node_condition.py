"""The condition of Kubernetes' nodes, by the official client against an emulated API server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import loader
from loader.errors import Conflict, InvalidCluster
from penstock.compute.cluster import Cluster, NodeCheck, TrainSettings
from penstock.nodes.cases import CaseBook
from penstock.nodes.control import CONDITION, NodeControl, node_control
from penstock.nodes.node_check import put_failures, run_checks
from penstock.nodes.proof import NodeProver
from penstock.nodes.watch import NodeWatch, drain_by_hand, return_by_hand
from tests.refusals import refusal
from tests.servers.kubernetes_api import Server, kubeconfig, kubernetes

pytestmark = pytest.mark.k8s
FAILS = {"planted": NodeCheck(command=("sh", "-c", "echo hot; exit 2"))}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with kubernetes(tmp_path / "pods") as server:
        (tmp_path / "kubeconfig").write_text(kubeconfig(server.port))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        for number in range(3):
            ready = {"type": "Ready", "status": "True"}
            server.cluster.nodes[f"node-{number}"] = {
                "metadata": {"name": f"node-{number}"},
                "spec": {"unschedulable": True} if number == 2 else {},
                "status": {"conditions": [ready]},
            }
        yield server


@pytest.fixture
def control(server: Server) -> NodeControl:
    return node_control(Cluster(engine="kubernetes", image="i@sha256:0"))


def conditions(server: Server, node: str) -> dict[str, str]:
    return {one["type"]: one["status"] for one in server.cluster.nodes[node]["status"]["conditions"]}


def test_watch_sets_the_condition_of_a_proved_node(
    server: Server, control: NodeControl, tmp_path: Path
) -> None:
    record = loader.Root(tmp_path / "record")
    for node in server.cluster.nodes:
        put_failures(record.store, node, run_checks(FAILS))
    settings = TrainSettings(checks=FAILS, on_node=("env", "NODE={node}"))
    watch = NodeWatch(record.store, control, NodeProver(Cluster(train=settings), []), apply=True)
    reviews = [watch.review() for _ in range(2)]
    assert [review.drained for review in reviews] == [["node-0"], []]
    assert conditions(server, "node-0") == {"Ready": "True", CONDITION: "False"}
    assert conditions(server, "node-1") == {"Ready": "True"}
    (case,) = CaseBook(record.store).read()
    assert control.states()["node-0"].reason == case.reason == "penstock q-1: planted failed: hot"
    return_by_hand(record.store, control, "node-0", "ann")
    assert conditions(server, "node-0") == {"Ready": "True", CONDITION: "True"}
    assert control.states()["node-0"].in_service


def test_nodes_that_others_cordoned_are_left_alone(
    server: Server, control: NodeControl, tmp_path: Path
) -> None:
    store = loader.Root(tmp_path / "record").store
    with refusal(Conflict, what="state", where="node-2", accepted="in service") as cordoned:
        drain_by_hand(store, control, "node-2", "smoke", "ann")
    assert str(cordoned.value.given).startswith("cordoned")
    with refusal(Conflict, what="node", given="node-9"):
        drain_by_hand(store, control, "node-9", "smoke", "ann")
    with pytest.raises(InvalidCluster, match="404"):
        control.drain("node-9", "smoke")
