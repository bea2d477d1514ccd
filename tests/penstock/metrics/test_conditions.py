"""Each condition fires and rests over synthetic histories."""

import math
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.metrics.conditions import (
    BY_NAME,
    CHECKPOINT_OLD_S,
    CONDITIONS,
    ENDED_STATES,
    RUN_STATES,
    DatasetFacts,
    TrainingFacts,
    WaitingBatch,
    dataset_conditions,
    is_quiet,
    node_condition,
    training_conditions,
)
from penstock.metrics.recent_waits import THIRD_US, WaitedTime, newest_wait, recent_waits

NOW_S = 1_800_000_000.0
HEALTHY = TrainingFacts(
    run="big-7",
    state="running",
    last_us=round((NOW_S - 3) * 1e6),
    median_step_s=1.0,
    waits=(0.02, 0.02, 0.02),
    starts_us=(round((NOW_S - 40_000) * 1e6),),
    checkpoint_us=round((NOW_S - 600) * 1e6),
)


def names(facts: TrainingFacts, now_s: float = NOW_S) -> list[str]:
    return [raised.condition.name for raised in training_conditions(facts, now_s)]


def us(ago_s: float) -> int:
    return round((NOW_S - ago_s) * 1e6)


def test_healthy_training_holds_no_condition() -> None:
    assert names(HEALTHY) == []


def test_condition_names_are_distinct_and_point_to_their_heading() -> None:
    assert len(BY_NAME) == len(CONDITIONS) == 17
    for condition in CONDITIONS:
        assert condition.runbook == f"docs/operations.md#{condition.name}"
        assert condition.sentence.endswith(".")


@pytest.mark.parametrize(
    ("name", "fires", "rests"),
    [
        ("run-stalled", {"state": "stalled"}, {"state": "silent"}),
        ("run-failed", {"state": "failed", "failure": "killed"}, {"state": "stopped"}),
        ("run-damaged", {"state": "damaged", "error": "torn"}, {}),
        ("loss-not-finite", {"n_not_finite": 1, "first_not_finite": 7}, {"n_not_finite": 0}),
        ("run-starved", {"waits": (0.11, 0.2, 0.3)}, {"waits": (0.11, 0.1, 0.9)}),
        (
            "run-restarting",
            {"starts_us": (us(60), us(90), us(3599))},
            {"starts_us": (us(1), us(2), us(3601))},
        ),
        (
            "checkpoint-old",
            {"checkpoint_us": us(CHECKPOINT_OLD_S + 1)},
            {"checkpoint_us": us(CHECKPOINT_OLD_S - 1)},
        ),
        ("samples-substituted", {"substituted": 1}, {"substituted": 0}),
    ],
)
def test_training_condition_fires_and_rests(
    name: str, fires: dict[str, object], rests: dict[str, object]
) -> None:
    assert names(replace(HEALTHY, **fires)) == [name]  # type: ignore[arg-type]
    assert names(replace(HEALTHY, **rests)) == []  # type: ignore[arg-type]


@pytest.mark.parametrize("state", ENDED_STATES)
def test_ended_training_is_neither_late_nor_starved(state: str) -> None:
    facts = replace(
        HEALTHY,
        state=state,
        waits=(0.9, 0.9, 0.9),
        starts_us=(us(1), us(2), us(3)),
        checkpoint_us=us(1e6),
        substituted=3,
    )
    assert set(names(facts)) <= {"run-failed"}


@settings(deadline=None, derandomize=True)
@given(st.floats(0, 1e5), st.one_of(st.just(math.nan), st.floats(0, 1e4)))
def test_run_is_quiet_after_ten_medians_and_ten_minutes(quiet_s: float, median_s: float) -> None:
    slow = not math.isnan(median_s) and quiet_s <= 10 * median_s
    assert is_quiet(quiet_s, median_s) == (quiet_s > 600 and not slow)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 2_000), st.floats(0, 1)), max_size=40))
def test_recent_waits_equal_a_sum_by_hand(steps: list[tuple[int, float]]) -> None:
    """Steps of one second at random ages, each with a share of waiting."""
    times = [WaitedTime(us(age_s), share, 1.0) for age_s, share in steps]
    newest_s = min((age_s for age_s, _ in steps), default=0)
    thirds: list[list[float]] = [[], [], []]
    for age_s, share in steps:
        third = (age_s - newest_s) * 1_000_000 // THIRD_US
        if third < 3:
            thirds[third].append(share)
    if all(thirds):
        assert recent_waits(times) == pytest.approx([sum(own) / len(own) for own in thirds])
    else:
        assert recent_waits(times) == ()
    if thirds[0]:
        assert newest_wait(times) == pytest.approx(sum(thirds[0]) / len(thirds[0]))
    else:
        assert newest_wait(times) is None


@settings(deadline=None, derandomize=True)
@given(
    st.sampled_from(RUN_STATES),
    st.integers(0, 3),
    st.lists(st.integers(0, 8_000), max_size=6),
    st.integers(0, 20_000),
)
def test_training_holds_the_conditions_that_its_figures_say(
    state: str, n_not_finite: int, ages_s: list[int], checkpoint_age_s: int
) -> None:
    facts = replace(
        HEALTHY,
        state=state,
        n_not_finite=n_not_finite,
        first_not_finite=5,
        starts_us=tuple(us(age_s) for age_s in ages_s),
        checkpoint_us=us(checkpoint_age_s),
    )
    runs_on = state not in ENDED_STATES
    expected = {
        "run-failed": state == "failed",
        "run-stalled": state == "stalled",
        "loss-not-finite": n_not_finite > 0,
        "run-restarting": runs_on and sum(age_s < 3600 for age_s in ages_s) >= 3,
        "checkpoint-old": state == "running" and checkpoint_age_s > CHECKPOINT_OLD_S,
    }
    assert set(names(facts)) == {name for name, holds in expected.items() if holds}


@dataclass(frozen=True)
class Limits:
    backlog_s: float | None = 100.0
    silence_s: float | None = 100.0
    version_s: float | None = 100.0


@pytest.mark.parametrize(
    ("name", "fires", "rests"),
    [
        ("batch-stopped", {"stopped": [("1-a", "media: unreadable")]}, {"stopped": []}),
        ("nothing-arrives", {"landed_s": NOW_S - 101}, {"landed_s": NOW_S - 99}),
        ("version-old", {"published_s": NOW_S - 101}, {"published_s": NOW_S - 99}),
        ("dataset-damaged", {"error": "torn"}, {}),
        (
            "backlog-old",
            {"oldest_waiting": WaitingBatch(batch="1-a", landed_s=NOW_S - 101, standing="ready")},
            {"oldest_waiting": WaitingBatch(batch="1-a", landed_s=NOW_S - 99, standing="ready")},
        ),
    ],
)
def test_dataset_condition_fires_and_rests(
    name: str, fires: dict[str, object], rests: dict[str, object]
) -> None:
    def condition_names(facts: dict[str, object], limits: Limits | None) -> list[str]:
        own = DatasetFacts(dataset="cats", **facts)  # type: ignore[arg-type]
        return [one.condition.name for one in dataset_conditions(own, NOW_S, limits)]

    assert condition_names(fires, Limits()) == [name]
    assert condition_names(rests, Limits()) == []
    judges_delay = name in ("backlog-old", "nothing-arrives", "version-old")
    assert bool(condition_names(fires, None)) is not judges_delay


def test_suspect_node_has_its_figures() -> None:
    raised = node_condition("m3", ["3 wrong reads", "check disk failed"])
    assert (raised.condition.name, raised.subject) == ("node-suspect", "m3")
    assert raised.text == "3 wrong reads; check disk failed"
