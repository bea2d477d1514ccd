"""The blocks of docs/posttraining.md run in their order, twice, in processes of their own."""

import re
from pathlib import Path

import loader
from tests.servers.processes import python

PAGE = (Path(__file__).parent.parent / "docs" / "posttraining.md").read_text()
BLOCKS = dict(re.findall(r"```python (\w+)\n(.*?)```", PAGE, re.S))


def run(block: str, folder: Path) -> str:
    done = python("-W", "error", "-c", BLOCKS[block], cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_rollouts_are_written_and_trained_on_twice(tmp_path: Path) -> None:
    assert list(BLOCKS) == ["rollouts", "train", "online", "again"]
    for _ in range(2):
        assert "digits-rl@3" in run("rollouts", tmp_path)
    version = loader.Root(tmp_path / "rl-root").open("digits-rl@latest")
    assert len(version) == 96
    columns = version.samples().collect()
    assert columns["n_calls"].unique().to_list() == [2]  # both calls are one sequence

    lines = [run("train", tmp_path) for _ in range(2)]
    assert lines[0] == lines[1]
    n_sampled = sum(int(line.split(") ")[1].split()[0]) for line in lines[0].splitlines())
    assert n_sampled == 64 * 3  # each sampled token of two steps, once

    online = [run("online", tmp_path) for _ in range(2)]
    assert online[0] == online[1]
    *steps, n_waiting = online[0].splitlines()
    assert [line.split()[::2] for line in steps] == [["0", "32"], ["1", "32"], ["2", "32"]]
    assert n_waiting == "0"
    assert run("again", tmp_path).splitlines() == steps
