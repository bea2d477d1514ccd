"""Cases in the record, and a watcher over them: nodes are a table, the record and the commands are real."""

import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import loader
from loader.dataset.log.entries import canonical
from loader.dataset.shards.address import FieldAddress
from loader.dataset.shards.shard import crc32c
from loader.errors import (
    AlreadyExists,
    Conflict,
    EngineUnreachable,
    Forbidden,
    InvalidCluster,
    InvalidRuntime,
    Transient,
)
from loader.storage import Store
from penstock.compute.cluster import Cluster, NodeCheck, TrainSettings
from penstock.nodes import cases, proof, watch
from penstock.nodes.cases import CaseBook, case_number
from penstock.nodes.control import NodeState, node_control
from penstock.nodes.node_check import NodeCheckResult, put_failures, run_checks, run_limited
from penstock.nodes.proof import NodeProof, NodeProver
from penstock.nodes.range_reads import ObjectRange
from penstock.nodes.suspects import MINUTE_US, NodeFault, Suspect
from penstock.nodes.version_ranges import version_crcs
from penstock.nodes.watch import NodeReview, NodeWatch, drain_by_hand, return_by_hand, watch_nodes
from tests.proxy_stores import ObservedStore
from tests.refusals import refusal

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

    def resume(self, node: str) -> None:
        self.nodes[node] = NodeState(in_service=True)

    def release_runs(self) -> list[str]:
        return []


@pytest.fixture
def record(tmp_path: Path) -> loader.Root:
    return loader.Root(tmp_path / "record")


def make_watch(
    record: loader.Root, table: Table, *, apply: bool = True, store: Store | None = None
) -> NodeWatch:
    settings = TrainSettings(checks=FAILS, on_node=("env", "SLURMD_NODENAME={node}"))
    return NodeWatch(store or record.store, table, NodeProver(Cluster(train=settings), []), apply=apply)


def test_cases_have_numbers_and_an_end(record: loader.Root) -> None:
    book = CaseBook(record.store)
    assert book.read() == []
    first = book.open("m1", "4 wrong of 1,912 reads", {"sign": "wrong reads"}, "ann")
    second = book.open("m2", "smoke", {}, "ann")
    assert [first.reason, second.reason] == ["penstock q-1: 4 wrong of 1,912 reads", "penstock q-2: smoke"]
    assert [case_number(first.reason), case_number("by ann"), case_number("penstock q-x: ")] == [
        1,
        None,
        None,
    ]
    for name, expected in (
        ("drained", [True, False]),
        ("drained", [True, False]),
        ("returned", [False, False]),
    ):
        book.put_end(1, name, "ann")
        for known in (book.cases, book.read(), CaseBook(record.store).read()):
            assert [case.is_open for case in known] == expected, name
    with pytest.raises(AlreadyExists):
        record.store.put_if_absent("nodes/q-1/case.json", b"{}")


def test_watch_without_apply_changes_nothing(record: loader.Root) -> None:
    put_failures(record.store, "m1", run_checks(FAILS))
    table, before = Table(), {info.key for info in record.store.list("nodes/")}
    review = make_watch(record, table, apply=False).review()
    assert review.drained == ["m1"]
    assert review.lines[-1] == "m1 would be drained: planted failed: hot"
    assert all(state.in_service for state in table.nodes.values())
    assert {info.key for info in record.store.list("nodes/")} == before


@pytest.mark.parametrize("line", ["sleep 1000", "no-such-command", "exit 3", "exit 7"])
def test_check_that_hangs_or_is_missing_drains_no_node(record: loader.Root, line: str) -> None:
    table = Table()
    put_failures(record.store, "m1", run_checks(FAILS))  # by another program
    checks = {"planted": NodeCheck(command=("sh", "-c", line), limit_s=1)}
    prover = NodeProver(Cluster(train=TrainSettings(checks=checks, on_node=("env", "NODE={node}"))), [])
    review = NodeWatch(record.store, table, prover, apply=True).review()
    assert (review.drained, review.alert, [one.node for one in review.suspects]) == ([], "", ["m1"])
    assert all(state.in_service for state in table.nodes.values())
    assert CaseBook(record.store).read() == []


def test_proof_that_a_later_one_refutes_drains_no_node(
    record: loader.Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "PROVE_AGAIN_US", 0)
    put_failures(record.store, "m1", run_checks(FAILS))
    watcher = make_watch(record, Table(), apply=False)
    assert watcher.review().drained == ["m1"]
    clean = Cluster(
        train=TrainSettings(checks={"planted": NodeCheck(command=("true",))}, on_node=("env", "N={node}"))
    )
    watcher._prover = NodeProver(clean, [])
    assert watcher.review().drained == []


@pytest.mark.parametrize("line", ["exit 3", "exit 255", "echo fine"])
def test_proof_that_tests_nothing_refutes_none(
    record: loader.Root, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    class Unreachable(NodeProver):
        def check(self, node: str) -> list[NodeCheckResult]:
            if line == "echo fine":
                raise EngineUnreachable(f"no route to {node}")
            return super().check(node)

    monkeypatch.setattr(proof, "PROVE_AGAIN_US", 0)
    put_failures(record.store, "m1", run_checks(FAILS))
    watcher = make_watch(record, Table(), apply=False)
    assert watcher.review().drained == ["m1"]
    checks = {"planted": NodeCheck(command=("sh", "-c", line))}
    settings = TrainSettings(checks=checks, on_node=("env", "N={node}"))
    watcher._prover = Unreachable(Cluster(train=settings), [])
    assert watcher.review().drained == ["m1"]


def test_node_that_a_person_takes_meanwhile_keeps_its_reason(record: loader.Root) -> None:
    class DrainedByAnn(Table):
        """Ann drains m1 after the watcher first looked."""

        looks = 0

        def states(self) -> dict[str, NodeState]:
            self.looks += 1
            if self.looks == 2:
                self.nodes["m1"] = NodeState(in_service=False, reason="fan, by ann")
            return super().states()

    put_failures(record.store, "m1", run_checks(FAILS))
    table = DrainedByAnn()
    review = make_watch(record, table).review()
    assert review.drained == []
    assert review.lines[-1] == "m1 left service meanwhile"
    assert table.nodes["m1"].reason == "fan, by ann"
    assert CaseBook(record.store).read() == []


def test_watcher_that_died_after_the_drain_finds_its_case_again(record: loader.Root) -> None:
    table = Table()
    case = CaseBook(record.store).open("m1", "smoke", {}, "penstock node watch")
    table.drain("m1", case.reason)
    make_watch(record, table).review()
    assert CaseBook(record.store).read()[0].is_open
    table.resume("m1")  # by a person
    make_watch(record, table).review()
    assert CaseBook(record.store).read()[0].returned_us is not None


class Meeting(NodeProver):
    """Another watcher reviews while this one proves: after it read the cases, before it decides."""

    def __init__(self, prover: NodeProver, other: NodeWatch, store: Store) -> None:
        self._prover, self._other, self._store, self.reviews = prover, other, store, 0

    def prove(self, suspect: Suspect) -> NodeProof:
        if not self.reviews:
            self.reviews += 1
            put_failures(self._store, "m1", run_checks(FAILS))
            assert self._other.review().drained == ["m1"]
        return self._prover.prove(suspect)


@pytest.mark.parametrize("node", ["m1", "m2"])
def test_two_watchers_drain_and_count_a_case_once(record: loader.Root, node: str) -> None:
    """One drains m1; the other one, which did not see that, may drain neither m1 nor m2 then."""
    table = Table({f"m{n}": NodeState(in_service=True) for n in range(200)})  # four may be drained
    put_failures(record.store, node, run_checks(FAILS))
    first, second = make_watch(record, table), make_watch(record, table)
    second._prover = Meeting(second._prover, first, record.store)
    review = second.review()
    assert review.drained == []
    assert [case.node for case in CaseBook(record.store).read()] == ["m1"]
    assert second.review().drained == first.review().drained == []
    out = {name: state.reason for name, state in table.nodes.items() if not state.in_service}
    assert out == {"m1": "penstock q-1: planted failed: hot"}


@pytest.mark.parametrize("ahead_us", [10 * MINUTE_US, -10 * MINUTE_US])
@pytest.mark.parametrize("is_drained", [True, False])
def test_watcher_with_another_clock_counts_the_drain(
    record: loader.Root, monkeypatch: pytest.MonkeyPatch, ahead_us: int, is_drained: bool
) -> None:
    table = Table({f"m{n}": NodeState(in_service=True) for n in range(200)})  # four may be drained
    put_failures(record.store, "m1", run_checks(FAILS))
    if is_drained:
        assert make_watch(record, table).review().drained == ["m1"]
    else:
        CaseBook(record.store).open("m1", "hot", {}, "another watcher, which is about to drain")
    put_failures(record.store, "m2", run_checks(FAILS))
    real_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + 1000 * ahead_us)
    second = make_watch(record, table)
    assert second.review().drained == []
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + 1000 * (ahead_us + 10 * MINUTE_US))
    assert second.review().drained == ([] if ahead_us < 0 else ["m1" if not is_drained else "m2"])


def test_two_watchers_alert_once(record: loader.Root) -> None:
    table = Table()
    for node in table.nodes:
        put_failures(record.store, node, run_checks(FAILS))
    watchers = [make_watch(record, table) for _ in range(2)]
    books = [watcher._book for watcher in watchers]
    assert [book.alert_us() for book in books] == [0, 0]
    alerts = [watcher.review().alert for _ in range(2) for watcher in watchers]
    assert [bool(alert) for alert in alerts].count(True) == 1
    assert len(list(record.store.list("nodes/alerts/"))) == 1


def test_watcher_that_died_before_the_drain_is_replaced(
    record: loader.Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table()
    CaseBook(record.store).open("m1", "$(reboot)", {}, "penstock node watch")
    put_failures(record.store, "m1", run_checks(FAILS))
    assert make_watch(record, table).review().drained == [], "another watcher may be at it"
    monkeypatch.setattr(cases, "DRAIN_EVERY_US", 0)
    monkeypatch.setattr(cases, "CLOCKS_US", 0)
    assert make_watch(record, table).review().drained == ["m1"]
    assert table.nodes["m1"].reason == "penstock q-2: planted failed: hot"


def test_drain_that_the_scheduler_refused_is_tried_again_under_its_case(record: loader.Root) -> None:
    class Refusing(Table):
        refusals = 1

        def drain(self, node: str, reason: str) -> None:
            self.refusals -= 1
            if self.refusals >= 0:
                raise EngineUnreachable("no slurmctld")
            super().drain(node, reason)

    put_failures(record.store, "m1", run_checks(FAILS))
    table = Refusing()
    watcher = make_watch(record, table)
    with pytest.raises(EngineUnreachable):
        watcher.review()
    assert watcher.review().drained == ["m1"]
    assert table.nodes["m1"].reason == "penstock q-1: planted failed: hot"
    assert [case.is_open for case in CaseBook(record.store).read()] == [True]


def forge(record: loader.Root, number: int, node: object, **ends: Any) -> None:
    """Store a case that no watcher opened."""
    case = {"format": 1, "node": node, "at_us": 1, "text": "forged"}
    for name, body in {"case": case, **ends}.items():
        record.store.put_if_absent(f"nodes/q-{number}/{name}.json", canonical(body))


@pytest.mark.parametrize("apply", [False, True])
def test_forged_case_runs_no_command(
    record: loader.Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apply: bool
) -> None:
    monkeypatch.setattr(watch, "ROUND_S", 0.0)
    for number, node in enumerate(("m1", "m2", "evil.example.com", "-oProxyCommand=x"), 1):
        forge(record, number, node, drained={"format": 1, "at_us": 2})
    table, ran = Table(), tmp_path / "ran"
    table.drain("m2", "penstock by ann")
    settings = TrainSettings(checks=FAILS, on_node=("sh", "-c", f"echo {{node}} >> {ran}; exit 0"))
    watcher = NodeWatch(record.store, table, NodeProver(Cluster(train=settings), []), apply=apply)
    for _ in range(5):
        assert watcher.review().to_json() == {"suspects": [], "drained": [], "returned": [], "alert": ""}
    assert not ran.exists()
    table.drain("m3", "penstock q-9: hot")  # by the scheduler
    watcher.review()
    watcher.review()
    assert set(ran.read_text().split()) == {"m3"}


def test_damaged_cases_and_times_to_come_stop_no_watcher(record: loader.Root) -> None:
    forge(record, 1, ["m1"])
    record.store.put_if_absent("nodes/q-2/case.json", b"{")
    forge(record, 3, "m1", drained={"at_us": 2**62})
    record.store.put_if_absent("nodes/q-4/case.json", b"[]")
    record.store.put_if_absent("nodes/q-1000000000/case.json", b"{}")
    record.store.put_if_absent("nodes/alerts/0000000000000007.json", canonical({"at_us": 2**62}))
    table = Table()
    for node in ("m1", "m2"):
        put_failures(record.store, node, run_checks(FAILS))
    review = make_watch(record, table).review()
    assert (review.drained, table.nodes["m1"].reason[:14]) == (["m1"], "penstock q-5: ")
    assert review.alert
    assert [case.number for case in CaseBook(record.store).read()] == [3, 5]


def test_signs_before_the_last_drain_no_longer_count(record: loader.Root) -> None:
    table = Table()
    put_failures(record.store, "m1", run_checks(FAILS))
    make_watch(record, table).review()
    assert not table.nodes["m1"].in_service
    table.resume("m1")
    review = make_watch(record, table).review()
    assert (review.suspects, table.nodes["m1"].in_service) == ([], True)


@pytest.fixture
def data(tmp_path: Path) -> loader.Root:
    root = loader.Root(tmp_path / "data")
    with root.write("points") as writer:
        for number in range(8):
            writer.add(f"{number}", {"x.bin": bytes([number]) * 100})
    return root


def read_fault(root: loader.Root, place: FieldAddress, **changes: Any) -> NodeFault:
    """A wrong read of a sample's field."""
    facts = {"node": "m1", "at_us": 1, "address": place.path, "store": root.url, "expected": "0" * 8}
    return NodeFault(**{**facts, "begin": place.offset, "end": place.offset + place.nbytes, **changes})


def places(root: loader.Root) -> list[FieldAddress]:
    version = root.open("points@1")
    addresses = version.address(np.arange(len(version)), ["x.bin"])
    return [address.fields["x.bin"] for address in addresses]


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
def test_proof_compares_reads_on_the_node_with_the_version(
    tmp_path: Path, data: loader.Root, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    prefix = ("sh", "-c", f"exec {sys.executable} {flipping(tmp_path, times)}")
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    prover = NodeProver(Cluster(train=TrainSettings(on_node=prefix)), [data.url])
    first, second, third = places(data)[:3]
    file = Path(data.url, third.path)
    shard = bytearray(file.read_bytes())
    shard[third.offset] ^= 1  # damaged in the store
    file.write_bytes(shard)
    faults = tuple(read_fault(data, place) for place in (first, second, third))
    proof = prover._compare("m1", faults)
    facts = proof.evidence["proof"]
    assert (proof.is_bad, facts["wrong"], facts["reads"], len(facts["ranges"])) == (times > 0, times, 2000, 2)
    assert proof.text == f"{times} wrong of 2,000 reads"
    assert [one["here"] for one in facts["ranges"]] == [f"{place.crc32c:08x}" for place in (first, second)]


def test_proof_needs_bytes_of_a_version(
    tmp_path: Path, data: loader.Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record names an object that any node may read otherwise: its own file, or one that is replaced."""
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    prefix = ("sh", "-c", f"exec {sys.executable} {flipping(tmp_path, 10**6)}")  # each read differs there
    data.store.put("trainings/big/stop", b"x" * 100)
    prover = NodeProver(Cluster(train=TrainSettings(on_node=prefix)), [data.url])
    forged = read_fault(data, places(data)[0], address="trainings/big/stop", begin=0, end=50, expected="")
    outside = read_fault(data, places(data)[0], address="../../etc/passwd", expected="")
    proof = prover._compare("m1", (forged, outside))
    assert (proof.is_bad, proof.text) == (False, "none of 1 ranges comes here as its version has it")
    assert not proof.is_tested


def test_node_that_reads_nothing_is_not_clean(data: loader.Root, monkeypatch: pytest.MonkeyPatch) -> None:
    line = 'case "$*" in *range_reads*) exit 1 ;; *) echo fine ;; esac'
    prover = NodeProver(Cluster(train=TrainSettings(on_node=("sh", "-c", line, "sh"))), [data.url])
    fault = read_fault(data, places(data)[0])
    assert not prover.is_clean("m1", [fault])
    assert prover.is_clean("m1", [])
    gone = read_fault(data, places(data)[0], address="data/gone/media-00001.tar")
    assert prover.is_clean("m1", [gone]), "no version has the range any more"

    def refuse(*_: object) -> None:
        raise Forbidden("ExpiredToken")

    monkeypatch.setattr("penstock.nodes.version_ranges.read_record_manifest", refuse)
    assert not prover.is_clean("m1", [gone]), "no version is shown here"


def test_ranges_are_compared_with_the_index_or_with_hashes_of_pages(data: loader.Root) -> None:
    place = places(data)[3]
    whole, half, beyond = (
        ObjectRange(place.path, place.offset, place.offset + n) for n in (place.nbytes, 50, 10**6)
    )
    half_crc = f"{crc32c(Path(data.url, place.path).read_bytes()[place.offset :][:50]):08x}"
    assert version_crcs(data, [whole, half, beyond]) == {whole: f"{place.crc32c:08x}", half: half_crc}
    file = Path(data.url, place.path)
    shard = bytearray(file.read_bytes())
    shard[place.offset + 60] ^= 1  # in the same page as `half`
    file.write_bytes(shard)
    assert version_crcs(loader.Root(data.url), [whole, half]) == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"node": "-oProxyCommand=x"},
        {"address": "a" * 1025},
        {"address": "a\x1b[2J"},
        {"store": "s" * 1025},
        {"begin": -1},
        {"begin": 200, "end": 100},
        {"end": 2**63},
        {"expected": "x" * 8},
        {"actual": "0" * 9},
        {"kind": "command"},
        {"at_us": "1"},
    ],
)
def test_fault_with_a_value_that_no_rank_writes_is_no_fault(changes: dict[str, Any]) -> None:
    right = NodeFault(node="m1", at_us=1, address="data/a.tar", begin=0, end=10, expected="0" * 8)
    assert right.is_valid
    assert not replace(right, **changes).is_valid


def test_command_that_does_not_read_its_input_ends_at_its_limit() -> None:
    data, code = run_limited(["sh", "-c", "echo begins; sleep 1000"], 0.5, "x" * 2**20)
    assert (data, code) == (b"begins\n", None)


def test_proof_reads_only_roots_that_the_operator_names(data: loader.Root) -> None:
    prover = NodeProver(Cluster(train=TrainSettings(on_node=("false",))), [data.url])
    place = places(data)[0]
    elsewhere, large = read_fault(data, place, store="s3://elsewhere"), read_fault(data, place, end=2**40)
    proof = prover._compare("m1", (elsewhere, large))
    assert (proof.is_bad, proof.text) == (False, "no range of a root given to read")
    assert proof.is_tested, "nothing to compare: the checks decide"
    proof = prover._compare("m1", (read_fault(data, place),))
    assert (proof.text, proof.is_tested) == ("m1 did not read: exit code 1, no output", False)


def test_reads_that_all_fail_on_the_node_are_no_test(tmp_path: Path, data: loader.Root) -> None:
    answer = '{"crcs": [{}], "first_s": [null], "failed": 9, "error": "503"}'
    other = loader.Root(tmp_path / "other")
    with other.write("points") as writer:
        writer.add("0", {"x.bin": bytes(100)})
    (place,) = places(other)
    right = f'{{"crcs": [{{"{place.crc32c:08x}": 9}}], "first_s": [0.1], "failed": 0, "error": ""}}'
    line = f"case $(cat) in *{data.url}*) echo '{answer}' ;; *) echo '{right}' ;; esac"
    prover = NodeProver(Cluster(train=TrainSettings(on_node=("sh", "-c", line))), [data.url, other.url])
    lost, correct = read_fault(data, places(data)[0]), read_fault(other, place)
    proof = prover._compare("m1", (lost, correct))
    assert (proof.text, proof.is_tested) == ("m1 read none of 1 ranges: 503", False)
    proof = prover._compare("m1", (correct,))
    assert (proof.text, proof.is_tested) == ("0 wrong of 9 reads", True)


@pytest.mark.parametrize("node", ["-oProxyCommand=x", "m1;reboot", "$(reboot)", "", "m1 m2"])
def test_name_of_a_node_from_a_record_runs_nothing(node: str) -> None:
    prover = NodeProver(Cluster(train=TrainSettings(checks=FAILS, on_node=("echo", "{node}"))), [])
    with refusal(InvalidCluster, what="node", given=node):
        prover.prove(Suspect(node=node, sign="check", at_us=1, text=""))


def test_commands_reach_a_node_by_the_cluster_s_prefix() -> None:
    def words(*prefix: str) -> list[str]:
        cluster = Cluster(train=TrainSettings(on_node=prefix))
        return NodeProver(cluster, [])._on_node("m1", ["python", "-c", "a b"])

    assert words("ssh", "{node}", "{command}") == ["ssh", "m1", "python -c 'a b'"]
    assert words("srun", "--nodelist={node}") == ["srun", "--nodelist=m1", "python", "-c", "a b"]
    with refusal(InvalidCluster, what="train.on_node"):
        words()
    with refusal(InvalidCluster, what="engine", given="local", accepted=["kubernetes", "slurm"]):
        node_control(Cluster())


@pytest.mark.parametrize("record_says", ["returned", "nothing"])
def test_caps_count_nodes_that_the_scheduler_has_as_drained(record: loader.Root, record_says: str) -> None:
    """The record may be forged, deleted, or another one."""
    table = Table()
    table.drain("m1", "penstock q-1: hot")
    if record_says == "returned":
        ends = {name: {"format": 1, "at_us": 2} for name in ("drained", "returned")}
        forge(record, 1, "m1", **ends)
    put_failures(record.store, "m2", run_checks(FAILS))
    review = make_watch(record, table).review()
    assert (review.drained, bool(review.alert)) == ([], True), "one of four may be drained"
    assert table.nodes["m2"].in_service


def test_forged_numbers_neither_stop_nor_part_two_watchers(record: loader.Root) -> None:
    table = Table({f"m{n}": NodeState(in_service=True) for n in range(200)})
    first = make_watch(record, table)
    first.review()
    for number in (2, 100, 999_999_999):
        forge(record, number, "evil.example.com")
    second = make_watch(record, table)
    second.review()
    put_failures(record.store, "m1", run_checks(FAILS))
    assert first.review().drained == ["m1"]
    put_failures(record.store, "m2", run_checks(FAILS))
    assert second.review().drained == [], "it knows the other one's case"
    assert [case.number for case in second._book.cases] == [1, 2, 100, 999_999_999]


def test_refused_drain_is_not_tried_when_others_no_longer_count_it(
    record: loader.Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(Table):
        def drain(self, node: str, reason: str) -> None:
            raise EngineUnreachable("no slurmctld")

    put_failures(record.store, "m1", run_checks(FAILS))
    watcher = make_watch(record, Refusing())
    with pytest.raises(EngineUnreachable):
        watcher.review()
    table = Table()
    watcher._control = table
    for module in (cases, watch):
        monkeypatch.setattr(module, "DRAIN_EVERY_US", 0)
    assert watcher.review().drained == ["m1"]
    assert table.nodes["m1"].reason[:14] == "penstock q-2: "


def test_forged_alert_under_the_last_number_hides_no_other(record: loader.Root) -> None:
    alerts = [8_999_999_999_999_999, 9_000_000_000_000_000]
    for number in alerts:
        record.store.put_if_absent(f"nodes/alerts/{number}.json", b"{}")
    books = [CaseBook(record.store) for _ in range(2)]
    assert [book.alert_us() for book in books] == [0, 0]
    assert [book.put_alert("hot") for book in books] == [True, False]
    assert books[1].alert_us() == books[0].alert_us() > 0


def test_nodes_with_one_number_of_two_records_are_both_returned(
    record: loader.Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "ROUND_S", 0.0)
    table = Table()
    for node in ("m1", "m2"):
        table.drain(node, "penstock q-1: hot")
    settings = TrainSettings(checks={"planted": NodeCheck(command=("true",))}, on_node=("env", "N={node}"))
    watcher = NodeWatch(record.store, table, NodeProver(Cluster(train=settings), []), apply=True)
    returned = [watcher.review().returned for _ in range(watch.CLEAN_ROUNDS)]
    assert sorted(returned[-1]) == ["m1", "m2"]


UNREADABLE = NodeState(in_service=False, problem="sinfo prints 'm0' in place of name, state and reason")


def test_node_that_cannot_be_read_stops_no_other_and_an_alert_names_it(record: loader.Root) -> None:
    table = Table()
    case = CaseBook(record.store).open("m0", "hot", {}, "penstock node watch")
    CaseBook(record.store).put_end(case.number, "drained", "penstock node watch")
    table.nodes["m0"] = UNREADABLE
    for node in ("m0", "m1"):
        put_failures(record.store, node, run_checks(FAILS))
    watcher = make_watch(record, table)
    first, second = watcher.review(), watcher.review()
    assert table.nodes == Table().nodes | {"m0": UNREADABLE}, "m0 may be the one that is drained: the cap"
    assert [suspect.node for suspect in first.suspects] == ["m1"]
    assert "m0 cannot be read, and penstock neither drains nor returns it: sinfo prints 'm0'" in first.alert
    assert "not drained: m1 (1 of 4 nodes are drained" in first.alert
    assert second.alert == ""
    (case,) = CaseBook(record.store).read()
    assert case.is_open, "the case of a node that cannot be read stays as it is"
    with refusal(Conflict, what="m0", given="sinfo prints 'm0' in place of name, state and reason"):
        drain_by_hand(record.store, table, "m0", "smoke", "ann")
    with refusal(Conflict, what="m0", given="sinfo prints 'm0' in place of name, state and reason"):
        return_by_hand(record.store, table, "m0", "ann")


def test_node_whose_checks_raise_stops_no_other(record: loader.Root) -> None:
    class Broken(NodeProver):
        def prove(self, suspect: Suspect) -> NodeProof:
            if suspect.node == "m1":
                raise EngineUnreachable("no route to m1")
            return super().prove(suspect)

    for node in ("m1", "m2"):
        put_failures(record.store, node, run_checks(FAILS))
    settings = TrainSettings(checks=FAILS, on_node=("env", "SLURMD_NODENAME={node}"))
    review = NodeWatch(record.store, Table(), Broken(Cluster(train=settings), []), apply=True).review()
    assert review.drained == ["m2"]
    assert review.alert == "m1 cannot be checked: EngineUnreachable: no route to m1"


def test_watch_says_a_thing_once_until_it_changes(record: loader.Root) -> None:
    table = Table()
    table.drain("m0", "penstock q-9: hot")  # one of four, so m1 has to wait
    put_failures(record.store, "m1", run_checks(FAILS))
    watcher = make_watch(record, table)
    first, *others = [watcher.review() for _ in range(4)]
    waits = "m1 stays in service: 1 of 4 nodes are drained, and 1 may be"
    assert first.news == first.lines == ["m1: planted failed: hot; planted failed: hot", waits]
    assert [(review.lines, review.news) for review in others] == [([waits], [])] * 3
    table.nodes["m3"] = UNREADABLE
    assert len(watcher.review().news) == 1
    assert watcher.review().news == []
    table.resume("m3")
    watcher.review()
    table.nodes["m3"] = UNREADABLE
    assert len(watcher.review().news) == 1, "it came back"
    table.resume("m3")
    table.resume("m0")
    assert watcher.review().news == ["m1 is drained: planted failed: hot"]


def test_watch_logs_a_failing_review_once_until_it_changes(
    record: loader.Root, caplog: pytest.LogCaptureFixture
) -> None:
    answers = iter(["no slurmctld", "no slurmctld", "no slurmctld", "", "no slurmctld", "no sinfo"])

    class Failing(Table):
        def states(self) -> dict[str, NodeState]:
            if text := next(answers):
                raise EngineUnreachable(text)
            return super().states()

    ends = iter([False] * 5 + [True])
    watch_nodes(make_watch(record, Failing()), lambda review: None, lambda _: next(ends))
    assert [one.getMessage() for one in caplog.records] == [
        "could not review the nodes: EngineUnreachable: no slurmctld",
        "reviews the nodes again after: EngineUnreachable: no slurmctld",
        "could not review the nodes: EngineUnreachable: no slurmctld",
        "could not review the nodes: EngineUnreachable: no sinfo",
    ]


def watch_lines(watcher: NodeWatch, reviews: int) -> list[str]:
    """Return the lines that a watch shows in some reviews."""
    lines: list[str] = []
    ends = iter([False] * (reviews - 1) + [True])

    def show(review: NodeReview) -> None:
        lines.extend([*review.news, *([f"ALERT: {review.alert}"] if review.alert else [])])

    watch_nodes(watcher, show, lambda _: next(ends))
    return lines


def test_lines_and_alerts_of_a_review_that_raises_are_shown(record: loader.Root) -> None:
    class Failing(Table):
        looks = 0

        def states(self) -> dict[str, NodeState]:
            self.looks += 1
            if self.looks == 2:  # of the drain
                raise EngineUnreachable("no slurmctld")
            return super().states()

        def release_runs(self) -> list[str]:
            return [] if self.looks else ["Slurm job 7"]

    table = Failing()
    table.nodes["m0"] = UNREADABLE
    table.nodes |= {f"m{number}": NodeState(in_service=True) for number in range(4, 200)}
    put_failures(record.store, "m1", run_checks(FAILS))
    lines = watch_lines(make_watch(record, table), 3)
    release, unread, finding, alert, drain = lines
    assert release.startswith("Slurm job 7 waits again: ")
    assert [unread, f"ALERT: {unread}"] == [alert.removeprefix("ALERT: "), alert]
    assert (finding, drain) == (
        "m1: planted failed: hot; planted failed: hot",
        "m1 is drained: planted failed: hot",
    )


@pytest.mark.parametrize("verb", ["list", "put_if_absent"])
def test_job_and_drain_are_shown_if_the_record_fails_after_them(record: loader.Root, verb: str) -> None:
    class Holding(Table):
        released = False

        def release_runs(self) -> list[str]:
            released, self.released = self.released, True
            return [] if released else ["Slurm job 7"]

    failures = [verb]

    def fail_once(name: str, key: str) -> None:
        if name == verb and key in ("nodes/q-", "nodes/q-1/drained.json") and failures:
            failures.clear()
            raise Transient("503")

    put_failures(record.store, "m1", run_checks(FAILS))
    store = cast("Store", ObservedStore(record.store, fail_once))
    watcher = make_watch(record, Holding(), store=store)
    release, finding, drain = watch_lines(watcher, 3)
    assert not failures
    assert release.startswith("Slurm job 7 waits again: ")
    assert finding.startswith("m1: planted failed: hot")
    assert drain == "m1 is drained: planted failed: hot"
    assert [case.is_open for case in CaseBook(record.store).read()] == [True]


def test_alerts_about_other_things_hide_none(record: loader.Root) -> None:
    books = [CaseBook(record.store) for _ in range(2)]
    assert [book.alert_us("m1 unread") for book in books] == [0, 0]
    assert [book.put_alert("caps") for book in books] == [True, False]
    assert [book.put_alert("m1", "m1 unread") for book in books] == [True, False]
    assert [book.put_alert("m2", "m2 unread") for book in reversed(books)] == [True, False]
    later = CaseBook(record.store)
    assert all(later.alert_us(about) > 0 for about in ("", "m1 unread", "m2 unread"))
    assert later.alert_us("m3 unread") == 0


@pytest.mark.parametrize("verb", ["list", "get"])
def test_alerts_are_listed_again_after_a_store_failed(record: loader.Root, verb: str) -> None:
    for number in range(3):
        CaseBook(record.store).put_alert("hot", f"m{number} unread")
    failures = [verb]

    def fail_once(name: str, key: str) -> None:
        if name.startswith(verb) and key.startswith("nodes/alerts/") and failures:
            failures.clear()
            raise Transient("503")

    store = ObservedStore(record.store, fail_once)
    book = CaseBook(cast("Store", store))
    with pytest.raises(Transient):
        book.alert_us("m0 unread")
    store.calls.clear()
    assert all(book.alert_us(f"m{number} unread") > 0 for number in range(3))
    assert book.put_alert("slow", "m3 slow")
    assert [key for name, key in store.calls if name == "put_if_absent"] == [
        "nodes/alerts/0000000000000004.json"
    ]


def test_alert_of_another_watcher_that_could_not_be_read_is_read_again(record: loader.Root) -> None:
    failures: list[str] = []

    def fail_once(name: str, key: str) -> None:
        if name.startswith("get") and key.startswith("nodes/alerts/") and failures:
            raise Transient(failures.pop())

    book = CaseBook(cast("Store", ObservedStore(record.store, fail_once)))
    assert book.alert_us() == 0
    assert CaseBook(record.store).put_alert("hot")
    failures.append("503")
    with pytest.raises(Transient):
        book.put_alert("hot")
    assert not book.put_alert("hot")
    assert len([*record.store.list("nodes/alerts/")]) == 1


def test_held_run_is_released_while_the_record_fails(record: loader.Root) -> None:
    class Holding(Table):
        held: tuple[str, ...] = ("Slurm job 7",)

        def release_runs(self) -> list[str]:
            released, self.held = [*self.held], ()
            return released

    class FailingStore:
        def list(self, prefix: str = "") -> Any:
            raise Transient("503")

    table, prover = Holding(), NodeProver(Cluster(), [])
    with pytest.raises(Transient):
        NodeWatch(cast("Store", FailingStore()), table, prover, apply=True).review()
    assert table.held == ()
    table.held = ("Slurm job 8",)
    assert NodeWatch(record.store, table, prover, apply=False).review().lines == []
    (line,) = NodeWatch(record.store, table, prover, apply=True).review().lines
    assert line.startswith("Slurm job 8 waits again: ")


def test_drain_by_hand_needs_a_reason(record: loader.Root) -> None:
    table = Table()
    with refusal(InvalidRuntime, what="reason", where="m1", given=" ", accepted="text for the next operator"):
        drain_by_hand(record.store, table, "m1", " ", "ann")
    assert table.nodes["m1"].in_service
