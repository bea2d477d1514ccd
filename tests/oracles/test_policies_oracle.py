"""Policies of lerobot, version pinned in policies.txt, train on windows by `examples/robots.py`."""

import json
import math
import os
import signal
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

import loader
from loader.storage import open_store
from penstock.formats.importer import ColumnarOptions
from penstock.formats.run_import import import_place
from tests.penstock.formats.exchange.lerobot_files import CAMERA, LENGTHS, OTHER, spoken, v21, with_actions

pytestmark = pytest.mark.oracle
HERE = Path(__file__).parent
PYTHON = Path(os.environ.get("PENSTOCK_ORACLES", HERE.parents[1] / ".oracles")) / "policies/bin/python"
RANKS = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def trained(folder, *options, ranks=()):
    """examples/robots.py, and step -> its ranks' digests, summed."""
    command = [*ranks, HERE / "policies_peer.py", "train", "--root", folder / "root", "--out", folder / "out"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([PYTHON, *command, *options], capture_output=True, text=True, env=environment)
    digests = defaultdict(int)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            facts = json.loads(line)
            assert math.isfinite(facts["loss"])
            digests[facts["step"]] = (digests[facts["step"]] + int(facts["digest"], 16)) % 2**64
    return done, dict(digests)


def test_act_trains_on_three_cameras_and_language_is_killed_and_resumed_on_two_ranks(tmp_path):
    cameras = CAMERA, OTHER, "observation.images.low"
    place = with_actions(spoken(v21(tmp_path / "place", cameras=cameras)))
    sizes = ["--policy", "act", "--size", "32", "32", "--chunk", "4", "--global-batch", "4"]
    sizes += ["--checkpoint-every", "2", "--steps", "6"]
    killed, first = trained(tmp_path, "--place", place, *sizes, "--crash-at", "5")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed, later = trained(tmp_path, *sizes, ranks=RANKS)
    assert resumed.returncode == 0, resumed.stderr
    assert list(first) == [0, 1, 2, 3, 4, 5]
    assert list(later) in ([2, 3, 4, 5], [4, 5])  # the kill may have come before the last save was done
    with loader.Root(tmp_path / "root") as root:
        (name,) = {path.stem for path in (tmp_path / "root/plans").rglob("*.json")}
        plan = loader.open_plan(root, name)
        assert len(plan.sources["arm"].view) == sum(LENGTHS)
        with loader.Loader(plan, framework="numpy", workers=0) as batches:
            expected = {step: batches.batch_at(step).digest for step in range(6)}
            assert set(batches.batch_at(0)["text"]) <= {"reach", "grasp"}
    assert first == expected
    assert later.items() <= expected.items()


def test_diffusion_trains_on_real_episodes_and_smolvla_takes_them(tmp_path, peer):
    """Of the corpus, where PENSTOCK_MEDIA names it."""
    for corpus in filter(None, [os.environ.get("PENSTOCK_MEDIA")]):
        place = f"{corpus}/robot/g1_lerobot_v21"
        with loader.Root(tmp_path / "root") as root:
            options = ColumnarOptions(episodes=((29, 29),))
            assert import_place(root, "lerobot", open_store(place), "g1", options=options).failures == []
        sizes = [
            "--dataset",
            "g1",
            "--policy",
            "diffusion",
            "--chunk",
            "16",
            "--global-batch",
            "2",
            "--steps",
            "2",
        ]
        done, digests = trained(tmp_path, *sizes)
        assert done.returncode == 0, done.stderr
        assert list(digests) == [0, 1]
        (inputs,) = peer("policies", "smolvla", tmp_path / "root")
        assert inputs == {
            "chunk": list(range(50)),
            "task": ["Pick up the yellow bottle on the table."] * 4,
            "images": [[4, 3, 512, 512]],
            "range": [True, True],
            "masks": [[True] * 4],
            "state": [4, 32],
            "action": [4, 50, 32],
            "is_pad": ["torch.bool", [4, 50]],
        }
