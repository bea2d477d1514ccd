"""What reads a run log finds the plan of each step of a run that decides its steps."""

from pathlib import Path

import pytest

import loader
from loader.api.decided_plans import DecidedPlans
from loader.errors import NotRecorded
from penstock.checkpoints.planned_steps import run_plans
from tests.rollouts.rollout_roots import online, publish_groups

N_DECISIONS = 3


@pytest.fixture
def root(tmp_path: Path) -> loader.Root:
    """A root with a run `big` of three decisions of two steps, whose log names no plan."""
    new_root = loader.Root(tmp_path / "root")
    new_root.create()
    with online(new_root, groups=3, updates=2, max_lag=50, trail=loader.Trail(new_root, "big")) as batches:
        for number in range(N_DECISIONS):
            publish_groups(new_root, f"t{number}", 3)
            next(batches)
            next(batches)
    return new_root


def test_each_step_has_the_plan_of_its_decision(root: loader.Root) -> None:
    decided = DecidedPlans(root, "big")
    decisions = decided.all()
    assert [(one.step, one.end) for one in decisions] == [(0, 2), (2, 4), (4, 6)]
    for step in (5, 0, 3, 4):
        plan_hash = decisions[step // 2].plan
        assert decided.plan_hash(step) == plan_hash
        assert loader.plan_of(root, "big", step).hash == plan_hash
    assert decided.plan_hash(6) == ""
    with pytest.raises(NotRecorded):
        loader.plan_of(root, "big", 6)


def test_run_that_repeats_another_one_has_its_plans(root: loader.Root) -> None:
    with online(root, run="again", groups=3, updates=2, max_lag=50, like="big", until=4) as batches:
        next(batches)
        original = DecidedPlans(root, "big")
        repeated = DecidedPlans(root, "again")
        assert [repeated.plan_hash(step) for step in range(4)] == [
            original.plan_hash(step) for step in range(4)
        ]
        assert repeated.plan_hash(4) == ""


def test_trained_steps_are_listed_by_decision(root: loader.Root) -> None:
    planned = run_plans(root, root.store, "big", [])
    decisions = DecidedPlans(root, "big").all()
    assert [(one.plan, one.first, one.end) for one in planned] == [
        (one.plan, one.step, one.end) for one in decisions
    ]


def test_trail_verify_proves_each_record(root: loader.Root, cli) -> None:
    done = cli("trail", "verify", "big", "--json", root=root.url)
    assert done.code == 0
    assert (done.json["records"], done.json["problems"]) == (2 * N_DECISIONS, [])


def test_explain_finds_the_rollouts_of_a_step(root: loader.Root, cli) -> None:
    done = cli("explain", "big", "--step", "3", "--json", root=root.url)
    assert done.code == 0, done.err
    assert "t1/" in done.out
