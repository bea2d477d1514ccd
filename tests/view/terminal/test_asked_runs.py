"""Runs that a page of a sample has not asked, in a terminal: they are counted, and asked by Enter."""

from penstock.view.terminal.addresses import SamplePage, VersionPage
from penstock.view.terminal.record_screen import LinkList


def test_runs_that_were_not_asked_are_asked_by_enter(look):
    async def test(terminal):
        assert "3 other runs were not searched; press Enter to search them" in terminal.text
        terminal.app.screen.query(LinkList).first().focus()
        await terminal.press("end", "enter")
        assert "not searched" not in terminal.text
        assert all(run in terminal.text for run in ("one", "three", "floats"))

    look(test, SamplePage(version=VersionPage(dataset="photos", number=1), ordinal=2), size=(80, 80))
