"""Slow nodes: named by intervals, proved by the times of the same reads on healthy nodes, and drained by the caps."""

import random
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from penstock.compute.cluster import Cluster, TrainSettings
from penstock.nodes import proof
from penstock.nodes.cases import CaseBook
from penstock.nodes.control import NodeState
from penstock.nodes.proof import NodeProof, NodeProver, ProofQueue
from penstock.nodes.range_reads import ObjectRange, RangeReads, read_ranges
from penstock.nodes.slow_reads import LEAST_RANGES, RANGES, ROUNDS, Slowness, Times, slowness
from penstock.nodes.suspects import MINUTE_US, NodeInterval, NodeSigns, Suspect, suspects
from penstock.nodes.watch import NodeWatch
from penstock.train.intervals import ROW, interval_bytes
from penstock.train.run_folder import RunFolder
from penstock.units import utc_us
from tests.penstock.nodes.test_watch import Table

NOW_US = 1_000 * MINUTE_US
READ_S = 0.02


def intervals(
    run: str, latency_s: dict[str, float], numbers: range, seed: int | None = None
) -> list[NodeInterval]:
    """Intervals of a run, a minute each; with a seed their times have noise."""
    draw = random.Random(seed)
    noise = 0.0 if seed is None else 0.3
    return [
        NodeInterval(
            run=run,
            attempt=1,
            end_step=number,
            node=node,
            ended_us=NOW_US + (number - 9) * MINUTE_US,
            slow_read_s=seconds * draw.lognormvariate(0, noise),
        )
        for number in numbers
        for node, seconds in latency_s.items()
    ]


def suspects_by_node(*rows: NodeInterval) -> dict[str, Suspect]:
    return {one.node: one for one in suspects(NodeSigns(intervals=rows), NOW_US)}


def test_straggler_is_named_with_its_ratio_and_its_peers() -> None:
    gang = {"n1": READ_S, "n2": READ_S, "n3": READ_S, "n4": 7 * READ_S}
    first = intervals("big", gang, range(3))
    (suspect,) = suspects_by_node(*first).values()
    assert (suspect.node, suspect.runs, suspect.others) == ("n4", 1, ("n1", "n2", "n3"))
    assert suspect.text == "median read 140 ms in three intervals, 7.0 times its run's 20 ms"
    other = intervals("other", {"n4": 7 * READ_S, "n8": READ_S, "n9": READ_S}, range(3, 6))
    assert suspects_by_node(*first, *other)["n4"].runs == 2
    assert suspects_by_node(*first, *other)["n4"].text.endswith("its run's 20 ms, in 2 runs")
    healed = intervals("other", {"n4": READ_S, "n8": READ_S, "n9": READ_S}, range(3, 6))
    assert suspects_by_node(*first, *healed) == {}


def test_two_slow_nodes_are_named_also_in_a_gang_of_four_and_one_in_a_gang_of_two() -> None:
    two = {"n1": READ_S, "n2": READ_S, "n3": 7 * READ_S, "n4": 7 * READ_S}
    assert {node: one.others for node, one in suspects_by_node(*intervals("big", two, range(3))).items()} == {
        "n3": ("n1", "n2"),
        "n4": ("n1", "n2"),
    }
    assert list(suspects_by_node(*intervals("big", {"n1": READ_S, "n2": 7 * READ_S}, range(3)))) == ["n2"]


@pytest.mark.parametrize("times", [1, 50])
def test_store_that_is_slow_for_all_names_no_node(times: int) -> None:
    gang = {f"n{number}": times * READ_S for number in range(16)}
    for seed in range(50):
        assert suspects_by_node(*intervals("big", gang, range(5), seed)) == {}


def read_times(draw: random.Random, seconds: float, noise: float, slow: Sequence[float]) -> list[Times]:
    """Times of each round. slow: how many times longer the read of each range takes, on each node."""
    return [[seconds * one * draw.lognormvariate(0, noise) for one in slow] for _ in range(ROUNDS)]


@settings(max_examples=60)
@given(
    st.integers(0, 2**32),
    st.floats(0, 0.6),
    st.sampled_from([0.0002, 0.02, 0.5]),
    st.integers(0, RANGES),
)
def test_healthy_node_is_never_slow_whatever_the_noise_the_store_and_the_samples(
    seed: int, noise: float, seconds: float, n_slow: int
) -> None:
    """The store is slow for all, or some samples are: on each node alike."""
    draw = random.Random(seed)
    slow = [50.0] * n_slow + [1.0] * (RANGES - n_slow)
    nodes = {name: read_times(draw, seconds, noise, slow) for name in ("own", "n1", "n2")}
    own = nodes.pop("own")
    assert not slowness(own, nodes).is_slow


def test_slow_node_is_slow_beside_healthy_ones_and_not_beside_another_slow_one() -> None:
    for seed in range(50):
        draw, plain = random.Random(seed), [1.0] * RANGES
        own, slow = (read_times(draw, 7 * READ_S, 0.5, plain) for _ in range(2))
        n1, n2 = (read_times(draw, READ_S, 0.5, plain) for _ in range(2))
        result = slowness(own, {"n1": n1, "n2": n2})
        assert result.is_slow
        assert 2 <= result.read_s / result.healthy_s < 20
        assert not slowness(own, {"n1": n1, "slow": slow}).is_slow, "then other nodes are asked"
        one_round = [own[0], read_times(draw, READ_S, 0.5, plain)[0]]
        assert not slowness(one_round, {"n1": n1, "n2": n2}).is_slow, "a busy moment"


def test_too_few_reads_prove_nothing() -> None:
    few: list[Times] = [[7 * READ_S] * (LEAST_RANGES - 1) + [None] * 9] * ROUNDS
    many: list[Times] = [[READ_S] * 40] * ROUNDS
    nothing = Slowness(is_slow=False, is_measured=False)
    assert slowness(few, {"n1": many}) == slowness(many, {}) == slowness(many, {"n1": many[:1]}) == nothing
    quick: list[Times] = [[0.0014] * 40] * ROUNDS
    assert not slowness(quick, {"n1": [[0.0002] * 40] * ROUNDS}).is_slow, "of a cache: processors, not reads"


def slow_suspect(at_us: int = NOW_US, runs: int = 1) -> Suspect:
    return Suspect(node="n4", sign="slow reads", at_us=at_us, text="slow", runs=runs)


SLOW = NodeProof(is_bad=True, text="slow", is_slowness=True)


def test_one_measurement_is_confirmed_by_a_second_one_or_by_intervals_of_another_run() -> None:
    queue, later_us = ProofQueue(), NOW_US + proof.PROVE_AGAIN_US
    assert queue.due([slow_suspect()], NOW_US) == [slow_suspect()]
    queue.add(slow_suspect(), SLOW, NOW_US)
    assert (queue.proved, queue.open_suspects([slow_suspect()])) == ({}, {"n4"})
    newer = slow_suspect(NOW_US + MINUTE_US)
    assert queue.due([newer], later_us - 1) == [], "an interval a minute is no new measurement"
    assert queue.due([newer], later_us) == [newer]
    queue.add(newer, SLOW, later_us)
    assert list(queue.proved) == ["n4"]
    queue.add(newer, NodeProof(is_bad=False, text="srun failed", is_tested=False), later_us)
    assert list(queue.proved) == ["n4"], "what was not tested refutes nothing"
    queue.add(newer, NodeProof(is_bad=False, text="as fast"), later_us)
    assert (queue.proved, queue.unconfirmed) == ({}, set())
    queue.add(newer, SLOW, later_us)
    queue.due([], later_us)
    assert queue.unconfirmed == set(), "no longer a suspect"
    two_runs = ProofQueue()
    two_runs.add(slow_suspect(runs=2), SLOW, NOW_US)
    assert list(two_runs.proved) == ["n4"]


def test_first_reads_are_timed(tmp_path: Path) -> None:
    with loader.Root(tmp_path / "data") as root, root.write("points") as writer:
        writer.add("0", {"x.bin": bytes(100)})
    (place,) = root.open("points@1").address(np.arange(1), ["x.bin"])
    field = place.fields["x.bin"]
    ranges = [ObjectRange(field.path, field.offset, field.offset + 100), ObjectRange("gone", 0, 9)]
    result = read_ranges(root.store, ranges, reads=2, limit_s=60, at_once=1)
    assert result.first_s[0] is not None
    assert (result.first_s[1], result.failed) == (None, 1)
    assert RangeReads.from_json(result.to_json()) == result
    for wrong in (-1.0, float("nan"), float("inf"), "x"):
        with pytest.raises((ValueError, TypeError)):
            RangeReads.from_json(result.to_json() | {"first_s": [wrong]})


SLOW_NODES = """\
import sys, time
from penstock.nodes import range_reads

class Slow:
    def __init__(self, store):
        self._store = store

    def get_range(self, *words):
        time.sleep(0.03)
        return self._store.get_range(*words)

real = range_reads.read_ranges
if sys.argv[1] in {slow!r}:
    range_reads.read_ranges = lambda store, *words: real(Slow(store), *words)
sys.exit(range_reads.main())
"""


def prover(folder: Path, slow: Sequence[str]) -> NodeProver:
    """A prover whose commands read a root of small samples; the reads of some nodes take 30 ms longer."""
    with loader.Root(folder / "data") as root, root.write("points") as writer:
        for number in range(80):
            writer.add(f"{number}", {"x.bin": bytes([number]) * 100})
    (folder / "node.py").write_text(SLOW_NODES.format(slow=[*slow]))
    reads = f"exec {sys.executable} {folder}/node.py {{node}}"
    line = f'case "$*" in *range_reads*) {reads} ;; *) echo fine ;; esac'
    cluster = Cluster(train=TrainSettings(on_node=("sh", "-c", line, "sh")))
    return NodeProver(cluster, [str(folder / "data")])


def put_slow_intervals(record: loader.Root, slow: str, nodes: Sequence[str]) -> None:
    folder = RunFolder(record.store, "big")
    folder.begin_attempt({"node": nodes[0]})
    for number in range(3):
        rows = np.zeros(len(nodes), ROW)
        rows["node"] = [node.encode() for node in nodes]
        rows["end_step"], rows["ended_us"] = number + 1, utc_us()
        rows["slow_read_s"] = [7 * READ_S if node == slow else READ_S for node in nodes]
        folder.put_interval(1, *interval_bytes(rows.tobytes()))


@pytest.fixture
def reads_in_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    monkeypatch.setattr(proof, "PROVE_AGAIN_US", 0)


@pytest.mark.usefixtures("reads_in_processes")
def test_slow_node_is_alerted_at_once_and_drained_after_a_second_measurement(tmp_path: Path) -> None:
    record, table = loader.Root(tmp_path / "record"), Table()
    put_slow_intervals(record, "m3", [*table.nodes])
    measuring = prover(tmp_path, ["m3"])
    watcher = NodeWatch(record.store, table, measuring, apply=True)
    first, second = watcher.review(), watcher.review()
    assert first.alert.startswith(
        "slow node m3: median read 140 ms in three intervals, 7.0 times its run's 20 ms"
    )
    assert "is drained if a second measurement" in first.alert
    assert (first.drained, second.drained, second.alert) == ([], ["m3"], "")
    (case,) = CaseBook(record.store).read()
    assert table.nodes["m3"] == NodeState(in_service=False, reason=case.reason)
    assert case.text.startswith("reads take 3")
    assert CaseBook(record.store).sign(1) == "slow reads"


@pytest.mark.usefixtures("reads_in_processes")
def test_slow_node_returns_only_when_it_reads_as_fast_as_others(tmp_path: Path) -> None:
    measuring = prover(tmp_path, ["m3"])
    assert not measuring.is_clean("m3", [], ["m0", "m1"])
    assert not measuring.is_clean("m3", [], []), "nothing measured it"
    assert measuring.is_clean("m2", [], ["m0", "m1"])


@pytest.mark.usefixtures("reads_in_processes")
@pytest.mark.parametrize("slow", [(), ("m0", "m1", "m2", "m3")], ids=["none", "store"])
def test_node_that_reads_as_the_others_do_is_not_drained_whatever_its_intervals_say(
    tmp_path: Path, slow: tuple[str, ...]
) -> None:
    """Intervals of one slow sample, of a slow store, or forged."""
    record, table = loader.Root(tmp_path / "record"), Table()
    put_slow_intervals(record, "m3", [*table.nodes])
    watcher = NodeWatch(record.store, table, prover(tmp_path, slow), apply=True)
    reviews = [watcher.review() for _ in range(2)]
    assert [(review.drained, review.alert, len(review.suspects)) for review in reviews] == [([], "", 1)] * 2
    assert table.nodes == Table().nodes


def test_slow_node_that_cannot_be_measured_is_alerted_and_stays(tmp_path: Path) -> None:
    record, table = loader.Root(tmp_path / "record"), Table()
    put_slow_intervals(record, "m3", [*table.nodes])
    unreachable = Cluster(train=TrainSettings(on_node=("sh", "-c", "exit 255", "{node}")))
    with loader.Root(tmp_path / "data") as root, root.write("points") as writer:
        for number in range(80):
            writer.add(f"{number}", {"x.bin": bytes(100)})
    watcher = NodeWatch(record.store, table, NodeProver(unreachable, [root.url]), apply=True)
    reviews = [watcher.review() for _ in range(2)]
    assert "slow node m3: median read 140 ms" in reviews[0].alert
    assert "did not read: exit code 255" in reviews[0].alert
    assert (reviews[1].alert, table.nodes) == ("", Table().nodes)
