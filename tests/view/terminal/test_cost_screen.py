"""The cost of datasets in a terminal."""

from penstock.view.terminal.addresses import CostPage, parse_page
from tests.view.conftest import write_photos


def test_cost_in_a_terminal(look, root, tmp_path):
    write_photos(root)
    assert parse_page("cost") == CostPage()

    async def test(terminal):
        assert terminal.lines[0].startswith("cost of 1 dataset")
        assert "photos" in terminal.text
        await terminal.press("y")
        assert "penstock usage --by dataset" in terminal.lines[-1]

    look(test, CostPage(), root=tmp_path / "root", size=(140, 30))
