"""Runs that a page of a sample has not asked, in a terminal: they are counted, and asked by Enter."""

from penstock.view.terminal.addresses import SamplePlace, VersionPlace
from penstock.view.terminal.record_screen import PlaceList


def test_runs_that_were_not_asked_are_asked_by_enter(look):
    async def test(terminal):
        assert "3 other runs were not asked; Enter asks them" in terminal.text
        terminal.app.screen.query(PlaceList).first().focus()
        await terminal.press("end", "enter")
        assert "not asked" not in terminal.text
        assert all(run in terminal.text for run in ("one", "three", "floats"))

    look(test, SamplePlace(version=VersionPlace(dataset="photos", number=1), ordinal=2), size=(80, 80))
