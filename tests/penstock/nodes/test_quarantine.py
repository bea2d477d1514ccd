"""Cases in the record, and a watcher over them: nodes are a table, the record and the commands are real."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import loader
from loader.errors import AlreadyExists, InvalidCluster
from penstock.compute.cluster import Cluster, NodeCheck, TrainSettings
from penstock.nodes import watch
from penstock.nodes.controls import control_of
from penstock.nodes.node_check import put_failures, run_checks
from penstock.nodes.proof import NodeProver
from penstock.nodes.quarantine import case_number, cases, open_case, put_drained, put_returned
from penstock.nodes.range_reads import ObjectRange, read_ranges
from penstock.nodes.suspects import NodeFault, Suspect
from penstock.nodes.watch import NodeState, NodeWatch

FAILS = {"planted": NodeCheck(command=("sh", "-c", "echo hot; exit 2"))}


@dataclass
class Table:
    """A scheduler's nodes."""

    nodes: dict[str, NodeState] = field(
        default_factory=lambda: {f"m{n}": NodeState(in_service=True) for n in range(4)}
    )

    def states(self) -> dict[str, NodeState]:
        return dict(self.nodes)

    def drain(self, node: str, reason: str) -> None:
        self.nodes[node] = NodeState(in_service=False, reason=reason)

    def give_back(self, node: str) -> None:
        self.nodes[node] = NodeState(in_service=True)


@pytest.fixture
def record(tmp_path: Path) -> loader.Root:
    return loader.Root(tmp_path / "record")


def watch_of(record: loader.Root, table: Table, *, apply: bool = True) -> NodeWatch:
    settings = TrainSettings(checks=FAILS, on_node=("env", "SLURMD_NODENAME={node}"))
    return NodeWatch(record.store, table, NodeProver(Cluster(train=settings), []), apply=apply)


def test_cases_have_numbers_and_an_end(record: loader.Root) -> None:
    first = open_case(record.store, "m1", "4 wrong of 1,912 reads", {"sign": "wrong reads"}, "ann")
    second = open_case(record.store, "m2", "smoke", {}, "ann")
    assert [first.reason, second.reason] == ["penstock q-1: 4 wrong of 1,912 reads", "penstock q-2: smoke"]
    assert [case_number(first.reason), case_number("by ann"), case_number("penstock q-x: ")] == [
        1,
        None,
        None,
    ]
    assert [case.is_open for case in cases(record.store)] == [False, False]
    for _ in range(2):  # a request that was repeated
        put_drained(record.store, 1, "ann")
    assert [case.is_open for case in cases(record.store)] == [True, False]
    put_returned(record.store, 1, "ann")
    assert [case.is_open for case in cases(record.store)] == [False, False]
    with pytest.raises(AlreadyExists):
        record.store.put_if_absent("nodes/q-1/case.json", b"{}")


def test_watch_without_apply_changes_nothing(record: loader.Root) -> None:
    put_failures(record.store, "m1", run_checks(FAILS))
    table, before = Table(), {info.key for info in record.store.list("nodes/")}
    review = watch_of(record, table, apply=False).review()
    assert review.drained == ["m1"]
    assert review.lines[-1] == "m1 would be drained: planted failed: hot"
    assert all(state.in_service for state in table.nodes.values())
    assert {info.key for info in record.store.list("nodes/")} == before


@pytest.mark.parametrize("line", ["sleep 1000", "no-such-command", "exit 3", "exit 7"])
def test_check_that_hangs_or_is_missing_drains_no_node(record: loader.Root, line: str) -> None:
    table = Table()
    put_failures(record.store, "m1", run_checks(FAILS))  # as another program says
    checks = {"planted": NodeCheck(command=("sh", "-c", line), limit_s=1)}
    prover = NodeProver(Cluster(train=TrainSettings(checks=checks, on_node=("env", "NODE={node}"))), [])
    review = NodeWatch(record.store, table, prover, apply=True).review()
    assert (review.drained, review.alert, [one.node for one in review.suspects]) == ([], "", ["m1"])
    assert all(state.in_service for state in table.nodes.values())
    assert cases(record.store) == []


def test_proof_that_a_later_one_refutes_drains_no_node(
    record: loader.Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "PROVE_AGAIN_S", 0.0)
    put_failures(record.store, "m1", run_checks(FAILS))
    watcher = watch_of(record, Table(), apply=False)
    assert watcher.review().drained == ["m1"]
    clean = Cluster(
        train=TrainSettings(checks={"planted": NodeCheck(command=("true",))}, on_node=("env", "N={node}"))
    )
    watcher._prover = NodeProver(clean, [])
    assert watcher.review().drained == []


def test_node_that_a_person_takes_meanwhile_keeps_its_reason(record: loader.Root) -> None:
    class Taken(Table):
        """Ann drains m1 after the watcher first looked."""

        looks = 0

        def states(self) -> dict[str, NodeState]:
            self.looks += 1
            if self.looks == 2:
                self.nodes["m1"] = NodeState(in_service=False, reason="fan, by ann")
            return super().states()

    put_failures(record.store, "m1", run_checks(FAILS))
    table = Taken()
    review = watch_of(record, table).review()
    assert review.drained == []
    assert review.lines[-1] == "m1 left service meanwhile"
    assert table.nodes["m1"].reason == "fan, by ann"
    assert cases(record.store) == []


def test_watcher_that_died_after_the_drain_finds_its_case_again(record: loader.Root) -> None:
    table = Table()
    case = open_case(record.store, "m1", "smoke", {}, "penstock node watch")
    table.drain("m1", case.reason)
    watch_of(record, table).review()
    assert cases(record.store)[0].is_open
    table.give_back("m1")  # by a person
    watch_of(record, table).review()
    assert cases(record.store)[0].returned_us is not None


def test_signs_before_the_last_drain_no_longer_count(record: loader.Root) -> None:
    table = Table()
    put_failures(record.store, "m1", run_checks(FAILS))
    watch_of(record, table).review()
    assert not table.nodes["m1"].in_service
    table.give_back("m1")
    review = watch_of(record, table).review()
    assert (review.suspects, table.nodes["m1"].in_service) == ([], True)


@pytest.fixture
def data(tmp_path: Path) -> loader.Root:
    root = loader.Root(tmp_path / "data")
    root.store.put_if_absent("a.bin", bytes(range(200)))
    return root


def flipping(folder: Path, times: int) -> str:
    """A command that runs another one whose reads come wrong some times: a node with bad memory."""
    file = folder / "bad_node.py"
    file.write_text(
        "import runpy, sys\n"
        "from penstock.nodes import range_reads\n"
        "from loader.dataset.shards import shard\n"
        f"left = [{times}]\n"
        "def crc32c(data):\n"
        "    left[0] -= 1\n"
        "    return shard.crc32c(data) ^ (left[0] >= 0)\n"
        "range_reads.crc32c = crc32c\n"
        "sys.exit(range_reads.main())\n"
    )
    return str(file)


@pytest.mark.parametrize("times", [4, 0])
def test_proof_compares_reads_here_and_there(
    tmp_path: Path, data: loader.Root, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    prefix = ("sh", "-c", f"exec {sys.executable} {flipping(tmp_path, times)}")
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    prover = NodeProver(Cluster(train=TrainSettings(on_node=prefix)), [data.url])
    (counter,) = read_ranges(data.store, [ObjectRange("a.bin", 10, 20)], 1, 5.0).crcs
    (right,) = counter
    faults = tuple(
        NodeFault(
            node="m1", at_us=1, address="a.bin", begin=begin, end=begin + 10, expected=crc, store=data.url
        )
        for begin, crc in ((10, right), (30, ""), (50, "00000000"))  # the last one is damaged in the store
    )
    proof = prover._compare("m1", faults)
    facts = proof.evidence["proof"]
    assert (proof.is_bad, facts["wrong"], facts["reads"], len(facts["ranges"])) == (times > 0, times, 2000, 2)
    assert proof.text == f"{times} wrong of 2,000 reads"


def test_proof_reads_only_roots_that_the_operator_names(tmp_path: Path, data: loader.Root) -> None:
    prover = NodeProver(Cluster(train=TrainSettings(on_node=("false",))), [data.url])
    elsewhere = NodeFault(node="m1", at_us=1, address="a.bin", begin=0, end=10, store="s3://elsewhere")
    large = NodeFault(node="m1", at_us=1, address="a.bin", begin=0, end=2**40, store=data.url)
    proof = prover._compare("m1", (elsewhere, large))
    assert (proof.is_bad, proof.text) == (False, "no range of a root given to read")
    near = NodeFault(node="m1", at_us=1, address="a.bin", begin=0, end=10, store=data.url)
    assert prover._compare("m1", (near,)).text == "m1 did not read: exit code 1, no output"


@pytest.mark.parametrize("node", ["-oProxyCommand=x", "m1;reboot", "$(reboot)", "", "m1 m2"])
def test_name_of_a_node_from_a_record_runs_nothing(node: str) -> None:
    prover = NodeProver(Cluster(train=TrainSettings(checks=FAILS, on_node=("echo", "{node}"))), [])
    with pytest.raises(InvalidCluster, match="is no name of a node"):
        prover.prove(Suspect(node=node, sign="check", at_us=1, text=""))


def test_commands_reach_a_node_by_the_cluster_s_prefix() -> None:
    def words(*prefix: str) -> list[str]:
        cluster = Cluster(train=TrainSettings(on_node=prefix))
        return NodeProver(cluster, [])._on_node("m1", ["python", "-c", "a b"])

    assert words("ssh", "{node}", "{command}") == ["ssh", "m1", "python -c 'a b'"]
    assert words("srun", "--nodelist={node}") == ["srun", "--nodelist=m1", "python", "-c", "a b"]
    with pytest.raises(InvalidCluster, match="on_node is missing"):
        words()
    with pytest.raises(InvalidCluster, match="drains no nodes; accepted"):
        control_of(Cluster())
