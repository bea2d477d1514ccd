"""`penstock checkpoints ls --near` and `--peers`: near saves on a node, and on all nodes of a cluster."""

import pytest
import torch

from penstock.checkpoints.marker import part_key
from tests.cache.peers.nodes import running_nodes

from .nodes import distribute, near_path, save_state


@pytest.fixture
def nodes(tmp_path):
    """Two nodes with the near steps 20 and 40 of a run, and a part of a step that was killed."""
    with running_nodes(tmp_path / "nodes", 2) as nodes:
        for step in (20, 40):
            distribute(
                save_state(tmp_path / f"{step}", "run", step, {"w": torch.zeros(5000)}), nodes, copies=1
            )
        killed = near_path(nodes[0], part_key("run", 60, "0123456789abcdef-00000.safetensors"))
        killed.parent.mkdir()
        killed.write_bytes(b"killed")
        yield nodes


def test_ls_lists_the_near_saves_of_a_cluster(nodes, cli):
    peers = ",".join(node.address for node in nodes)
    result = cli("checkpoints", "ls", "--peers", peers, "--json")
    assert result.code == 0
    steps = {row["step"]: row for row in result.json}
    assert sorted(steps) == [20, 40, 60]
    assert [steps[step]["complete"] for step in (20, 40, 60)] == [True, True, False]
    assert [steps[step]["nodes"] for step in (20, 40, 60)] == [2, 2, 1]
    assert steps[40]["nbytes"] > 20_000
    assert cli("checkpoints", "ls", "other", "--peers", peers, "--json").json == []


def test_ls_names_a_near_step_that_a_start_skips(nodes, cli):
    (part, *_) = near_path(nodes[1], part_key("run", 40, "")).glob("*.safetensors")
    part.unlink()
    peers = ",".join(node.address for node in nodes)
    result = cli("checkpoints", "ls", "run", "--peers", peers)
    assert result.code == 1
    assert part.name in result.out
    # One node alone has half of the parts, as it should.
    result = cli("checkpoints", "ls", "--near", str(nodes[1].folder), "--json")
    assert result.code == 0
    assert [row["complete"] for row in result.json] == [True, True]


def test_ls_of_a_folder_without_near_saves(tmp_path, nodes, cli):
    result = cli("checkpoints", "ls", "--near", str(tmp_path))
    assert result.code == 0
    assert "no near saves" in result.out
    assert cli("checkpoints", "ls", "--near", str(tmp_path / "missing")).code == 2
    nodes[1].stop()
    assert cli("checkpoints", "ls", "--peers", nodes[1].address).code == 2
