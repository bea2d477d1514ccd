"""Near saves whose ranks did not all answer: they go on once all do, and no step waits meanwhile.

Planted: near saves that stay off.
"""

import pytest

from tests.cache.peers.nodes import running_nodes
from tests.penstock.checkpoints.conftest import ranks
from tests.penstock.checkpoints.near.test_save_kills import check_state, inventory, newest_step

__all__ = ["ranks"]  # a fixture

WORLD = 3


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_near_saves_go_on_once_all_ranks_answer_again(ranks, tmp_path):
    with running_nodes(tmp_path, WORLD, limit_pages=16) as nodes:
        answers = ranks(
            WORLD,
            "save_near_with_a_pause",
            whole=False,
            url=str(tmp_path / "root"),
            near=[str(node.folder) for node in nodes],
            peers=[node.address for node in nodes],
        )
        assert [answer["code"] for answer in answers] == [0] * WORLD, answers
        counts = [answer["said"]["counts"] for answer in answers]
        assert {step for _, _, _, step, _ in counts} == {newest_step(nodes)}
        for saved, skipped, failed, _, problem in counts:
            assert saved >= 2
            assert skipped >= 3  # a pause has 25 steps, and none waits for it
            assert failed >= 1
            assert problem == ""
        check_state(nodes, tmp_path, newest_step(nodes))
        assert all(len(inventory(node).markers) == 2 for node in nodes)
