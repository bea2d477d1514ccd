"""The plan of a run is found by whatever the run left, and opens though its versions were retired since."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import loader
from loader.dataset.log.denies import Target
from loader.errors import Denied, InvalidName, NotRecorded, PlanMismatch, RunNotFound, VersionRetired
from penstock.checkpoints import Checkpoints
from tests.refusals import refusal

OPTIONS: dict[str, Any] = {"framework": "numpy", "workers": 0}


def add(root: loader.Root, first: int, n: int) -> None:
    with root.write("photos") as writer:
        for number in range(first, first + n):
            writer.add(f"{number:03d}", {"cls": number})


def make_plan(root: loader.Root, ref: str = "photos@1", seed: int = 5) -> loader.Plan:
    return loader.plan({"p": root.open(ref)}, seed=seed, global_batch=6)


def train_state(plan: loader.Plan, steps: range, **options: Any) -> dict[str, Any]:
    """The state behind the last of some steps."""
    with loader.Loader(plan, 0, 1, **{**OPTIONS, **options}) as batches:
        batches.seek(steps[0])
        for _ in steps:
            next(batches)
        return batches.state_dict()


@pytest.fixture
def root(tmp_path: Path) -> Iterator[loader.Root]:
    with loader.Root(tmp_path) as made:
        add(made, 0, 60)
        yield made


def test_hash_and_a_trail(root: loader.Root) -> None:
    plan = make_plan(root)
    train_state(plan, range(3), trail=loader.Trail(root, "big"))
    for step in (None, 0, 1000):
        assert loader.plan_of(root, "big", step) == plan
    assert loader.plan_of(root, plan.hash) == plan


def test_of_several_plans_on_a_trail_it_is_the_last_that_did_the_step(root: loader.Root) -> None:
    first, trail = make_plan(root), loader.Trail(root, "big")
    other = first.quarantined({"p": ["003"]}, 4)
    train_state(first, range(6), trail=trail)
    train_state(other, range(4, 8), trail=trail)
    found = {step: loader.plan_of(root, "big", step).hash for step in (0, 3, 4, 5, 7)}
    assert found == {0: first.hash, 3: first.hash, 4: other.hash, 5: other.hash, 7: other.hash}
    with refusal(NotRecorded, what="step", where="run 'big'"):
        loader.plan_of(root, "big")
    with refusal(NotRecorded, what="step", where="run 'big'", given=8):
        loader.plan_of(root, "big", 8)


def test_run_that_follows(root: loader.Root) -> None:
    first = make_plan(root)
    with loader.follow(root, first, run="big", every=4, rank=0, world_size=1, **OPTIONS) as batches:
        for _ in range(6):
            next(batches)
        add(root, 60, 30)
        state = {}
        for _ in range(6):
            next(batches)
            state = batches.state_dict()
        grown = batches.plan
    assert grown != first
    found = {step: loader.plan_of(root, "big", step) for step in (0, 7, 8, 500)}
    assert found == {0: first, 7: first, 8: grown, 500: grown}
    assert loader.plan_of(root, json.loads(json.dumps(state))) == grown


def test_run_that_follows_keeps_one_trail(root: loader.Root) -> None:
    first, trail = make_plan(root), loader.Trail(root, "big")
    with loader.follow(
        root, first, run="big", every=4, rank=0, world_size=1, trail=trail, **OPTIONS
    ) as batches:
        for _ in range(3):
            next(batches)
        add(root, 60, 30)
        for _ in range(3):
            batches.note(loss=next(batches).step)
        grown = batches.plan
    found = loader.read_trail(root, "big")
    assert found.steps["step"].to_list() == list(range(6))
    assert found.steps["note.loss"].to_list() == [None, None, None, 3, 4, 5]
    plans = {start.id: start.plan for start in found.starts}
    assert [plans[start] for start in found.steps["start"]] == [first.hash] * 4 + [grown.hash] * 2
    assert [loader.plan_of(root, "big", step) for step in (3, 4, 100)] == [first, grown, grown]


def test_run_that_reported(root: loader.Root) -> None:
    first = make_plan(root)
    other = first.quarantined({"p": ["003"]}, 4)
    for plan, steps in ((first, (0, 9)), (other, (4, 12))):
        assert loader.report(root, plan, run="big", steps=steps, strict=True)
    assert [loader.plan_of(root, "big", step) for step in (3, 4, 12)] == [first, other, other]
    with pytest.raises(NotRecorded):
        loader.plan_of(root, "big", 13)


def test_run_that_saved_checkpoints(root: loader.Root) -> None:
    plan = make_plan(root)
    plan.save(root)
    with loader.Loader(plan, 0, 1, **OPTIONS) as batches, Checkpoints(root, "big") as checkpoints:
        next(batches)
        checkpoints.save(1, {"x": 1}, batches)
    assert loader.plan_of(root, "big", 0) == plan


def test_bare_state_is_held_against_the_plans(root: loader.Root) -> None:
    plans = [make_plan(root, seed=seed) for seed in (1, 2, 3)]
    states = [train_state(plan, range(3)) for plan in plans]
    with refusal(NotRecorded, what="state", given=3):
        loader.plan_of(root, states[0])
    for plan in plans:
        plan.save(root)
    root.store.put_if_absent("plans/p-damaged.json", b"{")
    assert [loader.plan_of(root, json.loads(json.dumps(state))) for state in states] == plans
    others = [plans[0].quarantined({"p": [key]}, 0) for key in ("003", "004", "005")]
    for plan in others:
        plan.save(root)
    assert [loader.plan_of(root, train_state(plan, range(3))) for plan in others] == others
    with refusal(PlanMismatch, what="state", given=["model"]):
        loader.plan_of(root, {"model": 1})


def test_run_that_left_nothing(root: loader.Root) -> None:
    train_state(make_plan(root), range(1), trail=loader.Trail(root, "small"))
    with refusal(RunNotFound, what="run", where=root.url, given="big"):
        loader.plan_of(root, "big", 0)
    for name in ("../x", "", 7, ".."):
        with refusal(InvalidName, what="run", given=name):
            loader.plan_of(root, name)  # type: ignore[arg-type]


def test_retired_version_opens_to_look_at_until_it_is_deleted(root: loader.Root, tmp_path: Path) -> None:
    plan = make_plan(root)
    state = train_state(plan, range(2), trail=loader.Trail(root, "big"))
    digest = next(loader.Loader(plan, 0, 1, **OPTIONS)).digest
    root.exclude("photos@1", ["003"], reason="blurred")
    root.retire("photos@1", reason="too old")
    with refusal(VersionRetired, given="too old"):
        loader.open_plan(root, plan.hash)
    for found in (
        loader.open_plan(root, plan.hash, retired=True),
        loader.plan_of(root, "big", 0),
        loader.plan_of(root, state),
    ):
        assert found == plan
        with loader.Replay(found, framework="numpy") as replay:
            assert replay.digest(0) == replay.batch(0).digest == digest
    record = root.record("photos@1", retired=True)
    (tmp_path / record.manifest).unlink()
    with loader.Root(tmp_path) as later:
        for look in ("big", state):
            with refusal(VersionRetired, what="photos@1", where=record.id, given="too old"):
                loader.plan_of(later, look, 0)


def test_what_was_taken_down_is_shown_in_no_retired_version(root: loader.Root) -> None:
    plan = make_plan(root)
    plan.save(root)
    root.exclude("photos@1", ["003"], reason="blurred")
    root.retire("photos@1", reason="too old")
    root.log.deny([Target(kind="sample", value="004", dataset="photos")], reason="asked", by="desk")
    with refusal(Denied, what="photos@1"):
        loader.plan_of(root, plan.hash)
