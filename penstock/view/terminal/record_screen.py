"""A page of the viewer in a terminal: its record is asked for in a thread and shown; an error stands in its place."""

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from loader.errors import PenstockError

from ...text import clean, terminal_text
from ..inspect.recorded_step import failure_record, recorded_lines
from ..kinds import kind_of
from ..kinds.kind import Facts, Media
from ..open_data import OpenData
from .addresses import Place, StepPlace
from .dialogs import Asking, keys_dialog
from .picture_cells import picture_widget, pixels_asked

if TYPE_CHECKING:
    from .viewer_app import ViewerApp


class RecordScreen(Screen[None]):
    """A page. Classes of pages say what is asked, and how the record is shown."""

    DEFAULT_CSS = """
    RecordScreen #title { height: 1; background: $panel; text-style: bold; text-wrap: nowrap; text-overflow: ellipsis; }
    RecordScreen #said { height: 1; background: $panel; text-wrap: nowrap; text-overflow: ellipsis; }
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
        Binding("question_mark", "keys", "keys"),
    ]

    def __init__(self, place: Any) -> None:
        """Take the address of the page."""
        super().__init__()
        self.place: Any = place
        self.record: Any = None
        self._asked_at = 0.0

    @abstractmethod
    def asked(self) -> Any:
        """Return the record; called in a thread. Raises: PenstockError."""

    @abstractmethod
    def title_of(self, record: Any) -> str:
        """Return the page's first line."""

    @abstractmethod
    def widgets(self, record: Any) -> Iterable[Widget]:
        """Yield the page's content."""

    @abstractmethod
    def command(self) -> str:
        """Return the command that tells the same."""

    def chosen(self) -> tuple[str, str] | None:
        """Return (version, key) of the sample that the basket takes; None for none."""
        return None

    def explained(self) -> list[str]:
        """Return the way back of the chosen sample; no lines for none."""
        return []

    @property
    def viewer(self) -> "ViewerApp":
        """The application."""
        return cast("ViewerApp", self.app)

    @property
    def data(self) -> OpenData:
        """Open versions and trainings."""
        return self.viewer.data

    def compose(self) -> ComposeResult:
        """Yield the first line, the content, and the last line."""
        yield Static("penstock", id="title", markup=False)
        yield VerticalScroll(Static("…", id="waiting", markup=False), id="body")
        yield Static("? keys   q leave", id="said", markup=False)

    def on_mount(self) -> None:
        """Ask for the record. Until it is there, the page tells how long that takes."""
        self._asked_at = time.monotonic()
        self.set_interval(1.0, self._tell_progress)
        self.ask()

    def _tell_progress(self) -> None:
        waiting = self.query("#waiting")
        if waiting:
            state = self.data.recipe_state()
            text = f"{state}\n" if state else ""
            waiting.first(Static).update(f"{text}… {time.monotonic() - self._asked_at:.0f} s")

    @work(thread=True, exclusive=True)
    def ask(self) -> None:
        """Ask for the record in a thread, and show it."""
        try:
            record = self.data.answer(self.asked)
        except PenstockError as error:
            self.from_thread(self.fail, error)
            return
        self.from_thread(self.show, record)

    def from_thread(self, function: Callable[..., Any], *given: object) -> None:
        """Call a function where the keys are handled, and wait for it."""
        self.app.call_from_thread(function, *given)

    async def show(self, record: Any) -> None:
        """Show a record, unless another page is shown by now."""
        if not self.is_attached:
            return
        self.record = record
        await self._fill(self.title_of(record), self.widgets(record))
        self.shown()

    def shown(self) -> None:
        """Put the cursor where it belongs: the content scrolls."""
        self.query_one("#body").focus()

    async def fail(self, error: PenstockError) -> None:
        """Show an error in the place of the record."""
        if not self.is_attached:
            return
        record = failure_record(error)
        told: list[Widget] = [Static(record.message, classes="bad", markup=False)]
        if record.advice:
            told.append(paragraph(record.advice))
        if record.recorded is not None:
            told += [line(text) for text in recorded_lines(record.recorded)]
        await self._fill(record.error, told)
        self.query_one("#body").focus()

    async def _fill(self, title: str, widgets: Iterable[Widget]) -> None:
        self.query_one("#title", Static).update(clean(title, 400))
        body = self.query_one("#body", VerticalScroll)
        await body.remove_children()
        await body.mount_all(widgets)

    def say(self, text: str) -> None:
        """Show a text in the last line."""
        self.query_one("#said", Static).update(clean(text, 300))

    def picture(self, media: Media | None, columns: int, rows: int) -> Widget | None:
        """Return a picture in at most so many cells; None where there is none, or none are drawn."""
        if media is None or media.type not in ("image/png", "image/jpeg") or self.viewer.pictures == "none":
            return None
        return picture_widget(media, self.viewer.pictures, columns, rows)

    def thumbnail(self, value: Any, facts: Facts, columns: int, rows: int) -> Media | None:
        """Return a picture of a value, large enough for so many cells; None where none are drawn."""
        edge = self.edge(columns, rows)
        return kind_of(value, facts).thumbnail(value, facts, edge) if edge else None

    def edge(self, columns: int, rows: int) -> int:
        """Return the longer side in pixels of a picture for so many cells; 0 where none are drawn."""
        mode = self.viewer.pictures
        return 0 if mode == "none" else pixels_asked(mode, columns, rows)

    def action_climb(self) -> None:
        """Open the page above."""
        parent: Place | None = self.place.parent
        if parent is not None:
            self.viewer.open(parent)

    def action_ask_step(self) -> None:
        """Ask which step is opened."""
        run = getattr(self.place, "run", "")
        at = self.place.step if hasattr(self.place, "step") else ""
        run, at = (at.run, at.step) if isinstance(at, StepPlace) else (run, at)
        self.app.push_screen(Asking("Go to a step", {"run or plan": run, "step": str(at)}), self._go)

    def _go(self, given: Mapping[str, str] | None) -> None:
        if given is None:
            return
        run, step = given["run or plan"].strip(), given["step"].strip()
        if not run or not step.isdecimal() or len(step) > 18:
            self.say(f"a run and a whole number are needed, got {run!r} and {step!r}")
            return
        self.viewer.open(StepPlace(run=run, step=int(step)))

    def action_copy_command(self) -> None:
        """Copy the command into the terminal's clipboard, and show it: not every terminal takes it."""
        command = self.command()
        self.app.copy_to_clipboard(command)
        self.say(command)

    def action_basket(self) -> None:
        """Put the chosen sample into the basket, or take it out."""
        chosen = self.chosen()
        if chosen is None:
            self.say("no sample is chosen")
            return
        self.say(self.viewer.toggle(*chosen))

    def action_exclude(self) -> None:
        """Ask for reason and name, and exclude the samples of the basket."""
        if not self.viewer.basket:
            self.say("the basket is empty: b puts a sample into it")
            return
        n = len(self.viewer.basket)
        heading = f"Exclude {n} {'sample' if n == 1 else 'samples'}: the next version is without them"
        self.app.push_screen(Asking(heading, {"reason": "", "by": ""}), self._exclude)

    def _exclude(self, given: Mapping[str, str] | None) -> None:
        if given is not None:
            self.say("excluding …")
            self._excluded(given["reason"], given["by"])

    @work(thread=True)
    def _excluded(self, reason: str, by: str) -> None:
        try:
            made = self.viewer.exclude(reason=reason, by=by, page=self.command())
        except PenstockError as error:
            self.from_thread(self.say, f"{type(error).__name__}: {error}")
            return
        self.from_thread(self.say, f"excluded: {', '.join(made)} is without them")

    def action_explain(self) -> None:
        """Show the way back of the chosen sample."""
        lines = self.explained()
        if lines:
            self.viewer.read(lines)
        else:
            self.say("no sample is chosen")

    def action_keys(self) -> None:
        """Show all keys."""
        self.app.push_screen(keys_dialog())


class PlaceList(OptionList):
    """Lines of text that lead to pages: Tab comes to them, arrows walk them, Enter opens."""

    def __init__(self, rows: Iterable[tuple[str, Place | None]]) -> None:
        """rows: (text, its page; None for a line that is only read)."""
        self._places: list[Place | None] = []
        options = []
        for text, place in rows:
            self._places.append(place)
            options.append(Option(terminal_text(text), disabled=place is None))
        super().__init__(*options, markup=False)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Open the page."""
        place = self._places[event.option_index]
        if place is not None:
            cast("ViewerApp", self.app).open(place)


def line(text: str, *, bad: bool = False) -> Static:
    """Return one line of text that ends in … where it is too long."""
    return Static(terminal_text(text), classes="line bad" if bad else "line", markup=False)


def cut_lines(lines: Sequence[str], most: int) -> list[Static]:
    """Return the first lines of a value; the last one says how many more there are."""
    shown = [line(text) for text in lines[:most]]
    if len(lines) > most:
        shown.append(
            line(f"and {len(lines) - most:,} more lines; t shows a stage alone, and penstock batch all")
        )
    return shown


def heading(text: str) -> Static:
    """Return a heading."""
    return Static(terminal_text(text), classes="heading", markup=False)


def paragraph(text: str) -> Static:
    """Return text over as many lines as it takes."""
    return Static(terminal_text(text), markup=False)
