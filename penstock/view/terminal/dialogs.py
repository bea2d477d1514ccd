"""Dialogs over a page: questions, the keys, and texts to read."""

from collections.abc import Sequence
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static

KEYS = (
    ("g", "go to a step"),
    ("[ ]", "step before, step after"),
    ("{ }", "rank before, rank after"),
    ("arrows", "slots, samples"),
    ("Enter", "open the marked one"),
    ("t", "all stages, trained, decoded, stored, raw"),
    (", .", "frame before, frame after"),
    ("/", "filter"),
    ("b", "into the basket, or out of it"),
    ("x", "exclude the basket"),
    ("e", "explain: the way back to the raw object"),
    ("y", "copy as a command"),
    ("a", "hold a run against another"),
    ("w", "look at several steps of a run together"),
    ("u", "up one page"),
    ("q", "leave"),
)


class Asking(ModalScreen[dict[str, str] | None]):
    """A question with a line of input per answer. Enter in the last gives the answers, Escape gives None."""

    DEFAULT_CSS = """
    Asking { align: center middle; }
    Asking > Vertical { width: 76; height: auto; max-height: 22; border: round $primary; padding: 0 1; }
    Asking > Vertical { background: $surface; }
    Asking Input { height: 3; }
    """
    BINDINGS: ClassVar[list[Any]] = [Binding("escape", "leave", "leave")]

    def __init__(self, heading: str, given: dict[str, str]) -> None:
        """given: name of an answer -> its text to begin with."""
        super().__init__()
        self._heading, self._given = heading, given

    def compose(self) -> ComposeResult:
        """Yield the heading and the lines."""
        with Vertical():
            yield Static(self._heading, markup=False)
            for name, text in self._given.items():
                yield Label(name, markup=False)
                yield Input(text, name=name)

    def on_mount(self) -> None:
        """Put the cursor into the first line."""
        self.query(Input).first().focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Go to the next line, or give the answers."""
        lines = list(self.query(Input))
        at = lines.index(event.input)
        if at + 1 < len(lines):
            lines[at + 1].focus()
            return
        self.dismiss({str(one.name): one.value for one in lines})

    def action_leave(self) -> None:
        """Give no answer."""
        self.dismiss(None)


class Reading(ModalScreen[None]):
    """A text to read; any of its keys closes it."""

    DEFAULT_CSS = """
    Reading { align: center middle; }
    Reading > VerticalScroll { width: 78; height: auto; max-height: 22; border: round $primary; padding: 0 1; }
    Reading > VerticalScroll { background: $surface; }
    """
    BINDINGS: ClassVar[list[Any]] = [
        Binding(key, "leave", "close") for key in ("escape", "enter", "q", "u", "e", "question_mark")
    ]

    def __init__(self, lines: Sequence[str]) -> None:
        """Take cleaned lines."""
        super().__init__()
        self._lines = lines

    def compose(self) -> ComposeResult:
        """Yield the text."""
        with VerticalScroll():
            yield Static("\n".join(self._lines), markup=False)

    def action_leave(self) -> None:
        """Close the dialog."""
        self.dismiss(None)


def keys_dialog() -> Reading:
    """Return the dialog with all keys."""
    return Reading([f"{key:<8} {text}" for key, text in KEYS])
