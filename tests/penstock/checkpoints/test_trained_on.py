"""`penstock seen --runs`: runs, steps and checkpoints that trained on a sample."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import loader
from penstock.checkpoints import Checkpoints
from penstock.checkpoints.trained_on import of_dataset, trained_on

Cli = Callable[..., Any]


def filled(folder: Path, n: int) -> loader.Root:
    """Return a root with n samples."""
    root = loader.Root(folder)
    with root.write("points") as writer:
        for number in range(n):
            writer.add(f"{number:05d}", {"cls": number})
    return root


def planned(root: loader.Root, seed: int = 7, version: str = "points@1", **options: Any) -> loader.Plan:
    return loader.plan({"p": root.open(version)}, seed=seed, global_batch=8, **options)


def train(
    root: loader.Root, run: str, plan: loader.Plan, first: int, steps: int, *, trail: bool = True
) -> None:
    """Train some steps, with a checkpoint after each third and the last."""
    options = {"trail": loader.Trail(root, run)} if trail else {}
    with (
        loader.Loader(plan, 0, 1, workers=0, steps=first + steps, **options) as batches,
        Checkpoints(root, run) as saved,
    ):
        batches.seek(first)
        for batch in batches:
            if batch.step % 3 == 2 or batch.step == first + steps - 1:
                saved.save(batch.step + 1, {"w": torch.zeros(1)}, batches)


def met(plan: loader.Plan, key: str, steps: range) -> list[int]:
    """Return the steps that hold a key, by listing every batch."""
    return [step for step in steps if key in {name for _, name in plan.batch_ids(step)}]


@pytest.mark.parametrize("n", [40, 4000])
def test_runs_that_trained_on_a_sample_are_listed_and_no_others(tmp_path: Path, cli: Cli, n: int) -> None:
    root = filled(tmp_path, n)
    plan, other = planned(root), planned(root, seed=8)
    train(root, "long", plan, 0, 12)
    other.save(root)
    train(root, "bare", other, 0, 7, trail=False)
    key = plan.batch_ids(4)[3][1]
    train(root, "short", plan, 0, min(met(plan, key, range(5))))
    done = cli("seen", "--runs", "p", key, "--json", root=tmp_path)
    assert done.code == 0, done.err
    expected = []
    for run, of, end, saved in (("bare", other, 7, (3, 6, 7)), ("long", plan, 12, (3, 6, 9, 12))):
        if steps := met(of, key, range(end)):
            after = [step for step in saved if step > steps[0]]
            expected.append({"run": run, "samples": 1, "steps": steps, "checkpoints": after, "error": ""})
    assert done.json == expected
    assert "long" in {row["run"] for row in done.json}
    text = cli("seen", "--runs", "p", key, root=tmp_path).out
    assert "long: 1 samples, " in text
    assert "short" not in text


def test_each_step_counts_under_the_plan_that_ran_it(tmp_path: Path) -> None:
    root = filled(tmp_path, 400)
    key = "00007"
    early, late = planned(root), planned(root, seed=9)
    train(root, "changed", early, 0, 30, trail=True)
    with loader.Loader(late, 0, 1, workers=0, trail=loader.Trail(root, "changed"), steps=80) as batches:
        batches.seek(20)  # the steps from 20 on are done again, under another plan
        for _ in batches:
            pass
    (run,) = trained_on(root, of_dataset("points"), [key, "nobody"])
    assert list(run.steps) == met(early, key, range(20)) + met(late, key, range(20, 80))


def test_cost_is_that_of_epochs_not_of_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = filled(tmp_path, 4000)
    plan = planned(root)
    plan.save(root)
    counts = {}
    for run, steps in (("a", 600), ("b", 60_000)):
        with loader.Loader(plan, 0, 1, workers=0) as batches, Checkpoints(root, run) as saved:
            batches.seek(steps)
            saved.save(steps, {"w": torch.zeros(1)}, batches)
        calls: list[str] = []
        store = type(root.store)
        for name in ("get", "list", "head", "get_range"):
            real = getattr(store, name)
            monkeypatch.setattr(
                store, name, lambda *args, real=real, **kw: (calls.append(real.__name__), real(*args, **kw))[1]
            )
        runs = trained_on(root, of_dataset("points"), ["00007"])
        monkeypatch.undo()
        counts[run] = len(calls)
        (found,) = [one for one in runs if one.run == run]
        epochs = steps * 8 // 4000
        assert epochs <= len(found.steps) <= epochs + 1
        assert set(met(plan, "00007", range(600))) == {step for step in found.steps if step < 600}
    assert counts["b"] <= counts["a"] + 10


def test_run_whose_plan_is_lost_is_unknown(tmp_path: Path, cli: Cli) -> None:
    root = filled(tmp_path, 40)
    plan = planned(root)
    train(root, "lost", plan, 0, 6)
    root.store.delete_many([f"plans/{plan.hash}.json"])
    done = cli("seen", "--runs", "p", "00001", root=tmp_path)
    assert (done.code, done.out[:14]) == (1, "lost: unknown ")
    plan.save(root)
    assert cli("seen", "--runs", "p", "00001", root=tmp_path).code == 0
    done = cli("seen", "--runs", "q", "00001", root=tmp_path)
    assert (done.code, "no plan has a source 'q'; they have p" in done.err) == (2, True)
    for words, text in (
        (("lost", "p", "k", "--runs"), "leave out RUN"),
        (("p", "k"), "penstock seen --runs SOURCE KEY"),
    ):
        done = cli("seen", *words, root=tmp_path)
        assert (done.code, text in done.err) == (2, True)
