"""Base class of the pages. A thread loads the record; if that fails, the page shows the error."""

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, cast

from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from loader.errors import PenstockError

from ...text import clean, shell_command, terminal_text
from ..facets.version_filter import VersionFilter
from ..inspect.recorded_step import failure_record, step_lines
from ..inspect.sample_record import SampleRecord
from ..inspect.slot_record import SlotRecord
from ..kinds import find_kind
from ..kinds.kind import Facts, Media
from ..open_data import OpenData
from ..raw_source import RawObjectRecord, raw_object
from .addresses import PageAddress, StepPage, VersionPage
from .picture_cells import choose_mode, picture_widget, pixels_needed
from .widgets import InputDialog, TextDialog, keys_dialog


class Viewer(App[None]):
    """An application of pages, by address, with a basket and a drawing mode."""

    SCREENS_OF: ClassVar[Mapping[type, Callable[[Any], Screen[None]]]]
    """Screen by address type."""

    def __init__(self, data: OpenData, pictures: str) -> None:
        """Set the data, which the caller closes, and the drawing mode, one of `picture_cells.MODES`."""
        super().__init__()
        self.data = data
        self.pictures = choose_mode(pictures, no_color=self.no_color)
        self.basket: dict[tuple[str, str], None] = {}
        """(version, key) of samples."""

    def open(self, page: PageAddress) -> None:
        self.switch_screen(self.SCREENS_OF[type(page)](page))

    def read(self, lines: Sequence[str]) -> None:
        self.push_screen(TextDialog(lines))

    def toggle(self, version: str, key: str) -> str:
        """Toggle a sample in the basket; return its size as text."""
        if (version, key) in self.basket:
            del self.basket[version, key]
        else:
            self.basket[version, key] = None
        return f"basket: {len(self.basket)} ({'+' if (version, key) in self.basket else '-'} {key})"

    def exclude(self, *, reason: str, by: str, page: str) -> tuple[str, ...]:
        """Exclude the basket's samples and empty it; return the new versions' names. Raises: as `exclude`."""
        versions = self.data.exclude(list(self.basket), reason=reason, by=by, page=page)
        self.basket.clear()
        return versions

    def command(self, *words: object, names: Sequence[object] = ()) -> str:
        return shell_command(self.data.root.url, *words, names=names)


class RecordScreen(Screen[None]):
    """A page; subclasses load and show its record."""

    DEFAULT_CSS = """
    RecordScreen #title { height: 1; background: $panel; text-style: bold; text-wrap: nowrap; text-overflow: ellipsis; }
    RecordScreen #status { height: 1; background: $panel; text-wrap: nowrap; text-overflow: ellipsis; }
    RecordScreen .line { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    RecordScreen .heading { text-style: bold; margin-top: 1; }
    RecordScreen .bad { text-style: bold; color: $error; }
    """
    BINDINGS: ClassVar[list[Any]] = [
        Binding("u", "climb", "up"),
        Binding("g", "ask_step", "step"),
        Binding("y", "copy_command", "copy"),
        Binding("b", "basket", "basket"),
        Binding("x", "exclude", "exclude"),
        Binding("e", "explain", "explain"),
        Binding("m", "more_like", "more like it"),
        Binding("question_mark", "keys", "keys"),
    ]

    def __init__(self, page: Any) -> None:
        super().__init__()
        self.page: Any = page
        self.record: Any = None
        self._loading_since = 0.0

    @abstractmethod
    def load_record(self) -> Any:
        """Return the record. Called in a thread. Raises: PenstockError."""

    @abstractmethod
    def title_of(self, record: Any) -> str: ...

    @abstractmethod
    def widgets(self, record: Any) -> Iterable[Widget]:
        """Yield the record's widgets."""

    @abstractmethod
    def command(self) -> str:
        """Return the equivalent shell command."""

    def selected_sample(self) -> tuple[str, str] | None:
        """Return (version, key), or None."""
        return None

    def provenance_lines(self) -> list[str]:
        """Return the selected sample's provenance."""
        return []

    @property
    def viewer(self) -> Viewer:
        return cast(Viewer, self.app)

    @property
    def data(self) -> OpenData:
        return self.viewer.data

    def compose(self) -> ComposeResult:
        yield Static("penstock", id="title", markup=False)
        yield VerticalScroll(Static("…", id="waiting", markup=False), id="body")
        yield Static("? keys   q leave", id="status", markup=False)

    def on_mount(self) -> None:
        """Load the record, showing the elapsed time meanwhile."""
        self._loading_since = time.monotonic()
        self.set_interval(1.0, self._show_progress)
        self.load()

    def _show_progress(self) -> None:
        waiting = self.query("#waiting")
        if waiting:
            state = self.data.recipe_state()
            text = f"{state}\n" if state else ""
            waiting.first(Static).update(f"{text}… {time.monotonic() - self._loading_since:.0f} s")

    @work(thread=True, exclusive=True)
    def load(self) -> None:
        try:
            record = self.data.answer(self.load_record)
        except PenstockError as error:
            self.from_thread(self.fail, error)
            return
        self.from_thread(self.show, record)

    def from_thread(self, function: Callable[..., Any], *arguments: object) -> None:
        """Call a function in the main thread, and wait for it."""
        self.app.call_from_thread(function, *arguments)

    async def show(self, record: Any) -> None:
        """Show a record, unless another page was opened meanwhile."""
        # Another page was opened while the thread loaded this one.
        if not self.is_attached:
            return
        self.record = record
        await self._fill(self.title_of(record), self.widgets(record))
        self.focus_content()

    def focus_content(self) -> None:
        self.query_one("#body").focus()

    async def fail(self, error: PenstockError) -> None:
        if not self.is_attached:
            return
        record = failure_record(error)
        widgets: list[Widget] = [Static(record.message, classes="bad", markup=False)]
        if record.advice:
            widgets.append(paragraph(record.advice))
        if record.recorded is not None:
            widgets += [line(text) for text in step_lines(record.recorded)]
        await self._fill(record.error, widgets)
        self.query_one("#body").focus()

    async def _fill(self, title: str, widgets: Iterable[Widget]) -> None:
        self.query_one("#title", Static).update(clean(title, 400))
        body = self.query_one("#body", VerticalScroll)
        # Awaited, else new widgets could meet old ones with equal ids.
        await body.remove_children()
        await body.mount_all(widgets)

    def say(self, text: str) -> None:
        """Show a message in the status line."""
        self.query_one("#status", Static).update(clean(text, 300))

    def picture(self, media: Media | None, columns: int, rows: int) -> Widget | None:
        """Return a widget for at most these cells; None if images are off."""
        if media is None or media.type not in ("image/png", "image/jpeg") or self.viewer.pictures == "none":
            return None
        return picture_widget(media, self.viewer.pictures, columns, rows)

    def thumbnail(self, value: Any, facts: Facts, columns: int, rows: int) -> Media | None:
        """Return a value's image for these cells; None if images are off."""
        edge = self.edge(columns, rows)
        if edge:
            return find_kind(value, facts).thumbnail(value, facts, edge)
        return None

    def edge(self, columns: int, rows: int) -> int:
        """Return the longer side of an image in these cells, in pixels; 0 if images are off."""
        mode = self.viewer.pictures
        if mode == "none":
            return 0
        return pixels_needed(mode, columns, rows)

    def action_climb(self) -> None:
        parent: PageAddress | None = self.page.parent
        if parent is not None:
            self.viewer.open(parent)

    def action_ask_step(self) -> None:
        run = getattr(self.page, "run", "")
        at = self.page.step if hasattr(self.page, "step") else ""
        run, at = (at.run, at.step) if isinstance(at, StepPage) else (run, at)
        self.app.push_screen(InputDialog("Go to a step", {"run or plan": run, "step": str(at)}), self._go)

    def _go(self, answers: Mapping[str, str] | None) -> None:
        if answers is None:
            return
        run = answers["run or plan"].strip()
        step = answers["step"].strip()
        if not run or not step.isdecimal() or len(step) > 18:
            self.say(f"enter a run and a whole number, got {run!r} and {step!r}")
            return
        self.viewer.open(StepPage(run=run, step=int(step)))

    def action_copy_command(self) -> None:
        """Copy the command and show it, because some terminals forbid copying."""
        command = self.command()
        self.app.copy_to_clipboard(command)
        self.say(command)

    def action_basket(self) -> None:
        sample = self.selected_sample()
        if sample is None:
            self.say("no sample is selected")
            return
        self.say(self.viewer.toggle(*sample))

    def action_exclude(self) -> None:
        if not self.viewer.basket:
            self.say("the basket is empty: press b to add a sample")
            return
        n = len(self.viewer.basket)
        heading = f"Exclude {n} {'sample' if n == 1 else 'samples'} from the next version"
        self.app.push_screen(InputDialog(heading, {"reason": "", "by": ""}), self._exclude)

    def _exclude(self, answers: Mapping[str, str] | None) -> None:
        if answers is not None:
            self.say("excluding …")
            self._exclude_in_thread(answers["reason"], answers["by"])

    @work(thread=True)
    def _exclude_in_thread(self, reason: str, by: str) -> None:
        try:
            versions = self.viewer.exclude(reason=reason, by=by, page=self.command())
        except PenstockError as error:
            self.from_thread(self.say, f"{type(error).__name__}: {error}")
            return
        self.from_thread(self.say, f"excluded; new: {', '.join(versions)}")

    def action_explain(self) -> None:
        lines = self.provenance_lines()
        if lines:
            self.viewer.read(lines)
        else:
            self.say("no sample is selected")

    def action_more_like(self) -> None:
        """Open the page of the selected sample's version, the samples most similar to it first."""
        sample = self.selected_sample()
        if sample is None:
            self.say("no sample is selected")
            return
        version, key = sample
        dataset, _, number = version.partition("@")
        ranked = VersionFilter(like=key)
        self.viewer.open(VersionPage(dataset=dataset, number=int(number), filter=ranked))

    def action_keys(self) -> None:
        self.app.push_screen(keys_dialog())


class LinkList(OptionList):
    """Lines that link to pages. Tab, arrow keys and Enter work."""

    def __init__(self, rows: Iterable[tuple[str, PageAddress | None]]) -> None:
        """rows: (text, linked page or None) pairs."""
        self._pages: list[PageAddress | None] = []
        options = []
        for text, page in rows:
            self._pages.append(page)
            options.append(Option(terminal_text(text), disabled=page is None))
        super().__init__(*options, markup=False)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        page = self._pages[event.option_index]
        if page is not None:
            cast(Viewer, self.app).open(page)


def line(text: str, *, bad: bool = False) -> Static:
    """Return one line, shortened if necessary. bad: marks errors."""
    return Static(terminal_text(text), classes="line bad" if bad else "line", markup=False)


def cut_lines(lines: Sequence[str], most: int) -> list[Static]:
    """Return (first lines, number of those left out)."""
    shown = [line(text) for text in lines[:most]]
    if len(lines) > most:
        shown.append(
            line(f"and {len(lines) - most:,} more lines; press t for one stage, or run penstock batch")
        )
    return shown


def heading(text: str) -> Static:
    return Static(terminal_text(text), classes="heading", markup=False)


def paragraph(text: str) -> Static:
    """Return text that wraps."""
    return Static(terminal_text(text), markup=False)


def raw_of(screen: RecordScreen, record: SampleRecord | SlotRecord, rows: int) -> RawObjectRecord | None:
    """Return the raw object. rows: height of its image."""
    edge = screen.edge(screen.app.size.width, rows)
    return raw_object(screen.data.raw, record.provenance.get("raw_uri", ""), edge=edge)
