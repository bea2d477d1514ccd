"""`penstock seen --runs`: runs, steps and checkpoints that trained on a sample."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import loader
from loader.dataset.tables.manifest import references
from penstock.checkpoints import Checkpoints
from penstock.train.run_folder import RunFolder
from penstock.train.trained_on import of_dataset, trained_on

Cli = Callable[..., Any]


def write_root(folder: Path, n: int) -> loader.Root:
    """Return a root with n samples."""
    root = loader.Root(folder)
    with root.write("points") as writer:
        for number in range(n):
            writer.add(f"p{number:05d}", {"cls": number})  # the digits by themselves may be part of a time
    return root


def make_plan(root: loader.Root, seed: int = 7, version: str = "points@1", **options: Any) -> loader.Plan:
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


def steps_with_key(plan: loader.Plan, key: str, steps: range) -> list[int]:
    """Return the steps that hold a key, by listing every batch."""
    return [step for step in steps if key in {name for _, name in plan.batch_ids(step)}]


@pytest.mark.parametrize("n", [40, 4000])
def test_runs_that_trained_on_a_sample_are_listed_and_no_others(tmp_path: Path, cli: Cli, n: int) -> None:
    root = write_root(tmp_path, n)
    plan, other = make_plan(root), make_plan(root, seed=8)
    train(root, "long", plan, 0, 12)
    other.save(root)
    train(root, "bare", other, 0, 7, trail=False)
    key = plan.batch_ids(4)[3][1]
    train(root, "short", plan, 0, min(steps_with_key(plan, key, range(5))))
    done = cli("seen", "--runs", "p", key, "--json", root=tmp_path)
    assert done.code == 0, done.err
    expected = []
    for run, of, end, saved in (("bare", other, 7, (3, 6, 7)), ("long", plan, 12, (3, 6, 9, 12))):
        if steps := steps_with_key(of, key, range(end)):
            after = [step for step in saved if step > steps[0]]
            expected.append({"run": run, "samples": 1, "steps": steps, "checkpoints": after, "error": ""})
    assert done.json == expected
    assert "long" in {row["run"] for row in done.json}
    text = cli("seen", "--runs", "p", key, root=tmp_path).out
    assert "long: 1 samples, " in text
    assert "short" not in text


def test_each_step_counts_under_the_plan_that_ran_it(tmp_path: Path) -> None:
    root = write_root(tmp_path, 400)
    key = "p00007"
    early, late = make_plan(root), make_plan(root, seed=9)
    train(root, "changed", early, 0, 30, trail=True)
    with loader.Loader(late, 0, 1, workers=0, trail=loader.Trail(root, "changed"), steps=80) as batches:
        batches.seek(20)  # the steps from 20 on are done again, under another plan
        for _ in batches:
            pass
    (run,) = trained_on(root, of_dataset("points"), [key, "nobody"])
    assert list(run.steps) == steps_with_key(early, key, range(20)) + steps_with_key(late, key, range(20, 80))


def record_requests(monkeypatch: pytest.MonkeyPatch, store: type[Any]) -> list[str]:
    """Return a list that grows by each request to stores of this class."""
    calls: list[str] = []

    def counting(name: str) -> Callable[..., Any]:
        real = getattr(store, name)

        def call(*arguments: Any, **named: Any) -> Any:
            calls.append(name)
            return real(*arguments, **named)

        return call

    for name in ("get", "list", "head", "get_range"):
        monkeypatch.setattr(store, name, counting(name))
    return calls


def test_cost_is_that_of_epochs_not_of_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_root(tmp_path, 4000)
    plan = make_plan(root)
    plan.save(root)
    counts = {}
    for run, steps in (("a", 600), ("b", 60_000)):
        with loader.Loader(plan, 0, 1, workers=0) as batches, Checkpoints(root, run) as saved:
            batches.seek(steps)
            saved.save(steps, {"w": torch.zeros(1)}, batches)
        calls = record_requests(monkeypatch, type(root.store))
        runs = trained_on(root, of_dataset("points"), ["p00007"])
        monkeypatch.undo()
        counts[run] = len(calls)
        (listed,) = [one for one in runs if one.run == run]
        epochs = steps * 8 // 4000
        assert epochs <= len(listed.steps) <= epochs + 1
        assert set(steps_with_key(plan, "p00007", range(600))) == {
            step for step in listed.steps if step < 600
        }
    assert counts["b"] <= counts["a"] + 10


def test_run_with_a_record_alone_is_listed(tmp_path: Path) -> None:
    root = write_root(tmp_path, 40)
    plan = make_plan(root)
    plan.save(root)
    key = plan.batch_ids(3)[0][1]
    folder = RunFolder(root.store, "recorded")
    folder.put_event(1, 0, "first_batch", 0, {"plan": plan.hash})
    folder.put_interval(1, 9, b"")
    lost = RunFolder(root.store, "lost")
    lost.put_event(1, 0, "first_batch", 0, {})
    idle = RunFolder(root.store, "idle")
    idle.put_event(1, 0, "ranks_up", 0, {})
    runs = {run.run: run for run in trained_on(root, lambda _: ["p"], [key])}
    assert set(runs) == {"recorded", "lost"}
    assert runs["recorded"].steps == tuple(steps_with_key(plan, key, range(9)))
    assert "names no plan" in runs["lost"].error


def test_run_whose_plan_is_lost_is_unknown(tmp_path: Path, cli: Cli) -> None:
    root = write_root(tmp_path, 40)
    plan = make_plan(root)
    train(root, "lost", plan, 0, 6)
    root.store.delete_many([f"plans/{plan.hash}.json"])
    done = cli("seen", "--runs", "p", "p00001", root=tmp_path)
    assert (done.code, done.out[:14]) == (1, "lost: unknown ")
    plan.save(root)
    assert cli("seen", "--runs", "p", "p00001", root=tmp_path).code == 0
    done = cli("seen", "--runs", "q", "p00001", root=tmp_path)
    assert (done.code, "no plan has a source 'q'; they have p" in done.err) == (2, True)
    for words, text in (
        (("lost", "p", "k", "--runs"), "leave out RUN"),
        (("p", "k"), "penstock seen --runs SOURCE KEY"),
    ):
        done = cli("seen", *words, root=tmp_path)
        assert (done.code, text in done.err) == (2, True)


def test_takedown_lists_the_runs_and_checkpoints(tmp_path: Path, cli: Cli) -> None:
    """Before anything changes, and from its record once the data is deleted."""
    root = write_root(tmp_path, 400)
    plan = make_plan(root)
    train(root, "long", plan, 0, 12)
    keys = [plan.batch_ids(step)[2][1] for step in (4, 11)]
    train(root, "short", plan, 0, 4)
    with root.write("others") as writer:
        writer.add("one", {"cls": 1})
    other = loader.plan({"p": root.open("others@1")}, seed=1, global_batch=1)
    train(root, "other", other, 0, 3)
    words = [word for key in keys for word in ("--sample", key)]
    cli("takedown", "request", "--dataset", "points", *words, "--reason", "t", "--by", "b", root=tmp_path)
    expected = [
        {
            "run": "long",
            "of": "points",
            "samples": 2,
            "first_step": 4,
            "last_step": 11,
            "checkpoints": [6, 9, 12],
            "error": "",
        }
    ]
    (dry,) = cli("takedown", "run", "--json", root=tmp_path).json
    assert dry["trained"] == expected
    done = cli("takedown", "run", "--apply", root=tmp_path)
    assert "  published points@2" in done.out.splitlines()
    assert (
        "a run that trained on 2 of them: long on points, steps 4 to 11; checkpoints that include them: 6, 9, 12"
        in done.out
    )
    live = {
        reference.path
        for ref in ("points@2", "others@1")
        for reference in references(root.store, root.open(ref).manifest)
    }
    live |= {root.record(ref).manifest for ref in ("points@2", "others@1")}
    garbage = [info.key for info in root.store.list("data/") if info.key not in live]
    root.store.delete_many(garbage)  # as a collector does
    assert trained_on(root, of_dataset("points"), keys)[0].error, "its plan is deleted too"
    (later,) = cli("takedown", "run", "--apply", "--json", root=tmp_path).json
    assert later["trained"] == expected
    records = b"".join(root.store.get(info.key).data for info in root.store.list("takedowns/"))
    assert not any(key.encode() in records for key in keys)
    assert cli("takedown", "prove", dry["n"], "--json", root=tmp_path).code in (0, 1)


@pytest.mark.parametrize("source", ["markers", "record"])
def test_plan_of_steps_before_the_trail_counts_too(tmp_path: Path, source: str) -> None:
    """A run got its trail later, under another plan."""
    root = write_root(tmp_path, 400)
    early, late = make_plan(root), make_plan(root, seed=9)
    early.save(root)
    if source == "markers":
        train(root, "changed", early, 0, 30, trail=False)
    else:
        folder = RunFolder(root.store, "changed")
        folder.put_event(1, 0, "first_batch", 0, {"plan": early.hash})
        for number in range(1, 6):
            folder.put_event(1, number, "saved", 1, {})
        folder.put_event(1, 6, "failed", 30, {})
    with loader.Loader(late, 0, 1, workers=0, trail=loader.Trail(root, "changed"), steps=80) as batches:
        batches.seek(20)
        for _ in batches:
            pass
    key = early.batch_ids(4)[3][1]
    (run,) = trained_on(root, of_dataset("points"), [key])
    assert (run.error, 4 in run.steps) == ("", True)
    assert list(run.steps) == steps_with_key(early, key, range(20)) + steps_with_key(late, key, range(20, 80))
    key = early.batch_ids(25)[3][1]  # which was done again, under the other plan
    (run,) = trained_on(root, of_dataset("points"), [key])
    assert list(run.steps) == steps_with_key(late, key, range(20, 80))


def test_steps_of_a_killed_start_behind_its_trail_count(tmp_path: Path) -> None:
    root = write_root(tmp_path, 400)
    plan = make_plan(root)
    train(root, "killed", plan, 0, 6)
    folder = RunFolder(root.store, "killed")
    folder.put_event(1, 0, "first_batch", 0, {"plan": plan.hash})
    folder.put_interval(1, 12, b"")
    key = plan.batch_ids(11)[0][1]
    (run,) = trained_on(root, of_dataset("points"), [key])
    assert (run.steps, run.error) == ((11,), "")
