"""A decision in a terminal, reached from the run's decisions, and the ones beside it."""

from penstock.view.terminal.addresses import DecisionPage
from tests.view.rollouts.test_decision_pages import write_decisions


def test_decision_is_shown_and_its_neighbours_open_by_key(look, root, tmp_path):
    write_decisions(root, range(3))

    async def test(terminal) -> None:
        assert "31 rollouts trained" in terminal.text
        assert "11 + 1" in terminal.text
        await terminal.press("right_square_bracket")
        assert "32 rollouts trained" in terminal.text
        await terminal.press("right_square_bracket", "left_square_bracket")
        assert "31 rollouts trained" in terminal.text

    look(test, DecisionPage(run="on", step=1), root=tmp_path / "root", size=(110, 60))
