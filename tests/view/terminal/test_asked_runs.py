"""Runs that a page of a sample has not asked, in a terminal: they are counted, and asked by Enter."""

from penstock.view.terminal.addresses import SamplePage, VersionPage
from penstock.view.terminal.section_screen import SectionList


def test_runs_that_were_not_asked_are_asked_by_enter(look):
    async def test(terminal):
        assert "3 other runs were not searched:" in terminal.text
        links = terminal.app.screen.query(SectionList).last()
        links.focus()
        links.highlight_text("search them")
        await terminal.press("enter")
        assert "not searched" not in terminal.text
        assert all(run in terminal.text for run in ("one", "three", "floats"))

    look(test, SamplePage(version=VersionPage(dataset="photos", number=1), ordinal=2), size=(80, 80))
