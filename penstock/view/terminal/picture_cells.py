"""Pictures in a terminal: by its own protocol where it has one, else two pixels, or one of five shades, a cell."""

import io
import os
import sys
from typing import Any

import numpy as np
from PIL import Image
from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from ..kinds.kind import Media
from .terminal_answers import color_registers, has_placeholders

MODES = ("auto", "kitty", "sixel", "halves", "shades", "none")
"""Ways to draw a picture. kitty, sixel: protocols; halves: two coloured pixels a cell; shades: without colours."""

CELL_PX = 10
"""Pixels of a cell's width that a protocol may draw; a cell is twice as high as wide."""
_SHADES = " ░▒▓█"


def chosen_mode(mode: str, *, no_color: bool) -> str:
    """Return the mode that `auto` stands for here; others stay. Asks the terminal, so before Textual reads its keys.

    Inside tmux and screen it is `halves`: pictures by a protocol want them configured. So it is where the terminal
    knows kitty's protocol, but is not known to draw pictures where they are put.
    """
    if mode in ("kitty", "sixel") and sys.__stdout__ is not None:
        _ask_ahead(mode)
    if mode != "auto":
        return mode
    if no_color:
        return "shades"
    inside = "TMUX" in os.environ or os.environ.get("TERM", "").startswith(("tmux", "screen"))
    if inside or sys.__stdout__ is None or not sys.__stdout__.isatty():
        return "halves"
    from textual_image import renderable

    known = {renderable.TGPImage: "kitty", renderable.SixelImage: "sixel"}
    found = known.get(renderable.Image, "halves")
    if found == "kitty" and not has_placeholders():
        return "halves"
    _ask_ahead(found)
    return found


def _ask_ahead(mode: str) -> None:
    """Ask the terminal all that a mode asks: later its answers would be read as keys."""
    if mode in ("kitty", "sixel"):
        import textual_image.widget  # noqa: F401
    if mode == "sixel":
        color_registers()


def pixels_asked(mode: str, columns: int, rows: int) -> int:
    """Return the longer side in pixels of a picture that fills so many cells."""
    return max(columns, 2 * rows) * (CELL_PX if mode in ("kitty", "sixel") else 1)


def picture_widget(media: Media, mode: str, columns: int, rows: int) -> Widget:
    """Return a widget that shows a PNG or JPEG in at most so many cells, its shape kept."""
    picture = Image.open(io.BytesIO(media.data), formats=("PNG", "JPEG")).convert("RGB")
    scale = min(columns / picture.width, 2 * rows / picture.height)
    width = max(1, round(picture.width * scale))
    height = max(1, round(picture.height * scale / 2))
    widget: Widget
    if mode in ("kitty", "sixel"):
        widget = _drawn_by_protocol(mode, picture)
    else:
        widget = CellPicture(_strips(picture, width, height, shades=mode == "shades"))
    widget.styles.width, widget.styles.height = width, height
    return widget


def _drawn_by_protocol(mode: str, picture: Image.Image) -> Widget:
    if mode == "kitty":
        from textual_image.widget import TGPImage

        return TGPImage(picture)
    from .sixel_picture import SixelPicture

    return SixelPicture(picture)


class CellPicture(Widget):
    """A picture drawn with letters."""

    def __init__(self, strips: list[Strip]) -> None:
        """Take the lines of the picture."""
        super().__init__()
        self._picture = strips

    def render_line(self, y: int) -> Strip:
        """Return a line of cells."""
        if y < len(self._picture):
            return self._picture[y]
        return Strip.blank(self.size.width, Style())


def _strips(picture: Image.Image, width: int, height: int, *, shades: bool) -> list[Strip]:
    if shades:
        gray = np.asarray(picture.convert("L").resize((width, height), Image.Resampling.BOX))
        places = (gray.astype(int) * len(_SHADES)) // 256
        return [Strip([Segment("".join(_SHADES[at] for at in row), Style())]) for row in places]
    pixels: Any = np.asarray(picture.resize((width, 2 * height), Image.Resampling.BOX)).tolist()
    return [
        Strip(
            [
                Segment("▀", Style(color=Color.from_rgb(*upper), bgcolor=Color.from_rgb(*lower)))
                for upper, lower in zip(pixels[2 * y], pixels[2 * y + 1], strict=True)
            ]
        )
        for y in range(height)
    ]
