"""Ranks of several nodes start from near steps that another number of ranks saved."""

import pytest

from penstock.checkpoints import Checkpoints
from tests.cache.peers.nodes import running_nodes
from tests.penstock.checkpoints.conftest import ranks

from .nodes import distribute, near_path

__all__ = ["ranks"]  # a fixture


@pytest.fixture(scope="module")
def saves(ranks, tmp_path_factory):
    """Save steps 20 and 40 on two ranks: step -> (digests, (checkpoint, folder))."""
    saves = {}
    for step in (20, 40):
        folder = tmp_path_factory.mktemp(f"near{step}")
        digests = ranks(2, "save", url=str(folder), step=step, seed=step, part_bytes=20_000)
        saves[step] = digests, (Checkpoints(str(folder), "run").at(step), folder)
    return saves


def test_ranks_go_back_together_until_a_near_step_is_right(ranks, saves, tmp_path):
    with running_nodes(tmp_path / "nodes", 3) as nodes:
        for _, save in saves.values():
            distribute(save, nodes)
        settings = {
            "url": str(tmp_path / "root"),
            "near": [str(node.folder) for node in nodes[:2]],  # the third left the job and still answers
            "peers": [node.address for node in nodes],
            "seed": 7,
        }
        # Only the second node has the marker.
        newest, _ = saves[40][1]
        for node in (nodes[0], nodes[2]):
            near_path(node, "checkpoints/run/steps/000000000040.json").unlink()
        for answer in ranks(3, "load", whole=False, **settings):
            assert answer["code"] == 0
            assert answer["said"]["step"] == 40
            assert answer["said"]["digests"] == saves[40][0]
        # Some ranks need the part and some do not.
        for node in nodes:
            path = near_path(node, newest.key(newest.parts[-1]))
            if path.exists():
                path.write_bytes(bytes(newest.parts[-1].nbytes))
        for answer in ranks(3, "load", whole=False, **settings):
            assert answer["code"] == 0
            assert answer["said"]["step"] == 20
            assert answer["said"]["digests"] == saves[20][0]
