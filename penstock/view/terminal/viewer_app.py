"""The application: pages by address, the basket and the drawing mode."""

import asyncio
from collections.abc import Sequence
from multiprocessing import resource_tracker
from typing import Any, ClassVar

from textual.app import App
from textual.binding import Binding

from ...text import shell_command
from ...threads import DaemonThreads
from ..open_data import OpenData
from .addresses import (
    ComparisonPage,
    DifferencePage,
    PageAddress,
    RootPage,
    RunPage,
    SamplePage,
    SlotPage,
    StepPage,
    VersionPage,
    WindowPage,
)
from .dataset_screens import DifferenceScreen, RootScreen, SampleScreen, VersionScreen
from .picture_cells import chosen_mode
from .record_screen import RecordScreen
from .slot_screen import SlotScreen
from .training_screens import ComparisonScreen, RunScreen, StepScreen, WindowScreen
from .widgets import TextDialog

SCREENS_OF: dict[type, type[RecordScreen]] = {
    RootPage: RootScreen,
    RunPage: RunScreen,
    ComparisonPage: ComparisonScreen,
    WindowPage: WindowScreen,
    StepPage: StepScreen,
    SlotPage: SlotScreen,
    VersionPage: VersionScreen,
    SamplePage: SampleScreen,
    DifferencePage: DifferenceScreen,
}
"""Screen by address type."""


class ViewerApp(App[None]):
    TITLE = "penstock"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[Any]] = [Binding("q", "quit", "leave"), Binding("ctrl+c", "quit", show=False)]

    def __init__(self, data: OpenData, first: PageAddress, pictures: str = "auto") -> None:
        """Set the drawing mode, one of `picture_cells.MODES`, and the data, which the caller closes."""
        super().__init__()
        self.data = data
        self.pictures = chosen_mode(pictures, no_color=self.no_color)
        self.basket: dict[tuple[str, str], None] = {}
        self._first = first
        # Textual replaces stderr by an object without a file descriptor, but a recipe process must inherit one.
        resource_tracker.ensure_running()

    def on_mount(self) -> None:
        asyncio.get_running_loop().set_default_executor(DaemonThreads())  # for the threads that make pages
        self.push_screen(SCREENS_OF[type(self._first)](self._first))

    async def action_quit(self) -> None:
        """Quit at once, even if a page waits for the recipe."""
        self.data.stop()
        await super().action_quit()

    def open(self, place: PageAddress) -> None:
        self.switch_screen(SCREENS_OF[type(place)](place))

    def read(self, lines: Sequence[str]) -> None:
        self.push_screen(TextDialog(lines))

    def toggle(self, version: str, key: str) -> str:
        if (version, key) in self.basket:
            del self.basket[version, key]
        else:
            self.basket[version, key] = None
        return f"basket: {len(self.basket)} ({'+' if (version, key) in self.basket else '-'} {key})"

    def exclude(self, *, reason: str, by: str, page: str) -> tuple[str, ...]:
        """Exclude the basket's samples and empty it. Raises: as `exclude`."""
        versions = self.data.exclude(list(self.basket), reason=reason, by=by, page=page)
        self.basket.clear()
        return versions

    def command(self, *words: object, names: Sequence[object] = ()) -> str:
        return shell_command(self.data.root.url, *words, names=names)
