"""Policies of lerobot, version pinned in policies.txt, train on windows by `examples/robots.py`."""

import os
from pathlib import Path

import pytest

import loader
from loader.storage import open_store
from penstock.formats.importer import ColumnarOptions
from penstock.formats.run_import import import_place
from tests.demo.robots_walk import run_training

pytestmark = pytest.mark.oracle
HERE = Path(__file__).parent
POLICIES = Path(os.environ.get("PENSTOCK_ORACLES", HERE.parents[1] / ".oracles")) / "policies/bin/python"
SIZES = "--dataset", "g1", "--policy", "diffusion", "--chunk", "16", "--global-batch", "2", "--steps", "2"


def test_diffusion_trains_on_real_episodes_and_smolvla_takes_them(tmp_path, peer):
    """The episodes of the corpus that PENSTOCK_MEDIA names."""
    for corpus in filter(None, [os.environ.get("PENSTOCK_MEDIA")]):
        place = f"{corpus}/robot/g1_lerobot_v21"
        with loader.Root(tmp_path / "root") as root:
            options = ColumnarOptions(episodes=((29, 29),))
            assert import_place(root, "lerobot", open_store(place), "g1", options=options).failures == []
        done, digests = run_training([POLICIES, "examples/robots.py"], tmp_path, SIZES)
        assert done.returncode == 0, done.stderr
        assert list(digests) == [0, 1]
        (inputs,) = peer("policies", tmp_path / "root")
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
