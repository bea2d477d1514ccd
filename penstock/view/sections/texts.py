"""Texts of sections: pieces with a link, a tone or a style."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Tone = Literal["", "good", "odd", "bad", "quiet"]
"""Colour of a text that is plain without it."""
TextStyle = Literal["", "strong", "code", "tag"]
"""Type of a text."""


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text in a line or a cell."""

    text: str
    page: str | None = None
    """Address of the page that it opens; "" is the first page, None no page."""
    tone: Tone = ""
    style: TextStyle = ""
    colour: int = 0
    """Number of the category whose dot stands before it; 0 for none."""
    url: str = ""
    """Address outside the viewer, such as a run's in Dagster, or ""."""
    kind = "span"


@dataclass(frozen=True, slots=True)
class ShareBar:
    """A share of a whole, as a bar and as text."""

    share: float
    """From 0 to 1."""
    text: str
    is_main: bool = False
    """True for the bar that the reader looks for."""
    second: float | None = None
    """Share of a bar below it, in the colour of the second category, or None."""
    kind = "share"


@dataclass(frozen=True, slots=True)
class SparkPiece:
    """A small line."""

    points: str
    """Points of an SVG polyline, "x,y x,y", in the size of `polyline.py`."""
    ticks: tuple[float, ...]
    """Positions of values that are not finite."""
    text: str
    """Description for a reader who does not see it."""
    kind = "spark"


Piece: TypeAlias = TextPiece | ShareBar | SparkPiece
Text: TypeAlias = str | Piece | tuple[str | Piece, ...]
"""A line or a cell. Pieces are separated by a blank."""


def link(text: str, page: str, style: TextStyle = "") -> TextPiece:
    """Return a text that opens a page."""
    return TextPiece(text, page, style=style)


def outside(text: str, url: str) -> TextPiece:
    """Return a text that opens a page outside the viewer."""
    return TextPiece(text, style="code", url=url)


def quiet(text: str) -> TextPiece:
    return TextPiece(text, tone="quiet")


def strong(text: str) -> TextPiece:
    return TextPiece(text, style="strong")


def code(text: str) -> TextPiece:
    return TextPiece(text, style="code")


def tag(text: str, tone: Tone = "") -> TextPiece:
    return TextPiece(
        text,
        tone=tone,
        style="tag",
    )


def pieces(text: Text) -> tuple[str | Piece, ...]:
    """Return a text's pieces."""
    if isinstance(text, tuple):
        return text
    return (text,)


def piece_text(piece: str | Piece) -> str:
    if isinstance(piece, str):
        return piece
    return piece.text


def plain_text(text: Text) -> str:
    """Return a text without links and styles."""
    words = map(piece_text, pieces(text))
    return " ".join(filter(None, words))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLink:
    """A page that a key opens."""

    key: str
    """Key as a browser names it, such as "[" or "→"."""
    name: str
    """Such as "previous step"."""
    page: str
    text: str = ""
    """Text of its button; "" for a key without a button."""


def neighbour_links(noun: str, keys: str, before: str, after: str) -> tuple[KeyLink, ...]:
    """Return the links to the pages before and after this one. keys: two. before, after: addresses, or ""."""
    links = (
        KeyLink(key=keys[0], name=f"previous {noun}", page=before, text="\u2039"),
        KeyLink(key=keys[1], name=f"next {noun}", page=after, text="\u203a"),
    )
    return tuple(one for one in links if one.page)
