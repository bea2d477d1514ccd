"""The watcher on a real Slurm of four nodes, one of which reads through a proxy that flips bytes."""

import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import loader
from loader.errors import Conflict
from loader.json_text import parse_json_object
from penstock.cli import main
from penstock.compute.cluster import Cluster, NodeCheck, TrainSettings, read_cluster
from penstock.compute.engines.slurm import SlurmQueue
from penstock.compute.engines.slurm_why import why_name_waits
from penstock.nodes import proof, signs
from penstock.nodes import watch as watching
from penstock.nodes.cases import CaseBook
from penstock.nodes.control import SlurmNodes
from penstock.nodes.node_check import put_failures, run_checks
from penstock.nodes.proof import NodeProver, cluster_checks
from penstock.nodes.watch import NodeWatch, drain_by_hand, return_by_hand
from penstock.train.launch.slurm_job import SlurmJobs
from penstock.train.launched import Launched
from penstock.train.replay_run import replay_spec, without_nodes
from penstock.train.run_folder import RunFolder
from penstock.train.run_spec import RunSpec
from penstock.train.submitting import submit
from tests.refusals import refusal
from tests.servers.http import Answer, HttpServer, Request
from tests.servers.patience import PATIENCE_S, until
from tests.servers.s3 import SmallS3
from tests.servers.slurm import NODES, Slurm, slurm

pytestmark = pytest.mark.slurm
BAD = "m3"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm(tmp_path_factory.mktemp("slurm")) as four, pytest.MonkeyPatch.context() as patched:
        patched.setenv("SLURM_CONF", str(four.conf))
        yield four


@pytest.fixture(autouse=True)
def all_in_service(cluster: Slurm) -> Iterator[None]:
    yield
    cluster.resume()


@pytest.fixture
def servers() -> Iterator[tuple[HttpServer, HttpServer]]:
    """(store, the same store seen through a proxy that flips a byte in one of 1,000 reads of shards)."""
    bucket, chance = SmallS3(), random.Random(0)
    bucket.page_keys = 1000
    good, bad = HttpServer(bucket), HttpServer(bucket)

    def flips(request: object) -> str:
        shard = getattr(request, "method", "") == "GET" and ".tar" in getattr(request, "target", "")
        return "flip" if shard and chance.random() < 0.001 else ""

    bad.fault_of = flips
    yield good, bad
    good.close()
    bad.close()


def environment(folder: Path, good: HttpServer, bad: HttpServer) -> Path:
    """A file of variables that each node sources: one node's reads go through the proxy."""
    file = folder / "environment"
    file.write_text(
        "AWS_ACCESS_KEY_ID=planted AWS_SECRET_ACCESS_KEY=planted AWS_REGION=eu-west-1\n"
        f"AWS_ENDPOINT_URL={good.endpoint}\n"
        f'if [ "$SLURMD_NODENAME" = {BAD} ]; then AWS_ENDPOINT_URL={bad.endpoint}; fi\n'
        f"PYTHONPATH={':'.join(sys.path)} GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES=\n"
    )
    return file


def states(control: SlurmNodes) -> dict[str, bool]:
    return {node: state.in_service for node, state in control.states().items()}


def test_node_that_flips_reads_is_drained_with_evidence(
    cluster: Slurm, servers: tuple[HttpServer, HttpServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = servers
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "planted")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", good.endpoint)
    monkeypatch.setattr(watching, "REVIEW_S", 2.0)
    with loader.Root("s3://bucket/lab") as data, data.write("points", part_samples=10) as writer:
        for number in range(2_000):
            writer.add(f"{number:04d}", {"x.npy": np.full(256, number, np.int32), "cls": number})
    record = loader.Root(tmp_path / "record")
    variables = environment(tmp_path, good, bad)
    on_node = tmp_path / "on_node.sh"
    on_node.write_text(f'set -a; . {variables}; set +a; exec "$@"\n')
    described = Cluster(
        engine="slurm",
        logs=str(tmp_path),
        environment=str(variables),
        train=TrainSettings(
            on_node=("srun", "--nodelist={node}", "--ntasks=1", "--immediate=30", "sh", str(on_node))
        ),
    )
    launcher = SlurmJobs(record.url, described)
    script = str(Path(__file__).with_name("training.py"))
    launcher.submit(
        RunSpec(
            run="big-7",
            command=(sys.executable, script, "s3://bucket/lab", "100000"),
            nodes="4",
            record=record.url,
        )
    )
    control = SlurmNodes(SlurmQueue())
    watch = NodeWatch(
        record.store, control, NodeProver(described, [record.url, "s3://bucket/lab"]), apply=True
    )
    lines, until_s = list[str](), time.monotonic() + PATIENCE_S
    while all(states(control).values()):
        assert time.monotonic() < until_s, (lines, launcher.logs("big-7"))
        review = watch.review()
        lines += review.lines
        time.sleep(1)
    launcher.cancel("big-7")
    for _ in range(3):
        watch.review()
    assert states(control) == {node: node != BAD for node in NODES}, lines
    (case,) = CaseBook(record.store).read()
    assert control.states()[BAD].reason == case.reason
    body = parse_json_object(record.store.get("nodes/q-1/case.json").data)
    assert (body["node"], body["sign"], len(body["faults"]) >= 3) == (BAD, "wrong reads", True)
    assert (body["proof"]["wrong"] >= 1, body["proof"]["reads"] > 100) == (True, True)
    assert case.text == f"{body['proof']['wrong']} wrong of {body['proof']['reads']:,} reads"
    assert all(fault["actual"] != fault["expected"] for fault in body["faults"])
    assert "wrong bytes" not in launcher.logs("big-7")
    drained_us = case.drained_us or 0
    third_us = sorted(fault["at_us"] for fault in body["faults"])[2]
    print(f"first sign to drain {(drained_us - body['faults'][0]['at_us']) / 1e6:.1f} s, {case.reason}")
    assert drained_us - third_us < 60e6, "a minute after the third wrong read"


SLOW_S = 0.05
"""Seconds added to each read of one node, several times what a read takes on the others."""


def test_node_that_reads_slowly_is_alerted_and_drained_and_no_other(
    cluster: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = SmallS3()
    bucket.page_keys = 1000

    def slowly(request: Request) -> Answer:
        time.sleep(SLOW_S)
        return bucket(request)

    good, bad = HttpServer(bucket), HttpServer(slowly)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "planted")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", good.endpoint)
    monkeypatch.setattr(signs, "RUN_EVERY_US", 1_000_000)
    monkeypatch.setattr(proof, "PROVE_AGAIN_US", 1_000_000)
    with loader.Root("s3://bucket/lab") as data, data.write("points", part_samples=10) as writer:
        for number in range(1_000):
            writer.add(f"{number:04d}", {"x.npy": np.full(256, number, np.int32), "cls": number})
    record = loader.Root(tmp_path / "record")
    variables = environment(tmp_path, good, bad)
    on_node = tmp_path / "on_node.sh"
    on_node.write_text(f'set -a; . {variables}; set +a; exec "$@"\n')
    prefix = ("srun", "--nodelist={node}", "--ntasks=1", "--immediate=30", "sh", str(on_node))
    described = Cluster(
        engine="slurm",
        logs=str(tmp_path),
        environment=str(variables),
        train=TrainSettings(on_node=prefix),
    )
    launcher = SlurmJobs(record.url, described)
    script = str(Path(__file__).with_name("training.py"))
    command = (sys.executable, script, "s3://bucket/lab", "100000", "3")
    launcher.submit(RunSpec(run="big-7", command=command, nodes="4", record=record.url))
    control = SlurmNodes(SlurmQueue())
    prover = NodeProver(described, [record.url, "s3://bucket/lab"])
    watch = NodeWatch(record.store, control, prover, apply=True)
    lines, alerts, until_s = list[str](), list[str](), time.monotonic() + PATIENCE_S
    while all(states(control).values()):
        assert time.monotonic() < until_s, (lines, launcher.logs("big-7"))
        review = watch.review()
        lines += review.news
        alerts += [review.alert] * bool(review.alert)
        time.sleep(1)
    launcher.cancel("big-7")
    assert states(control) == {node: node != BAD for node in NODES}, lines
    (case,) = CaseBook(record.store).read()
    body = parse_json_object(record.store.get("nodes/q-1/case.json").data)
    assert (body["node"], body["sign"]) == (BAD, "slow reads")
    measured = body["slowness"]
    assert measured["read_us"] >= 2 * measured["healthy_us"], measured
    assert control.states()[BAD].reason == case.reason
    assert alerts[0].startswith(f"slow node {BAD}: median read "), alerts
    good.close()
    bad.close()


def make_cluster(folder: Path, line: str, limit_s: int = 60) -> Cluster:
    """A cluster whose check is a shell line on each node."""
    return Cluster(
        engine="slurm",
        logs=str(folder),
        train=TrainSettings(
            checks={"planted": NodeCheck(command=("sh", "-c", line), limit_s=limit_s)},
            on_node=("srun", "--nodelist={node}", "--ntasks=1", "--immediate=30"),
        ),
    )


@pytest.mark.parametrize(
    ("line", "limit_s", "n_drained"), [("echo hot; exit 2", 60, 1), ("sleep 1000", 2, 0), ("exit 7", 60, 0)]
)
def test_check_that_fails_everywhere_drains_one_node_and_alerts_once(
    cluster: Slurm, tmp_path: Path, line: str, limit_s: int, n_drained: int
) -> None:
    record = loader.Root(tmp_path / "record")
    described = make_cluster(tmp_path, line, limit_s)
    for node in NODES:  # as HealthCheckProgram does
        put_failures(record.store, node, run_checks(cluster_checks(described, None)))
    if not n_drained:  # nodes that a person's own program accuses
        for node in NODES:
            put_failures(
                record.store, node, run_checks({"planted": NodeCheck(command=("sh", "-c", "exit 2"))})
            )
    control = SlurmNodes(SlurmQueue())
    watch = NodeWatch(record.store, control, NodeProver(described, []), apply=True)
    reviews = [watch.review() for _ in range(3)]
    assert sum(not in_service for in_service in states(control).values()) == n_drained, reviews
    assert [bool(review.alert) for review in reviews].count(True) == (1 if n_drained else 0), reviews
    assert len(CaseBook(record.store).read()) == n_drained


def test_drained_node_returns_after_clean_checks(
    cluster: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "ROUND_S", 0.0)
    record, control = loader.Root(tmp_path / "record"), SlurmNodes(SlurmQueue())
    case = drain_by_hand(record.store, control, "m2", "it smells of smoke", "ann")
    assert control.states()["m2"].reason == "penstock q-1: it smells of smoke" == case.reason
    healthy = tmp_path / "healthy"
    line = f"test -e {healthy} && exit 0 || exit 2"
    described = make_cluster(tmp_path, line)
    by_hand = Cluster(
        engine="slurm",
        train=TrainSettings(checks=described.train.checks, on_node=("env", "SLURMD_NODENAME={node}")),
    )  # srun begins nothing on a drained node
    watch = NodeWatch(record.store, control, NodeProver(by_hand, []), apply=True)
    for _ in range(4):
        watch.review()
    assert states(control)["m2"] is False
    healthy.touch()
    reviews = [watch.review() for _ in range(watching.CLEAN_ROUNDS)]
    assert [review.returned for review in reviews] == [[], [], ["m2"]]
    until(lambda: states(control)["m2"])
    assert CaseBook(record.store).read()[0].returned_us is not None


def test_nodes_that_others_drained_are_left_alone(cluster: Slurm, tmp_path: Path) -> None:
    record, control = loader.Root(tmp_path / "record"), SlurmNodes(SlurmQueue())
    cluster.told("scontrol", "update", "nodename=m4", "state=drain", "reason=by ann")
    with refusal(Conflict, what="state", where="m4", accepted="in service") as drained:
        drain_by_hand(record.store, control, "m4", "smoke", "bob")
    assert str(drained.value.given).startswith("by ann")
    with refusal(Conflict, what="state", where="m4", accepted="a reason that begins with 'penstock q-'"):
        return_by_hand(record.store, control, "m4", "bob")
    with refusal(Conflict, what="node", given="m9"):
        drain_by_hand(record.store, control, "m9", "smoke", "bob")
    assert CaseBook(record.store).read() == []
    case = drain_by_hand(record.store, control, "m1", "smoke", "bob")
    assert return_by_hand(record.store, control, "m1", "bob") == case.number
    assert states(control)["m1"]


def test_reason_of_two_lines_blinds_neither_watch_nor_return_nor_why(
    cluster: Slurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.told("scontrol", "update", "nodename=m1", "state=drain", "reason=fan is loud\nm2|drained|forged")
    record, control = loader.Root(tmp_path / "record"), SlurmNodes(SlurmQueue())
    assert states(control) == {"m1": False, "m2": True, "m3": True, "m4": True}
    assert control.states()["m1"].reason == "fan is loud m2|drained|forged"
    described = make_cluster(tmp_path, "echo hot; exit 2")
    put_failures(record.store, "m3", run_checks(cluster_checks(described, None)))
    review = NodeWatch(record.store, control, NodeProver(described, []), apply=True).review()
    assert review.drained == ["m3"]
    (tmp_path / "cluster.toml").write_text(f'engine = "slurm"\nlogs = "{tmp_path}"\n')
    options = ["--cluster", str(tmp_path / "cluster.toml"), "--root", record.url]
    assert main(["node", "return", "m3", *options]) == 0
    assert "m3 is in service" in capsys.readouterr().out
    cluster.told("sbatch", "--job-name=wide", "--nodes=4", "--output=/dev/null", "--wrap=true")
    until(lambda: "None" not in cluster.told("squeue", "-h", "--name=wide", "-o", "%r"))
    idle = "3 of the 4 nodes are idle: m[2-4]."
    drained = f"Out of service: m1 (fan is loud m2|drained|forged, by {cluster.user})"
    until(lambda: f"{idle}\n{drained}" in why_name_waits(SlurmQueue().answer, "wide"))
    cluster.end_jobs()


def test_replay_runs_on_a_node_that_the_run_did_not_have(cluster: Slurm, tmp_path: Path) -> None:
    record = loader.Root(tmp_path / "record")
    spec = RunSpec(
        run="big-7",
        command=("sh", "-c", "echo repeats $PENSTOCK_REPLAY on $SLURMD_NODENAME"),
        record=record.url,
    )
    RunFolder(record.store, "big-7").put_spec(spec)
    described = without_nodes(Cluster(engine="slurm", logs=str(tmp_path)), ["m1", "m2", "m3"])
    launcher = SlurmJobs(record.url, described)
    submit(replay_spec(spec, (3, 5)), launcher)
    until(lambda: "repeats" in launcher.logs("big-7.replay-1"))
    assert "repeats 3:5 on m4" in launcher.logs("big-7.replay-1")


def test_verbs_drain_return_check_and_watch(
    cluster: Slurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, record = tmp_path / "cluster.toml", str(tmp_path / "record")
    file.write_text(
        f'engine = "slurm"\nlogs = "{tmp_path}"\n[train]\non_node = ["env", "NODE={{node}}"]\n'
        '[train.checks.planted]\ncommand = ["sh", "-c", "echo hot; exit 2"]\n'
    )

    def penstock(*words: str) -> tuple[int, str]:
        status = main(["node", *words, "--cluster", str(file), "--root", record])
        return status, capsys.readouterr().out

    with loader.Root(record) as root, root.write("points") as writer:
        writer.add("0", {"cls": 1})
    assert penstock("drain", "m2", "--reason", "smoke") == (0, "m2 is drained: penstock q-1: smoke\n")
    assert penstock("drain", "m2", "--reason", "smoke")[0] == 2
    assert penstock("return", "m2") == (0, "m2 is in service; case q-1 is closed\n")
    status, text = penstock("check")
    assert (status, "planted" in text, "store            ok" in text) == (2, True, True), text
    node = Launched.from_env().node
    status, text = penstock("suspects")
    assert (status, text.splitlines()[-1]) == (0, f"{node:<20} {'check':<12} planted failed: hot")
    file.rename(tmp_path / "gone")
    status, text = penstock("check")
    assert (status, "cluster.toml" in text) == (3, True), "2 would say that the node is bad"
    (tmp_path / "gone").rename(file)
    record = str(tmp_path / "another")  # the drain above was less than 10 min ago
    put_failures(loader.Root(record).store, "m4", run_checks(cluster_checks(read_cluster(file), None)))
    status, text = penstock("watch", "--once")
    assert (status, "m4 would be drained: planted failed: hot" in text) == (0, True), text
    status, text = penstock("watch", "--once", "--apply")
    assert (status, "m4 is drained: planted failed: hot" in text) == (0, True), text
    assert SlurmNodes(SlurmQueue()).states()["m4"].reason == "penstock q-1: planted failed: hot"
