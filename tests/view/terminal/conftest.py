"""The viewer in a terminal of 80 x 24, with keys pressed and its screen read."""

import asyncio

import pytest

import loader
from penstock.view.open_data import OpenData
from penstock.view.raw_source import RawSource
from penstock.view.terminal.viewer_app import ViewerApp


class Terminal:
    """A running viewer."""

    def __init__(self, app, pilot):
        self.app, self.pilot = app, pilot

    async def press(self, *keys):
        """Press keys, and wait until the page that they lead to is shown."""
        for key in keys:
            await self.pilot.press(key)
            await self.settle()

    async def type(self, text):
        """Type into a dialog."""
        for letter in text:
            await self.pilot.press({" ": "space", "=": "equals_sign", "'": "apostrophe"}.get(letter, letter))

    async def settle(self):
        """Wait until the page is drawn whole: no worker, message or widget pending, and three equal looks."""
        equal, before = 0, None
        while equal < 3:
            await self.pilot.pause(0.01)
            await self.app.workers.wait_for_complete()
            widgets = list(self.app.screen.walk_children(with_self=True))
            pending = self.app.message_queue_size or any(
                one.message_queue_size or not one.is_mounted for one in widgets
            )
            equal = equal + 1 if not pending and self.text == before else 0
            before = self.text

    @property
    def lines(self):
        """The screen, a text per row."""
        return [
            "".join(segment.text for segment in strip)
            for strip in self.app.screen._compositor.render_strips()
        ]

    @property
    def text(self):
        return "\n".join(self.lines)


@pytest.fixture
def look(trained):
    """look(test, place): run `test(terminal)` over the trained root, or another."""

    def run(test, place, *, root=trained, recipe=None, pictures="halves", size=(80, 24), raw=None):
        async def running():
            opened = root if isinstance(root, loader.Root) else loader.Root(root)
            data = OpenData(
                opened, recipe, quiet=True, raw=None if raw is None else RawSource(opened, str(raw))
            )
            try:
                app = ViewerApp(data, place, pictures)
                async with app.run_test(size=size) as pilot:
                    terminal = Terminal(app, pilot)
                    await terminal.settle()
                    await test(terminal)
            finally:
                data.close()

        asyncio.run(running())

    return run
