"""Dialogs over a page: questions, the keys, and texts to read."""

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static

from ...text import terminal_text

KEYS = (
    ("g", "go to a step"),
    ("[ ]", "step before, step after"),
    ("{ }", "rank before, rank after"),
    ("arrows", "slots, samples"),
    ("Enter", "open the marked one"),
    ("t", "one stage alone, or all"),
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
    # At once, before the letters behind them in the same burst are handed to the line that has the cursor.
    BINDINGS: ClassVar[list[Any]] = [
        Binding("escape", "leave", "leave", priority=True),
        Binding("tab", "next_line(1)", "next line", priority=True),
        Binding("shift+tab", "next_line(-1)", "line before", priority=True),
        Binding("enter", "enter", "next line", priority=True),
    ]

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

    def action_next_line(self, by: int) -> None:
        """Move the cursor to another line, round and round."""
        lines = self._lines
        at = lines.index(self.focused) if self.focused in lines else -by
        self.set_focus(lines[(at + by) % len(lines)])

    def action_enter(self) -> None:
        """Move the cursor to the next line; in the last one give the answers."""
        if self.focused is not self._lines[-1]:
            self.action_next_line(1)
        else:
            self.run_worker(self._answer())

    async def _answer(self) -> None:
        """Give the answers, once each line has taken in the letters that it was handed."""
        for one in self._lines:
            taken = asyncio.Event()
            one.call_later(taken.set)
            await taken.wait()
        self.dismiss({str(one.name): one.value for one in self._lines})

    @property
    def _lines(self) -> list[Input]:
        return list(self.query(Input))

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
        """Take lines."""
        super().__init__()
        self._lines = lines

    def compose(self) -> ComposeResult:
        """Yield the text."""
        with VerticalScroll():
            yield Static(terminal_text("\n".join(self._lines)), markup=False)

    def action_leave(self) -> None:
        """Close the dialog."""
        self.dismiss(None)


def keys_dialog() -> Reading:
    """Return the dialog with all keys."""
    return Reading([f"{key:<8} {text}" for key, text in KEYS])
