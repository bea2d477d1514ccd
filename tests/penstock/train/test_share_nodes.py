"""Ranks that tell each other their nodes, where the launcher does not."""

import os
import subprocess
import sys

import pytest

from loader.local_ranks import node_count
from penstock.train.launched import share_nodes
from tests.servers.patience import PATIENCE_S

RANK = """
import sys
from torch import distributed
from loader.local_ranks import node_count
from penstock.train.launched import share_nodes

rank, path, node = int(sys.argv[1]), sys.argv[2], sys.argv[3]
distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=3)
before = node_count()
share_nodes(node)
print(before, node_count())
distributed.destroy_process_group()
"""


@pytest.mark.parametrize(("nodes", "counted"), [("aab", 2), ("aaa", 1)])
def test_ranks_without_a_launcher_count_their_nodes(tmp_path, nodes, counted):
    environment = {
        name: text for name, text in os.environ.items() if not name.startswith(("SLURM", "PENSTOCK"))
    }
    ranks = []
    for rank, node in enumerate(nodes):
        command = [sys.executable, "-c", RANK, str(rank), str(tmp_path / "meeting"), node]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        ranks.append(process)
    for process in ranks:
        text, _ = process.communicate(timeout=PATIENCE_S)
        assert text == f"1 {counted}\n"


def test_process_without_a_group_counts_nothing(monkeypatch):
    monkeypatch.delenv("PENSTOCK_NODES", raising=False)
    before = node_count()
    share_nodes("a")
    assert "PENSTOCK_NODES" not in os.environ
    assert node_count() == before
