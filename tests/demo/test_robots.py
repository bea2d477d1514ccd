"""From robot episodes to a policy: imported, trained on three cameras with language, killed, resumed, and cleaned."""

import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

import loader
from examples import robots
from penstock.cli import main
from tests.penstock.formats.exchange.lerobot_files import CAMERA, LENGTHS, OTHER, spoken, v21, with_actions

ROOT = Path(__file__).parents[2]
CAMERAS = CAMERA, OTHER, "observation.images.low"
SIZES = "--size", "32", "32", "--chunk", "4", "--global-batch", "6", "--policy", "small"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A LeRobot dataset of three cameras, a state, actions and language."""
    return with_actions(spoken(v21(tmp_path / "place", cameras=CAMERAS)))


def trained(folder: Path, ranks: int, *options: str) -> "subprocess.CompletedProcess[str]":
    """examples/robots.py on so many ranks."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [
        "examples/robots.py",
        "--root",
        str(folder / "root"),
        "--out",
        str(folder / "out"),
        *SIZES,
        *options,
    ]
    return subprocess.run(
        [sys.executable, *(launcher if ranks > 1 else []), *command],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )


def digests(printed: str) -> dict[int, int]:
    """Step -> the digests of its ranks, summed."""
    out: dict[int, int] = defaultdict(int)
    for line in printed.splitlines():
        if line.startswith("{"):
            facts = json.loads(line)
            out[facts["step"]] = (out[facts["step"]] + int(facts["digest"], 16)) % 2**64
    return dict(out)


def texts_of(plan: loader.Plan) -> set[str]:
    with loader.Loader(plan, framework="numpy", workers=0, steps=8) as batches:
        return {text for batch in batches for text in batch["text"]}


def test_a_policy_is_killed_and_resumed_and_a_bad_episode_is_gone(place: Path, tmp_path: Path) -> None:
    killed = trained(
        tmp_path, 1, "--place", str(place), "--steps", "8", "--checkpoint-every", "2", "--crash-at", "5"
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    first = digests(killed.stdout)
    assert list(first) == [0, 1, 2, 3, 4, 5]
    resumed = trained(tmp_path, 2, "--steps", "8", "--checkpoint-every", "2")
    assert resumed.returncode == 0, resumed.stderr
    later = digests(resumed.stdout)
    assert list(later) in (
        [2, 3, 4, 5, 6, 7],
        [4, 5, 6, 7],
    )  # the kill may have come before the last save was done
    with loader.Root(tmp_path / "root") as root:
        (saved,) = {path.stem for path in (tmp_path / "root/plans").rglob("*.json")}
        plan = loader.open_plan(root, saved)
        with loader.Loader(plan, framework="numpy", workers=0) as batches:
            expected = {step: batches.batch_at(step).digest for step in range(8)}
        assert first == {step: expected[step] for step in first}
        assert later == {step: expected[step] for step in later}
        assert texts_of(plan) == {"reach", "grasp"}
        view = plan.sources["arm"].view
        assert len(view) == sum(LENGTHS)
        assert len([field for field in view.layout.at if field.endswith(".mp4")]) == 3

        assert (
            main(
                [
                    "exclude",
                    "arm",
                    "episode_000001",
                    "--by",
                    "ann",
                    "--reason",
                    "dropped",
                    "--root",
                    str(tmp_path / "root"),
                ]
            )
            == 0
        )
        options = robots.parsed(["--root", str(tmp_path / "root"), "--out", str(tmp_path / "out"), *SIZES])
        after = robots.prepare(root, options).plan
        keys = after.sources["arm"].view.keys(np.arange(len(after.sources["arm"].view)))
        assert {key.partition("@")[0] for key in keys} == {"episode_000000", "episode_000002"}
