"""The application: pages by address, the basket and the drawing mode."""

import asyncio
from multiprocessing import resource_tracker
from typing import Any, ClassVar

from textual.binding import Binding

from ...threads import DaemonThreads
from ..open_data import OpenData
from .addresses import (
    ComparisonPage,
    ContentsPage,
    CostPage,
    DecisionPage,
    DecisionsPage,
    DifferencePage,
    GroupsPage,
    LineagePage,
    PageAddress,
    RootPage,
    RunPage,
    SamplePage,
    SlicePage,
    SlicesPage,
    SlotPage,
    StepPage,
    StepRangePage,
    VersionPage,
)
from .dataset_screens import CostScreen, DifferenceScreen, RootScreen, SampleScreen
from .record_screen import Viewer
from .slice_screens import SliceScreen, SlicesScreen
from .slot_screen import SlotScreen
from .training_screens import (
    ComparisonScreen,
    DecisionScreen,
    DecisionsScreen,
    RunScreen,
    StepRangeScreen,
    StepScreen,
)
from .version_screen import VersionScreen
from .version_tab_screens import ContentsScreen, GroupsScreen, LineageScreen


class ViewerApp(Viewer):
    TITLE = "penstock"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[Any]] = [Binding("q", "quit", "leave"), Binding("ctrl+c", "quit", show=False)]
    SCREENS_OF = {  # noqa: RUF012 - as the base class declares it
        RootPage: RootScreen,
        RunPage: RunScreen,
        ComparisonPage: ComparisonScreen,
        StepRangePage: StepRangeScreen,
        DecisionsPage: DecisionsScreen,
        DecisionPage: DecisionScreen,
        StepPage: StepScreen,
        SlotPage: SlotScreen,
        VersionPage: VersionScreen,
        SamplePage: SampleScreen,
        DifferencePage: DifferenceScreen,
        ContentsPage: ContentsScreen,
        LineagePage: LineageScreen,
        GroupsPage: GroupsScreen,
        SlicesPage: SlicesScreen,
        CostPage: CostScreen,
        SlicePage: SliceScreen,
    }

    def __init__(self, data: OpenData, first: PageAddress, pictures: str = "auto") -> None:
        """Set the first page, and the others as `Viewer`."""
        super().__init__(data, pictures)
        self._first = first
        # Textual replaces stderr by an object without a file descriptor, but a recipe process must inherit one.
        resource_tracker.ensure_running()

    def on_mount(self) -> None:
        asyncio.get_running_loop().set_default_executor(DaemonThreads())  # for the threads that make pages
        self.push_screen(self.SCREENS_OF[type(self._first)](self._first))

    async def action_quit(self) -> None:
        """Quit at once, even if a page waits for the recipe."""
        self.data.stop()
        await super().action_quit()
