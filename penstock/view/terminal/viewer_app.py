"""The application: pages by their address, the basket, and the way in which pictures are drawn."""

import asyncio
from collections.abc import Sequence
from multiprocessing import resource_tracker
from typing import Any, ClassVar

from textual.app import App
from textual.binding import Binding

from ..basket import exclude_basket
from ..daemon_threads import DaemonThreads
from ..open_data import OpenData
from ..shell_command import shell_command
from .addresses import (
    AgainstPlace,
    DifferencePlace,
    Place,
    RootPlace,
    RunPlace,
    SamplePlace,
    SlotPlace,
    StepPlace,
    VersionPlace,
    WindowPlace,
)
from .dataset_screens import DifferenceScreen, RootScreen, SampleScreen, VersionScreen
from .dialogs import Reading
from .picture_cells import chosen_mode
from .record_screen import RecordScreen
from .run_text_screens import AgainstScreen, WindowScreen
from .slot_screen import SlotScreen
from .training_screens import RunScreen, StepScreen

SCREENS_OF: dict[type, type[RecordScreen]] = {
    RootPlace: RootScreen,
    RunPlace: RunScreen,
    AgainstPlace: AgainstScreen,
    WindowPlace: WindowScreen,
    StepPlace: StepScreen,
    SlotPlace: SlotScreen,
    VersionPlace: VersionScreen,
    SamplePlace: SampleScreen,
    DifferencePlace: DifferenceScreen,
}
"""Type of an address -> its page."""


class ViewerApp(App[None]):
    """The viewer in a terminal."""

    TITLE = "penstock"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[Any]] = [Binding("q", "quit", "leave"), Binding("ctrl+c", "quit", show=False)]

    def __init__(self, data: OpenData, first: Place, pictures: str = "auto") -> None:
        """Take open versions and trainings, which the caller closes; pictures: one of `picture_cells.MODES`."""
        super().__init__()
        self.data = data
        self.pictures = chosen_mode(pictures, no_color=self.no_color)
        self.basket: dict[tuple[str, str], None] = {}
        self._first = first
        # A recipe's process is spawned with this one's stderr, in whose place Textual puts an object without a file.
        resource_tracker.ensure_running()

    def on_mount(self) -> None:
        """Open the first page."""
        asyncio.get_running_loop().set_default_executor(DaemonThreads())  # of the threads that make pages
        self.push_screen(SCREENS_OF[type(self._first)](self._first))

    async def action_quit(self) -> None:
        """Leave. A page that waits for the recipe is not waited for."""
        self.data.stop()
        await super().action_quit()

    def open(self, place: Place) -> None:
        """Open a page in place of the one that is shown."""
        self.switch_screen(SCREENS_OF[type(place)](place))

    def read(self, lines: Sequence[str]) -> None:
        """Show a text to read."""
        self.push_screen(Reading(lines))

    def toggle(self, version: str, key: str) -> str:
        """Put a sample into the basket, or take it out; return how many it holds, in words."""
        if (version, key) in self.basket:
            del self.basket[version, key]
        else:
            self.basket[version, key] = None
        return f"basket: {len(self.basket)} ({'+' if (version, key) in self.basket else '-'} {key})"

    def exclude(self, *, reason: str, by: str, page: str) -> tuple[str, ...]:
        """Exclude the samples of the basket, and empty it; return the versions without them. Raises: as `exclude`."""
        made = exclude_basket(self.data.root, list(self.basket), reason=reason, by=by, page=page)
        self.basket.clear()
        return made

    def command(self, *words: object, names: Sequence[object] = ()) -> str:
        """Return a command of `penstock` over this root, as `shell_command`."""
        return shell_command(self.data.root.url, *words, names=names)
