"""A rollout in a terminal: its tokens as text, the masked ones enclosed, and nothing of its turns as an escape."""

import numpy as np

from penstock.view.terminal.addresses import SamplePage, VersionPage


def test_masked_tokens_of_a_rollout_are_enclosed(look, root, tmp_path):
    turns = [{"role": "user", "start": 0, "stop": 2, "text": "\x1b[31mred"}]
    fields = {
        "tokens.npy": np.arange(11, 17),
        "mask.npy": np.array([0, 0, 1, 1, 0, 1], bool),
        "turns.jsonl": turns,
    }
    with root.write("rl") as writer:
        writer.add("a", fields, metadata={"group_id": "g"})
    place = SamplePage(version=VersionPage(dataset="rl", number=1), ordinal=0)

    async def test(terminal) -> None:
        assert "3 of them are targets of the loss" in terminal.text
        assert "«11|12»|13|14|«15»|16" in terminal.text
        assert "\x1b" not in terminal.text

    look(test, place, root=tmp_path / "root", size=(100, 60))
