"""The example of a GRPO run: processes are killed, and the steps are trained again on other numbers of ranks."""

import json
from pathlib import Path

import loader
from examples.demo.training import digests
from examples.rl.sums import task
from examples.rl.sums.run_folder import RunFolder
from tests.servers.processes import python


def walk(folder: Path, *options: str) -> str:
    """Run the example's whole walk; its exit status is 1 if a step differs."""
    done = python("-m", "examples.rl.arithmetic", "walk", "--out", folder, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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


def test_killed_run_of_full_size_learns_sums(tmp_path: Path) -> None:
    steps = 100
    walk(tmp_path, "--kills", "10")
    check_runs(tmp_path, steps)
    from examples.rl.sums.model import accuracy  # it needs torch

    folder = RunFolder(tmp_path)
    before = accuracy(folder.first_policy(), task.sums(held_out=True))
    result = folder.result("sums")
    assert result is not None
    assert result["accuracy"] > before + 0.2
