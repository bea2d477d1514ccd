"""Cards in a grid: a picture and a few lines each, walked through with the arrow keys."""

from collections.abc import Sequence
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.containers import Grid, Vertical
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static

from ...text import terminal_text

CARD_COLUMNS, CARD_ROWS = 19, 10
"""Cells of a card."""
PICTURE_ROWS = 5
"""Rows of a card's picture."""


class Card(Vertical, can_focus=True):
    """A slot or a sample."""

    DEFAULT_CSS = f"""
    Card {{ width: 1fr; height: {CARD_ROWS}; padding: 0 1 0 0; }}
    Card:focus {{ background: $boost; text-style: reverse; }}
    Card Static {{ height: 1; text-wrap: nowrap; text-overflow: ellipsis; }}
    """
    BINDINGS: ClassVar[list[Any]] = [("enter", "open_it", "open")]

    class Opened(Message):
        """A card was opened."""

        def __init__(self, card: "Card") -> None:
            super().__init__()
            self.card = card

    def __init__(
        self, number: int, version: str, key: str, lines: Sequence[str], picture: Widget | None
    ) -> None:
        """Take the number of a slot or sample, its version and key, and lines; the first stands above the picture."""
        super().__init__()
        self.number, self.version, self.key = number, version, key
        self._lines, self._picture_widget = [terminal_text(one) for one in lines], picture

    def compose(self) -> ComposeResult:
        """Yield the first line, the picture, and as many lines as fit."""
        yield Static(self._lines[0], markup=False)
        rows = CARD_ROWS - 2
        if self._picture_widget is not None:
            yield self._picture_widget
            rows -= PICTURE_ROWS
        for line in self._lines[1 : 1 + rows]:
            yield Static(line, markup=False)

    def action_open_it(self) -> None:
        """Open the page of this card."""
        self.post_message(self.Opened(self))

    def on_click(self) -> None:
        """Open the page of this card."""
        self.action_open_it()


class CardGrid(Grid):
    """Cards, as many beside one another as fit."""

    class Beyond(Message):
        """The cursor was moved out of the grid."""

        def __init__(self, by: int) -> None:
            """by: below 0 for before the first card."""
            super().__init__()
            self.by = by

    DEFAULT_CSS = "CardGrid { height: auto; grid-gutter: 0; }"
    BINDINGS: ClassVar[list[Any]] = [
        ("left", "walk(-1)"),
        ("right", "walk(1)"),
        ("up", "walk_rows(-1)"),
        ("down", "walk_rows(1)"),
    ]

    def __init__(self, cards: Sequence[Card], columns: int) -> None:
        """columns: cells of the screen's width."""
        super().__init__(*cards)
        self._across = max(1, columns // CARD_COLUMNS)
        self.styles.grid_size_columns = self._across
        self.styles.grid_rows = (CARD_ROWS,)

    @property
    def cards(self) -> list[Card]:
        """The cards, in their order."""
        return list(self.query(Card))

    def action_walk(self, by: int) -> None:
        """Move the cursor by cards; from the first and the last one out of the grid."""
        cards = self.cards
        now = cards.index(self.screen.focused) if self.screen.focused in cards else 0
        if now + by < 0 or (now + by >= len(cards) and now == len(cards) - 1):
            self.post_message(self.Beyond(by))
            return
        self.screen.set_focus(cards[min(now + by, len(cards) - 1)])  # at once: the next key may open it

    def action_walk_rows(self, by: int) -> None:
        """Move the cursor by rows of cards."""
        self.action_walk(by * self._across)
