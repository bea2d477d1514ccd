"""The example of a GRPO run: processes are killed, and the steps are trained again on other numbers of ranks."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import loader
from examples.demo.training import digests
from examples.rl.sums import task
from examples.rl.sums.model import accuracy
from examples.rl.sums.run_folder import RunFolder
from examples.rl.sums.walk import Samplers, await_policy, starts_and_steps, write_run_file
from penstock.train.run_folder import RunFolder as TrainRecord
from tests.servers.patience import until
from tests.servers.processes import python


def walk(folder: Path, *options: str) -> str:
    """Run the example's whole walk; its exit status is 1 if a step differs."""
    log = folder / "walk.log"
    command = [sys.executable, "-m", "examples.rl.arithmetic", "walk", "--out", str(folder), *options]
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    with process:
        try:
            # Ten kills are minutes on a busy machine: it may take long as long as it goes on.
            until(lambda: process.poll() is not None, log.read_text, lambda: log_bytes(folder))
        finally:
            process.kill()
    assert process.returncode == 0, log.read_text()
    return log.read_text()


def log_bytes(folder: Path) -> int:
    """Return the size of what the walk printed so far, and of its ranks' logs."""
    return sum(path.stat().st_size for path in [*folder.glob("walk.log"), *folder.glob("sums*/rank-*-of-*")])


def check_runs(folder: Path, steps: int) -> None:
    """Check that each run has each step once, with the same digest, and that no group was trained twice."""
    names = ["sums", "sums-again-1", "sums-again-2", "sums-again-4"]
    expected = digests(folder / "sums")
    assert sorted(expected) == list(range(steps))
    for name in names:
        assert digests(folder / name) == expected, name
    assert {len(values) for values in expected.values()} == {1}

    root = loader.Root(folder / "root")
    (again,) = root.store.list("follows/sums-again-4/")
    assert again.key == "follows/sums-again-4/like/sums.json"
    records = [json.loads(root.store.get(info.key).data) for info in root.store.list("follows/sums/")]
    assert [record["step"] for record in records] == list(range(steps))
    n_decided = sum(
        record["counts"][verdict] for record in records for verdict in ("trained", "stale", "small")
    )
    n_published = len(root.open("sums-rl@latest"))
    assert n_decided + 8 * loader.backlog(root, "sums-rl@latest", "sums") == n_published


def test_killed_run_and_its_repetitions_have_the_same_steps(tmp_path: Path) -> None:
    steps = 8
    output = walk(tmp_path, "--steps", str(steps), "--groups", "4", "--warm-up", "5", "--kills", "2")
    assert output.count("killed ") == 2
    check_runs(tmp_path, steps)
    parts = json.loads(penstock_train("goodput", "sums", "--root", tmp_path / "root", "--json"))["parts"]
    assert parts["back-off"] >= 10, "a rank was killed, and the run began again after 10 s"
    assert parts["unknown"] < 0.02 * sum(parts.values())


def test_starved_run_stops_by_a_signal_and_goes_on_with_one_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM to one of two ranks that wait for rollouts; no step is lost or made twice."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # of the launcher's locks and logs
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    steps = 16
    options = ("--steps", str(steps), "--groups", "4", "--warm-up", "5")
    python("-m", "examples.rl.arithmetic", "begin", "--out", tmp_path, *options, check=True)
    folder = RunFolder(tmp_path)
    samplers = Samplers(folder)
    try:
        penstock_train("submit", write_run_file(folder, "sums", 2))
        await_policy(folder, folder.settings(), samplers, 2)
        samplers.close()
        submitted = penstock_train("submit", write_run_file(folder, "sums", 1))
        assert "its next start has the changed file" in submitted
        rank_1 = int((tmp_path / "sums/rank-1.pid").read_text())
        os.kill(rank_1, signal.SIGTERM)
        record = TrainRecord(loader.Root(folder.root).store, "sums")
        until(
            lambda: len(record.attempts()) == 2, lambda: penstock_train("show", "sums", "--root", folder.root)
        )

        samplers = Samplers(folder)
        penstock_train("wait", "sums", "--root", folder.root)
    finally:
        samplers.close()
        penstock_train("cancel", "sums", "--root", folder.root)
    assert [start["ranks"] for start in record.attempts().values()] == [2, 1]
    assert [event.name for event in record.events() if event.attempt == 1][-2:] == ["saved", "stopped"]
    values = digests(tmp_path / "sums")
    assert sorted(values) == list(range(steps))
    assert starts_and_steps(folder, "sums") == (2, steps)


def penstock_train(verb: str, *words: object) -> str:
    done = python("-m", "penstock", "train", verb, *words, check=True)
    return done.stdout


def test_killed_run_of_full_size_learns_sums(tmp_path: Path) -> None:
    steps = 100
    walk(tmp_path, "--kills", "10")
    check_runs(tmp_path, steps)
    folder = RunFolder(tmp_path)
    before = accuracy(folder.first_policy(), task.sums(held_out=True))
    result = folder.result("sums")
    assert result is not None
    assert result["accuracy"] > before + 0.2
