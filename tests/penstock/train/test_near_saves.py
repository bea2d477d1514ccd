"""`Run.steps` saves near checkpoints, and records the first one of a series that fails."""

from pathlib import Path

import pytest
import torch

import loader
from loader.cache.peers.near_files import NearFiles, near_folder
from penstock.checkpoints import Checkpoints
from penstock.train import Run
from penstock.train.run_folder import RunFolder
from tests.cache.peers.nodes import running_nodes
from tests.penstock.train.test_batch_sources import a_plan

STEPS, EVERY = 10, 2


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_steps_are_saved_near_and_a_lost_node_is_an_event(root: str, tmp_path: Path) -> None:
    state = {"weight": torch.zeros(3)}
    near_steps = []
    with running_nodes(tmp_path, 2, limit_pages=8) as nodes:
        near = nodes[0].spec([node.address for node in nodes])
        with (
            loader.Loader(a_plan(root), 0, 1, steps=STEPS) as batches,
            Run.joined(name="points", checkpoints=root, record=root) as run,
            Checkpoints(root, "points", near=near, near_every=EVERY) as saved,
        ):
            for batch in run.steps(batches, saved, state):
                saved.wait()
                files = NearFiles(near_folder(near))
                near_steps.append(sorted(files.run("points").markers))
                if batch.step == 5:
                    nodes[1].stop()
                state["weight"] += 1
            assert saved.near_counts()[:3] == (2, 0, 2)
    assert near_steps == [[], [], [2], [2], [2, 4], [2, 4], [2, 4], [2, 4], [2, 4], [2, 4]]
    assert Checkpoints(root, "points").steps() == [STEPS]
    events = RunFolder(loader.Root(root).store, "points").events()
    failed = [event for event in events if event.name == "near_failed"]
    assert [event.step for event in failed] == [6]
    assert nodes[1].address in failed[0].facts["reason"]
    assert not list((nodes[0].folder / "near").rglob("*.safetensors"))  # the last save made them needless
