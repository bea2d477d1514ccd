"""Cards in a grid, and dialogs for input, keys and text."""

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Grid, Vertical, VerticalScroll
from textual.message import Message
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input, Label, Static

from ...text import terminal_text

CARD_COLUMNS = 19
CARD_ROWS = 10
"""A card's width and height, in cells."""
PICTURE_ROWS = 5
"""Rows of a card's image."""
KEYS = (
    ("g", "go to a step"),
    ("[ ]", "previous step, next step"),
    ("{ }", "previous rank, next rank"),
    ("arrows", "slots, samples"),
    ("Enter", "open the selected one"),
    ("t", "one stage only, or all"),
    (", .", "previous frame, next frame"),
    ("/", "filter"),
    ("f", "facets of a version"),
    ("b", "add to or remove from the basket"),
    ("x", "exclude the basket"),
    ("e", "explain: provenance back to the raw object"),
    ("y", "copy as a command"),
    ("a", "compare with another run"),
    ("w", "view several steps of a run together"),
    ("u", "up one page"),
    ("q", "leave"),
)


class GridCard(Vertical, can_focus=True):
    """A slot's or sample's card."""

    DEFAULT_CSS = f"""
    GridCard {{ width: 1fr; height: {CARD_ROWS}; padding: 0 1 0 0; }}
    GridCard:focus {{ background: $boost; text-style: reverse; }}
    GridCard Static {{ height: 1; text-wrap: nowrap; text-overflow: ellipsis; }}
    """
    BINDINGS: ClassVar[list[Any]] = [("enter", "open_it", "open")]

    class Opened(Message):
        """A card was opened."""

        def __init__(self, card: "GridCard") -> None:
            super().__init__()
            self.card = card

    def __init__(
        self, number: int, version: str, key: str, lines: Sequence[str], image: Widget | None
    ) -> None:
        """Set a slot's or sample's number, version and key, text, and the image below its first line."""
        super().__init__()
        self.number = number
        self.version = version
        self.key = key
        self._lines = [terminal_text(one) for one in lines]
        self._image = image

    def compose(self) -> ComposeResult:
        yield Static(self._lines[0], markup=False)
        rows = CARD_ROWS - 2
        if self._image is not None:
            yield self._image
            rows -= PICTURE_ROWS
        for line in self._lines[1 : 1 + rows]:
            yield Static(line, markup=False)

    def action_open_it(self) -> None:
        self.post_message(self.Opened(self))

    def on_click(self) -> None:
        self.action_open_it()


class CardGrid(Grid):
    """A grid, as many cards per row as fit."""

    class Beyond(Message):
        """The cursor left the grid."""

        def __init__(self, by: int) -> None:
            """by: attempted movement, negative at the first card."""
            super().__init__()
            self.by = by

    DEFAULT_CSS = "CardGrid { height: auto; grid-gutter: 0; }"
    BINDINGS: ClassVar[list[Any]] = [
        ("left", "walk(-1)"),
        ("right", "walk(1)"),
        ("up", "walk_rows(-1)"),
        ("down", "walk_rows(1)"),
    ]

    def __init__(self, cards: Sequence[GridCard], columns: int) -> None:
        """columns: screen width in cells."""
        super().__init__(*cards)
        self._across = max(1, columns // CARD_COLUMNS)
        self.styles.grid_size_columns = self._across
        self.styles.grid_rows = (CARD_ROWS,)

    @property
    def cards(self) -> list[GridCard]:
        return list(self.query(GridCard))

    def action_walk(self, by: int) -> None:
        """Move by this many cards; beyond either end, post `Beyond`."""
        cards = self.cards
        now = 0
        if self.screen.focused in cards:
            now = cards.index(self.screen.focused)
        if now + by < 0 or (now + by >= len(cards) and now == len(cards) - 1):
            self.post_message(self.Beyond(by))
            return
        self.screen.set_focus(
            cards[min(now + by, len(cards) - 1)]
        )  # immediately, because the next key may open it

    def action_walk_rows(self, by: int) -> None:
        self.action_walk(by * self._across)


class InputDialog(ModalScreen[dict[str, str] | None]):
    """One input line per answer. Enter in the last returns the answers; Escape returns None."""

    DEFAULT_CSS = """
    InputDialog { align: center middle; }
    InputDialog > Vertical { width: 76; height: auto; max-height: 22; border: round $primary; padding: 0 1; }
    InputDialog > Vertical { background: $surface; }
    InputDialog Input { height: 3; }
    """
    # With priority, because characters that follow in the same burst would otherwise reach the focused line first.
    BINDINGS: ClassVar[list[Any]] = [
        Binding("escape", "leave", "leave", priority=True),
        Binding("tab", "next_line(1)", "next line", priority=True),
        Binding("shift+tab", "next_line(-1)", "previous line", priority=True),
        Binding("enter", "enter", "next line", priority=True),
    ]

    def __init__(self, heading: str, initial: dict[str, str]) -> None:
        """Set the heading, and each answer's initial text by name."""
        super().__init__()
        self._heading = heading
        self._initial = initial

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(self._heading, markup=False)
            for name, text in self._initial.items():
                yield Label(name, markup=False)
                yield Input(text, name=name)

    def on_mount(self) -> None:
        self.query(Input).first().focus()

    def action_next_line(self, by: int) -> None:
        lines = self._lines
        at = lines.index(self.focused) if self.focused in lines else -by
        self.set_focus(lines[(at + by) % len(lines)])

    def action_enter(self) -> None:
        """Go to the next line, or return the answers."""
        if self.focused is not self._lines[-1]:
            self.action_next_line(1)
        else:
            self.run_worker(self._answer())

    async def _answer(self) -> None:
        """Return the answers after all pending characters."""
        for field in self._lines:
            processed = asyncio.Event()
            field.call_later(processed.set)
            await processed.wait()
        self.dismiss({str(field.name): field.value for field in self._lines})

    @property
    def _lines(self) -> list[Input]:
        return list(self.query(Input))

    def action_leave(self) -> None:
        self.dismiss(None)


class TextDialog(ModalScreen[None]):
    """Text, closed by any key in BINDINGS."""

    DEFAULT_CSS = """
    TextDialog { align: center middle; }
    TextDialog > VerticalScroll { width: 78; height: auto; max-height: 22; border: round $primary; padding: 0 1; }
    TextDialog > VerticalScroll { background: $surface; }
    """
    BINDINGS: ClassVar[list[Any]] = [
        Binding(key, "leave", "close") for key in ("escape", "enter", "q", "u", "e", "question_mark")
    ]

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__()
        self._lines = lines

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(terminal_text("\n".join(self._lines)), markup=False)

    def action_leave(self) -> None:
        self.dismiss(None)


def keys_dialog() -> TextDialog:
    return TextDialog([f"{key:<8} {text}" for key, text in KEYS])
