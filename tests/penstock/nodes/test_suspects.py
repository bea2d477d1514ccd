"""Suspects and caps, over plain records."""

from dataclasses import replace

import pytest

from penstock.nodes.caps import DRAIN_EVERY_US, Drain, caps
from penstock.nodes.proof import NodeProof, ProofQueue
from penstock.nodes.suspects import (
    ALERT_EVERY_US,
    MINUTE_US,
    Attempt,
    FailedCheck,
    LossDifference,
    NodeFault,
    NodeInterval,
    NodeSigns,
    Suspect,
    suspects,
)

NOW_US = 1_000 * MINUTE_US


def suspect_signs(signs: NodeSigns, **options: dict[str, int]) -> list[tuple[str, str]]:
    return [(one.node, one.sign) for one in suspects(signs, NOW_US, **options)]


def fault(node: str, minutes_ago: float, begin: int = 0, kind: str = "read") -> NodeFault:
    at_us = NOW_US - round(minutes_ago * MINUTE_US)
    return NodeFault(node=node, at_us=at_us, address="shards/a.tar", begin=begin, end=begin + 10, kind=kind)


def test_three_wrong_reads_in_ten_minutes_make_a_suspect() -> None:
    three = [fault("n1", minutes, begin) for begin, minutes in enumerate((9, 5, 1))]
    (suspect,) = suspects(NodeSigns(faults=three), NOW_US)
    assert (suspect.node, suspect.sign, suspect.faults) == ("n1", "wrong reads", tuple(three))
    assert suspect_signs(NodeSigns(faults=three[:2])) == []
    assert suspect_signs(NodeSigns(faults=[*three[:2], fault("n1", 20, 7), fault("n2", 1, 8)])) == []
    assert (
        suspect_signs(NodeSigns(faults=three), after_us={"n1": NOW_US - MINUTE_US}) == []
    )  # settled by its last drain


def test_ranges_that_are_wrong_on_two_nodes_count_against_neither() -> None:
    both = [fault(node, 1, begin) for node in ("n1", "n2") for begin in range(3)]
    assert suspect_signs(NodeSigns(faults=both)) == []
    pages = [replace(one, kind="cache page") for one in both]
    assert suspect_signs(NodeSigns(faults=pages)) == [
        ("n1", "wrong reads"),
        ("n2", "wrong reads"),
    ]  # each has its own disk


def intervals(latency_s: dict[str, float], numbers: range) -> list[NodeInterval]:
    return [
        NodeInterval(
            run="big", attempt=1, end_step=n, node=node, ended_us=NOW_US + (n - 9) * MINUTE_US, slow_read_s=s
        )
        for n in numbers
        for node, s in latency_s.items()
    ]


def test_three_slow_intervals_in_a_row_make_a_suspect() -> None:
    slow = {"n1": 0.02, "n2": 0.021, "n3": 0.019, "n4": 0.09}
    assert suspect_signs(NodeSigns(intervals=intervals(slow, range(3)))) == [("n4", "slow reads")]
    assert suspect_signs(NodeSigns(intervals=intervals(slow, range(2)))) == []
    healed = intervals(slow, range(3)) + intervals(slow | {"n4": 0.02}, range(3, 4))
    assert suspect_signs(NodeSigns(intervals=healed)) == []
    twice = {"n1": 0.02, "n2": 0.05, "n3": 0.035, "n4": 0.07}  # above twice the median, within the deviations
    assert suspect_signs(NodeSigns(intervals=intervals(twice, range(3)))) == []
    assert suspect_signs(NodeSigns(intervals=intervals({"n1": 0.0, "n2": 0.05}, range(3)))) == []


def attempt(
    run: str, number: int, nodes: str, *, failed: bool, end_step: int = 0, saved_step: int = 0
) -> Attempt:
    return Attempt(
        run=run,
        number=number,
        nodes=tuple(nodes.split()),
        ended_us=NOW_US + number,
        failed=failed,
        end_step=end_step,
        saved_step=saved_step,
    )


def test_three_failed_starts_of_the_last_five_make_suspects() -> None:
    failed = [attempt("big", n, f"n1 n{n + 1}", failed=True) for n in range(1, 4)]
    ended = attempt("big", 4, "n7 n8", failed=False)
    assert suspect_signs(NodeSigns(attempts=[*failed, ended])) == [("n1", "crashes")]
    assert suspect_signs(NodeSigns(attempts=[*failed[:2], ended])) == []
    assert suspect_signs(NodeSigns(attempts=failed)) == []  # the run never went on: it may be the run
    one_gang = [attempt("big", n, "n1 n2", failed=True) for n in range(1, 4)]
    assert suspect_signs(NodeSigns(attempts=[*one_gang, ended])) == [("n1", "crashes"), ("n2", "crashes")]
    later = [attempt("other", n, "n1", failed=False) for n in range(4, 8)]
    assert suspect_signs(NodeSigns(attempts=[*failed, ended, *later[:2]])) == [("n1", "crashes")]
    assert suspect_signs(NodeSigns(attempts=[*failed, ended, *later[:3]])) == []


def test_run_that_saves_behind_its_failure_continued() -> None:
    """A run that fails at one step whatever its nodes accuses none; one that gets on does, before it ends."""
    steps = [(100, 90), (150, 140), (200, 190), (250, 240)]
    goes_on = [
        attempt("big", n, "n1 n2", failed=True, end_step=end, saved_step=saved)
        for n, (end, saved) in enumerate(steps)
    ]
    assert suspect_signs(NodeSigns(attempts=goes_on)) == [("n1", "crashes"), ("n2", "crashes")]
    assert suspect_signs(NodeSigns(attempts=goes_on[:3])) == []  # the third failure may be the run's
    stuck = [attempt("big", n, "n1 n2", failed=True, end_step=100 - n, saved_step=90 + n) for n in range(5)]
    assert suspect_signs(NodeSigns(attempts=stuck)) == []
    preempted = attempt("big", 9, "n7 n8", failed=False, end_step=60, saved_step=60)
    assert suspect_signs(NodeSigns(attempts=[*stuck, preempted])) == [], "it did not come as far"
    further = replace(preempted, end_step=120, saved_step=120)
    assert suspect_signs(NodeSigns(attempts=[*stuck, further])) == [("n1", "crashes"), ("n2", "crashes")]


def test_starts_with_a_drained_node_accuse_no_other() -> None:
    gangs = ["n1 n5", "n2 n5", "n1 n6", "n1 n5"]
    failed = [attempt(f"r{n}", 2 * n, nodes, failed=True) for n, nodes in enumerate(gangs)]
    ended = [attempt(f"r{n}", 2 * n + 1, f"n{10 + n}", failed=False) for n in range(len(gangs))]
    both = [("n1", "crashes"), ("n5", "crashes")]
    assert suspect_signs(NodeSigns(attempts=[*failed, *ended])) == both
    assert suspects(NodeSigns(attempts=[*failed, *ended]), NOW_US + 60, {"n1": NOW_US + 50}) == []


def test_loss_that_differs_names_the_one_node_that_was_exchanged() -> None:
    loss = LossDifference(
        run="big", step=7, at_us=NOW_US, nodes=("n1", "n2"), replay_nodes=("n2", "n3"), text="nan here, 1.5"
    )
    assert suspect_signs(NodeSigns(losses=[loss])) == [("n1", "loss")]
    assert suspect_signs(NodeSigns(losses=[replace(loss, replay_nodes=("n3", "n4"))])) == []


def test_failed_check_makes_a_suspect() -> None:
    check = FailedCheck(node="n1", at_us=NOW_US, check="store", text="2 of 64 ranges are wrong")
    assert suspects(NodeSigns(checks=[check]), NOW_US) == [
        Suspect(node="n1", sign="check", at_us=NOW_US, text="store failed: 2 of 64 ranges are wrong")
    ]
    assert suspect_signs(NodeSigns(checks=[replace(check, at_us=NOW_US - 61 * MINUTE_US)])) == []


def make_drain(node: str, minutes_ago: float, *, returned: bool = False) -> Drain:
    at_us = NOW_US - round(minutes_ago * MINUTE_US)
    return Drain(node=node, drained_us=at_us, returned_us=at_us + 1 if returned else None)


def test_caps_drain_one_node_in_ten_minutes() -> None:
    decision = caps(["n1", "n2"], [], 1000, NOW_US)
    assert (decision.drain, list(decision.waiting)) == (("n1",), ["n2"])
    assert caps(["n2"], [make_drain("n1", 9)], 1000, NOW_US).drain == ()
    assert caps(["n2"], [make_drain("n1", 10)], 1000, NOW_US).drain == ("n2",)


@pytest.mark.parametrize(("n_nodes", "limit"), [(4, 1), (99, 1), (100, 2), (1250, 25)])
def test_caps_drain_two_percent_and_at_least_one(n_nodes: int, limit: int) -> None:
    full = [make_drain(f"m{n}", 100) for n in range(limit)]
    assert caps(["n1"], full[1:], n_nodes, NOW_US).drain == ("n1",)
    decision = caps(["n1"], full, n_nodes, NOW_US)
    assert decision.drain == ()
    assert "n1" in decision.alert


def test_caps_never_drain_a_node_a_third_time() -> None:
    twice = [make_drain("n1", 100, returned=True), make_drain("n1", 50, returned=True)]
    decision = caps(["n1", "n2"], twice, 1000, NOW_US)
    assert decision.drain == ("n2",)
    assert "n1" in decision.alert
    assert caps(["n1"], twice[:1], 1000, NOW_US).drain == ("n1",)


@pytest.mark.parametrize("n_nodes", [4, 1250])
def test_check_that_fails_everywhere_drains_one_and_alerts_once_in_a_day(n_nodes: int) -> None:
    everywhere = [f"n{n:04d}" for n in range(n_nodes)]
    drains, alerts_us = list[Drain](), list[int]()
    for minute in range(0, 24 * 60, 10):
        now_us = NOW_US + minute * MINUTE_US
        decision = caps(everywhere, drains, n_nodes, now_us, alerts_us)
        drains += [Drain(node=node, drained_us=now_us) for node in decision.drain]
        alerts_us += [now_us] * bool(decision.alert)
    assert (len(drains), len(alerts_us)) == (1, 1)
    assert ALERT_EVERY_US > DRAIN_EVERY_US


def test_nodes_that_several_runs_accuse_are_proved_again_first() -> None:
    """A check finds a bad node in some tries only, and a gang's other nodes are suspects, too."""
    starts = [
        Attempt(run=run, number=n, nodes=nodes, ended_us=NOW_US - 9 + n, failed=True, end_step=5)
        for run, nodes in (("a", ("bad", "n1", "n2", "n3")), ("b", ("bad", "n4", "n5", "n6")))
        for n in range(3)
    ]
    done = [
        Attempt(run=run, number=9, nodes=("ok",), ended_us=NOW_US, failed=False, end_step=9) for run in "ab"
    ]
    accused = suspects(NodeSigns(attempts=[*starts, *done]), NOW_US)
    assert {suspect.node: suspect.runs for suspect in accused} == {
        "bad": 2,
        **dict.fromkeys(["n1", "n2", "n3", "n4", "n5", "n6"], 1),
    }
    queue, proved = ProofQueue(), list[str]()
    for review in range(4):
        now_us = NOW_US + 10 * review * MINUTE_US
        for suspect in queue.due(accused, now_us, most=2):
            proved.append(suspect.node)
            queue.add(suspect, NodeProof(is_bad=False, text=""), now_us)
    assert proved[::2] == ["bad"] * 4
    assert len(set(proved[1::2])) == 4, "the others get their turn"
