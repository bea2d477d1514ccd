"""Node-seconds of a run by part: they sum to the allocations, repeated steps are not new."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.train.goodput.allocations import UNACCOUNTED, Allocation, match_attempts, with_unaccounted
from penstock.train.goodput.starts import Restarts, goodput, restarts, span_goodput, totals
from penstock.train.goodput.stretches import PARTS
from penstock.train.intervals import IntervalSum
from penstock.train.launch.launcher import Span
from penstock.train.launch.run_log import RankStart
from penstock.train.run_folder import Event

S = 1_000_000


def event(attempt: int, number: int, name: str, at_s: float, step: int, took_s: float = 0) -> Event:
    facts = {"took_us": int(took_s * S)} if took_s else {}
    return Event(attempt=attempt, number=number, name=name, at_us=int(at_s * S), step=step, facts=facts)


def interval(attempt: int, end_step: int, at_s: float, wait_s: float = 0, step_s: float = 1) -> IntervalSum:
    at_us = int(at_s * S)
    return IntervalSum(
        attempt=attempt, end_step=end_step, ended_us=at_us, wait_s=wait_s, step_s=step_s, nodes=1
    )


LIFE = [
    event(1, 0, "ranks_up", 10, 0),
    event(1, 1, "first_batch", 14, 0, took_s=4),
    event(1, 2, "saved", 60, 40, took_s=6),
    event(1, 3, "failed", 80, 50, took_s=7),
    event(2, 0, "ranks_up", 110, 0),
    event(2, 1, "restored", 120, 40, took_s=8),
    event(2, 2, "first_batch", 121, 40, took_s=1),
    event(2, 3, "saved", 171, 80, took_s=10),
    event(2, 4, "stopped", 171, 80),
]
TIMES = [
    Allocation(attempt=1, begun_us=0, ended_us=90 * S, nodes=2),
    Allocation(attempt=2, begun_us=100 * S, ended_us=175 * S, nodes=1),
]


def test_start_that_accounting_lacks_is_named_and_its_steps_are_done() -> None:
    attempts = {1: {"at_us": 10 * S}, 2: {"at_us": 110 * S}}
    times = match_attempts([Span(begun_us=100 * S, ended_us=175 * S)], attempts, 200 * S)
    assert [one.attempt for one in times] == [2]
    first, second = goodput(with_unaccounted(times, attempts), LIFE)
    assert (first.attempt, first.state, first.seconds, first.lost_steps) == (1, UNACCOUNTED, 0, 10)
    assert second.parts["repeated steps"] == 40 * 10 / 40
    assert [(restart.cause, restart.lost_steps) for restart in restarts([first, second])] == [("failed", 10)]
    assert with_unaccounted(TIMES, attempts) == TIMES


def test_life_of_two_starts() -> None:
    first, second = goodput(TIMES, LIFE)
    assert {part: seconds for part, seconds in first.parts.items() if seconds} == {
        "starting": 10,
        "waiting for data": 4,
        "new steps": 40 + 13,
        "saving": 6,
        "idle": 7 + 10,
    }
    assert (first.lost_steps, first.seconds_to_first_step, first.end) == (10, 14, "failed")
    assert {part: seconds for part, seconds in second.parts.items() if seconds} == {
        "starting": 10 + 2,
        "restoring": 8,
        "waiting for data": 1,
        "repeated steps": 10,
        "new steps": 30,
        "saving": 10,
        "stopping": 4,
    }
    assert (second.first_step, second.end_step, second.lost_steps) == (40, 80, 0)
    assert totals([first, second])["new steps"] == 2 * 53 + 30


def test_share_that_waits_is_no_step() -> None:
    first, _ = goodput(TIMES, LIFE, [interval(1, 50, 73, wait_s=0.25)])
    assert (first.parts["new steps"], first.parts["waiting for data"]) == (0.75 * 53, 4 + 0.25 * 53)
    assert first.share == 0.75 * 53 / 90


def test_waiting_is_of_each_start_and_at_most_all() -> None:
    intervals = [interval(1, 5, 20, 2, 5), interval(1, 9, 30, 1, 5), interval(2, 80, 171, 11, 10)]
    first, second = goodput(TIMES, LIFE, intervals)
    assert first.parts["waiting for data"] == pytest.approx(4 + 0.3 * 53)
    assert second.parts["new steps"] == second.parts["repeated steps"] == 0


def test_start_without_events_is_unknown() -> None:
    (only,) = goodput(TIMES[:1], [])
    assert only.parts == dict.fromkeys(PARTS, 0.0) | {"unknown": 90.0}
    assert only.seconds_to_first_step is None


def test_restarts_by_cause() -> None:
    life = [
        *LIFE[:4],
        *LIFE[4:],
        event(3, 0, "ranks_up", 190, 0),
        event(3, 1, "first_batch", 200, 80, took_s=1),
        event(4, 0, "ranks_up", 290, 0),
        event(4, 1, "first_batch", 296, 80, took_s=1),
        event(4, 2, "failed", 299, 90),
        event(5, 0, "ranks_up", 310, 0),
    ]
    spans = [
        Span(begun_us=0, ended_us=90 * S, state="FAILED"),
        Span(begun_us=100 * S, ended_us=175 * S, state="PREEMPTED"),
        Span(begun_us=180 * S, ended_us=280 * S, state="NODE_FAIL"),
        Span(begun_us=285 * S, ended_us=300 * S),
        Span(begun_us=300 * S, ended_us=None),
    ]
    attempts = {number: {"at_us": at_s * S} for number, at_s in enumerate((10, 110, 190, 290, 310), 1)}
    starts = goodput(match_attempts(spans, attempts, 400 * S), life)
    assert restarts(starts) == [
        Restarts(cause="failed", count=2, lost_steps=10, seconds_to_first_step=21),
        Restarts(cause="node_fail", count=1, lost_steps=0, seconds_to_first_step=11),
        Restarts(cause="preempted", count=1, lost_steps=0, seconds_to_first_step=20),
    ]


def test_back_off_and_starts_without_a_rank_have_their_time() -> None:
    """A job whose script starts srun four times: no rank, a kill, no rank, and a stop by a preemption."""
    noted = (
        RankStart(begun_us=0, ended_us=5 * S),
        RankStart(begun_us=15 * S, ended_us=70 * S),
        RankStart(begun_us=80 * S, ended_us=82 * S),
        RankStart(begun_us=100 * S, ended_us=172 * S, is_preempted=True),
    )
    span = Span(begun_us=0, ended_us=175 * S, state="REQUEUED", nodes=2, starts=noted)
    attempts = {1: {"at_us": 16 * S}, 2: {"at_us": 110 * S}}
    killed = [event(1, 0, "ranks_up", 16, 0), event(1, 1, "first_batch", 20, 0), event(1, 2, "saved", 60, 40)]
    starts = goodput(match_attempts([span], attempts, 200 * S), [*killed, *LIFE[4:]])
    assert [start.attempt for start in starts] == [0, 1, 0, 2]
    assert [{part: s for part, s in start.parts.items() if s} for start in starts] == [
        {"starting": 5, "back-off": 10},
        {"starting": 5, "new steps": 40, "unknown": 10, "back-off": 10},
        {"starting": 2, "back-off": 18},
        {"starting": 12, "restoring": 8, "waiting for data": 1, "new steps": 40, "saving": 10, "stopping": 4},
    ]
    assert sum(start.seconds for start in starts) == 175
    assert [start.failed_us for start in starts] == [5 * S, 70 * S, 82 * S, None]
    assert [restart.cause for restart in restarts(starts)] == ["no rank", "killed"]
    (last,) = restarts([starts[-1], starts[1]])
    assert last.cause == "preempted", "the accounting has REQUEUED"


@pytest.mark.parametrize(
    ("state", "end", "fails"),
    [
        ("REQUEUED", "saved", True),
        ("REQUEUED", "stopped", False),
        ("PREEMPTED", "saved", False),
        ("COMPLETED", "ended", False),
        ("CANCELLED", "saved", False),
        ("TIMEOUT", "failed", True),
    ],
)
def test_last_start_of_an_allocation_failed_if_its_ranks_did(state: str, end: str, fails: bool) -> None:
    life = [event(1, 0, "first_batch", 10, 0), event(1, 1, end, 60, 40)]
    span = Span(begun_us=0, ended_us=90 * S, state=state, starts=(RankStart(begun_us=0, ended_us=80 * S),))
    (start,) = goodput(match_attempts([span], {1: {"at_us": 5 * S}}, 0), life)
    assert start.failed_us == (80 * S if fails else None)


def test_start_that_runs_has_not_failed() -> None:
    span = Span(begun_us=0, ended_us=None, starts=(RankStart(begun_us=0),))
    (start,) = goodput(match_attempts([span], {}, 50 * S), [])
    assert (start.failed_us, start.parts["starting"], start.seconds) == (None, 50, 50)


@given(
    st.lists(st.tuples(st.integers(-5, 110), st.none() | st.integers(-5, 110)), max_size=5),
    st.lists(st.integers(0, 100), max_size=5),
)
def test_noted_starts_within_one_span_sum_to_it_whatever_their_clocks_say(
    noted: list[tuple[int, int | None]], at_s: list[int]
) -> None:
    starts = [
        RankStart(begun_us=begun_s * S, ended_us=None if ended_s is None else ended_s * S)
        for begun_s, ended_s in sorted(noted, key=lambda pair: pair[0])
    ]
    attempts = {number: {"at_us": one * S} for number, one in enumerate(at_s, 1)}
    span = Span(begun_us=0, ended_us=100 * S, starts=tuple(starts))
    allocations = match_attempts([span], attempts, 0)
    assert sorted(one.attempt for one in allocations if one.attempt) == sorted(attempts)
    assert sum(one.seconds for one in goodput(allocations, [])) == pytest.approx(100)


NAMES = ("ranks_up", "restored", "first_batch", "saved", "stopped", "ended", "failed", "killed")


@given(
    st.lists(
        st.tuples(st.sampled_from(NAMES), st.integers(-50, 200), st.integers(0, 90), st.integers(0, 300))
    ),
    st.integers(0, 100),
    st.floats(0, 1),
)
def test_parts_sum_to_the_allocation(
    life: list[tuple[str, int, int, int]], length_s: int, wait_share: float
) -> None:
    """Whatever the clocks of nodes say."""
    events = [event(1, n, name, at_s, step, took_s) for n, (name, at_s, step, took_s) in enumerate(life)]
    intervals = [interval(1, 0, 0, wait_share)]
    (only,) = goodput([Allocation(attempt=1, begun_us=0, ended_us=length_s * S)], events, intervals)
    assert abs(only.seconds - length_s) < 1e-6
    assert all(seconds >= 0 for seconds in only.parts.values())


def test_steps_of_a_killed_start_are_known_from_its_intervals() -> None:
    killed = [one for one in LIFE if one.attempt == 1 and one.name != "failed"]
    intervals = [interval(1, 10, 24), interval(1, 50, 80)]
    (first,) = goodput(TIMES[:1], killed, intervals=intervals)
    parts = {part: seconds for part, seconds in first.parts.items() if seconds}
    assert parts == {"starting": 10, "waiting for data": 4, "new steps": 60, "saving": 6, "unknown": 10}
    assert (first.end_step, first.end) == (50, "saved")
    (first, second) = goodput(TIMES, [*killed, *LIFE[4:]], intervals=intervals)
    assert (first.lost_steps, second.parts["repeated steps"]) == (10, 10)
    assert restarts([first, second])[0].cause == "killed"


def test_step_before_a_kill_is_known_from_the_launcher() -> None:
    """The first rank was killed 2 s after step 45; its launcher saw the end 3 s later."""
    killed = [one for one in LIFE if one.attempt == 1 and one.name != "failed"]
    killed.append(event(1, 4, "killed", 80, 45, took_s=5))
    (first, second) = goodput(TIMES, [*killed, *LIFE[4:]])
    assert first.parts["unknown"] == 0
    assert first.parts["idle"] == 5 + 10
    assert (first.end, first.end_step, first.lost_steps, first.failed_us) == ("killed", 45, 5, 90 * S)
    assert second.parts["repeated steps"] > 0
    assert restarts([first, second])[0].cause == "killed"


def test_starts_within_one_span_share_its_time() -> None:
    begins = {1: {"at_us": 10 * S}, 2: {"at_us": 110 * S}}
    first, second = match_attempts([Span(begun_us=0, ended_us=175 * S, state="COMPLETED")], begins, 0)
    assert (first.attempt, first.begun_us, first.ended_us, first.state) == (1, 0, 110 * S, "")
    assert (second.attempt, second.begun_us, second.ended_us) == (2, 110 * S, 175 * S)
    assert second.state == "COMPLETED"
    starts = goodput([first, second], LIFE)
    assert sum(starts[0].parts.values()) + sum(starts[1].parts.values()) == 175
    assert starts[0].parts["new steps"] == 53
    whole = span_goodput(starts)
    assert (whole.attempt, whole.seconds, whole.end) == (2, 175, "stopped")


@given(st.lists(st.integers(0, 100), min_size=1, max_size=5))
def test_starts_within_one_span_sum_to_it_whatever_their_clocks_say(at_s: list[int]) -> None:
    attempts = {number: {"at_us": one * S} for number, one in enumerate(at_s, 1)}
    allocations = match_attempts([Span(begun_us=0, ended_us=100 * S)], attempts, 0)
    assert [one.attempt for one in allocations] == sorted(attempts)
    assert sum(one.seconds for one in goodput(allocations, [])) == pytest.approx(100)
