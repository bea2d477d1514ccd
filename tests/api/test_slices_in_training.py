"""Trainings on slices: the same batches on any number of ranks, after a restart, and under later versions."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loader
from loader.dataset.slices import remove_slice
from loader.errors import Corrupt, InvalidPlan, SliceNotFound
from tests.refusals import refusal

WHO = {"by": "ann", "why": "handles were cut off"}
MODULUS = 2**64


def add(root: loader.Root, first: int, n: int) -> loader.Version:
    with root.write("photos", part_samples=8) as writer:
        for number in range(first, first + n):
            writer.add(f"{number:03d}", {"cls": number}, {"w": number})
    return writer.version


@pytest.fixture
def root(tmp_path: Path) -> loader.Root:
    new_root = loader.Root(tmp_path / "root")
    add(new_root, 0, 60)
    new_root.save_slice("photos@1", "cups", [f"{n:03d}" for n in range(0, 60, 7)], **WHO)
    new_root.save_slice("photos@1", "high", "w >= 50", **WHO)
    return new_root


def weighted_plan(root: loader.Root) -> loader.Plan:
    version = root.open("photos@1")
    sources = {"rest": version.without("cups"), "cups": loader.source(version.slice("cups"), weight=3)}
    plan = loader.plan(sources, seed=7, global_batch=10, allow_repeats=True)
    plan.save(root)
    return plan


def digests(plan: loader.Plan, ranks: int, steps: int, first: int = 0) -> list[int]:
    totals = [0] * steps
    for rank in range(ranks):
        options: dict[str, Any] = {"rank": rank, "world_size": ranks, "framework": "numpy", "workers": 0}
        with loader.Loader(plan, steps=steps, **options) as batches:
            for batch in batches:
                totals[batch.step] = (totals[batch.step] + batch.digest) % MODULUS
    return totals[first:]


@pytest.mark.parametrize("ranks", [2, 5])
def test_batches_of_slices_are_the_same_on_any_number_of_ranks(root: loader.Root, ranks: int) -> None:
    plan = weighted_plan(root)
    assert digests(plan, 1, 6) == digests(plan, ranks, 6)


def test_plan_of_slices_survives_removal_resume_and_later_versions(root: loader.Root) -> None:
    plan = weighted_plan(root)
    expected = digests(plan, 1, 6)
    options: dict[str, Any] = {"rank": 0, "world_size": 1, "framework": "numpy", "workers": 0, "steps": 6}
    with loader.Loader(plan, **options) as batches:
        former = [next(batches).digest for _ in range(3)]
        state = json.loads(json.dumps(batches.state_dict()))
    remove_slice(root, "photos", "cups", by="bo", why="mistake")
    root.exclude("photos", ["007"], reason="blurred")
    add(root, 60, 20)
    again = loader.open_plan(loader.Root(root.url), plan.hash)
    assert again.hash == plan.hash
    with loader.Loader(again, **options) as batches:
        batches.load_state_dict(state)
        assert former + [batch.digest for batch in batches] == expected


def test_weight_repeats_the_samples_of_a_slice(root: loader.Root) -> None:
    plan = weighted_plan(root)
    cups = set(range(0, 60, 7))
    options: dict[str, Any] = {"rank": 0, "world_size": 1, "framework": "numpy", "workers": 0, "steps": 4}
    n_cups, n_all = 0, 0
    with loader.Loader(plan, **options) as batches:
        for batch in batches:
            values = np.asarray(batch["cls"]).tolist()
            n_cups += sum(value in cups for value in values)
            n_all += len(values)
    assert (n_cups, n_all) == (30, 40), "three quarters by weight, of a sixth of the samples"


def test_plan_of_a_rule_grows_and_of_a_list_does_not(
    root: loader.Root, caplog: pytest.LogCaptureFixture
) -> None:
    version = root.open("photos@1")
    options: dict[str, Any] = {"rank": 0, "world_size": 1, "framework": "numpy", "workers": 0}
    plans = {
        name: loader.plan({"p": version.slice(name)}, seed=5, global_batch=2, allow_repeats=True)
        for name in ("high", "cups")
    }
    later = add(root, 60, 20)
    grown = plans["high"].grow({"p": later}, 3)
    grown.save(root)
    assert loader.open_plan(root, grown.hash).hash == grown.hash
    assert len(later.slice("high")) == 30
    with refusal(InvalidPlan, what="slice cups", where="source 'p'", given="a list of samples"):
        plans["cups"].grow({"p": later}, 3)
    with refusal(InvalidPlan, what="slices", where="source 'p'"):
        plans["high"].grow({"p": later.select()}, 3)

    seen: dict[str, set[int]] = {}
    for name, plan in plans.items():
        with loader.follow(root, plan, run=f"run-{name}", every=2, steps=20, **options) as batches:
            seen[name] = {int(value) for batch in batches for value in np.asarray(batch["cls"])}
    assert max(seen["high"]) >= 60
    assert seen["cups"] <= set(range(0, 60, 7))
    warnings = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert any("does not grow" in message for message in warnings)


def test_plan_whose_slice_was_changed_is_corrupt(root: loader.Root) -> None:
    plan = weighted_plan(root)
    remaining = [info.key for info in root.store.list("views/")]
    root.store.delete_many(remaining)  # each process then finds the samples again, from the slice
    assert loader.open_plan(loader.Root(root.url), plan.hash).hash == plan.hash
    root.store.delete_many(remaining)
    record = json.loads(root.store.get("slices/photos/cups/000001.json").data)
    root.store.put("slices/photos/cups/000001.json", json.dumps({**record, "sha256": "0" * 64}).encode())
    with refusal(Corrupt, what="sha256", where="slices/photos/cups/000001.parquet"):
        loader.open_plan(loader.Root(root.url), plan.hash)
    root.store.delete_many(["slices/photos/cups/000001.json"])
    with refusal(SliceNotFound, what="slice photos/cups", where=root.url, given=1):
        loader.open_plan(loader.Root(root.url), plan.hash)


@pytest.mark.parametrize(
    "term",
    [
        7,
        {"name": "../x", "n": 1, "sha256": "0" * 64, "without": False},
        {"name": "cups", "n": True, "sha256": "0" * 64, "without": False},
        {"name": "cups", "n": 1, "sha256": "0", "without": False},
        {"name": "cups", "n": 1, "sha256": "0" * 64, "without": 0},
        {"name": "cups", "n": 1, "sha256": "0" * 64, "without": False, "where": 3},
    ],
)
def test_view_with_a_damaged_slice_is_no_plan(root: loader.Root, term: object) -> None:
    from loader.api.plans import reopen

    spec = root.open("photos@1").slice("cups").spec()
    for slices in ([term], term):
        with pytest.raises(InvalidPlan, match="the plan's JSON is damaged"):
            reopen(root, {**spec, "slices": slices})
