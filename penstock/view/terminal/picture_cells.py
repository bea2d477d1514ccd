"""Images in a terminal: by its own protocol, or as two pixels or one of five shades per cell."""

import io
import os
import re
import sys
from functools import cache
from select import select
from typing import Any

import numpy as np
from PIL import Image
from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from ..kinds.kind import Media

WAIT_S = 1.0
"""Seconds without a byte until the terminal counts as silent."""
_ATTRIBUTES = re.compile(rb"\x1b\[\?[\d;]*c")
"""Answer to the query that every terminal supports."""
_PLACEHOLDERS = {"kitty": (0, 28), "ghostty": (1, 0)}
"""Terminal -> first version with images at Unicode placeholders."""
MODES = ("auto", "kitty", "sixel", "halves", "shades", "none")
"""kitty, sixel: terminal protocols; halves: two coloured pixels per cell; shades: no colours."""
CELL_PX = 10
"""A cell's width in pixels, for the protocols; it is twice as high."""
_SHADES = " ░▒▓█"


def has_placeholders() -> bool:
    """Return whether kitty images at Unicode placeholders work, as textual-image requires."""
    match = re.search(r">\|(\w+)[ (](\d+)\.(\d+)", _answer("\x1b[>q"))
    if match is None:
        return False
    first = _PLACEHOLDERS.get(match[1].lower())
    return first is not None and (int(match[2]), int(match[3])) >= first


@cache
def color_registers() -> int | None:
    """Return a sixel image's number of colours, if known. Queries the terminal once."""
    match = re.search(r"\[\?1;0;(\d{1,9})S", _answer("\x1b[?1;1;0S"))
    if match:
        return int(match[1])
    return None


def _answer(query: str) -> str:
    """Return the terminal's answer, or "". Call before Textual reads keys, or it would take the answer."""
    import termios  # only on POSIX
    import tty

    stdin = sys.__stdin__
    stdout = sys.__stdout__
    if stdin is None or stdout is None or not (stdin.isatty() and stdout.isatty()):
        return ""
    file = stdin.fileno()
    before = termios.tcgetattr(file)
    # Without it the answer arrives only after a line's end, and appears on the screen.
    tty.setcbreak(file, termios.TCSANOW)
    try:
        # Every terminal answers the second query, so its answer ends the wait for an unknown first one.
        stdout.write(f"{query}\x1b[c")
        stdout.flush()
        return _read(file)
    finally:
        termios.tcsetattr(file, termios.TCSANOW, before)


def _read(file: int) -> str:
    data = b""
    while select([file], [], [], WAIT_S)[0] and (chunk := os.read(file, 4096)):
        data += chunk
        if end := _ATTRIBUTES.search(data):
            return data[: end.start()].decode("ascii", "replace")
    return ""


def choose_mode(mode: str, *, no_color: bool) -> str:
    """Return the mode, resolving `auto`. Call before Textual reads keys.

    `auto` selects `halves` inside tmux or screen, and if kitty images could be misplaced.
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
    drawn = known.get(renderable.Image, "halves")
    if drawn == "kitty" and not has_placeholders():
        return "halves"
    _ask_ahead(drawn)
    return drawn


def _ask_ahead(mode: str) -> None:
    # Later, Textual would read the answers as keys.
    if mode in ("kitty", "sixel"):
        import textual_image.widget  # noqa: F401
    if mode == "sixel":
        color_registers()


def pixels_needed(mode: str, columns: int, rows: int) -> int:
    """Return the longer side of an image in these cells, in pixels."""
    return max(columns, 2 * rows) * (CELL_PX if mode in ("kitty", "sixel") else 1)


def picture_widget(media: Media, mode: str, columns: int, rows: int) -> Widget:
    """Return a widget for a PNG or JPEG in at most these cells."""
    image = Image.open(io.BytesIO(media.data), formats=("PNG", "JPEG")).convert("RGB")
    scale = min(columns / image.width, 2 * rows / image.height)
    # A cell is twice as high as wide, hence half the height.
    width = max(1, round(image.width * scale))
    height = max(1, round(image.height * scale / 2))
    widget: Widget
    if mode in ("kitty", "sixel"):
        widget = _protocol_widget(mode, image)
    else:
        widget = CellPicture(_strips(image, width, height, shades=mode == "shades"))
    widget.styles.width = width
    widget.styles.height = height
    return widget


def _protocol_widget(mode: str, image: Image.Image) -> Widget:
    if mode == "kitty":
        from textual_image.widget import TGPImage

        return TGPImage(image)
    from .sixel_picture import SixelPicture

    return SixelPicture(image, color_registers())


class CellPicture(Widget):
    """An image drawn with characters."""

    def __init__(self, strips: list[Strip]) -> None:
        super().__init__()
        self._picture = strips

    def render_line(self, y: int) -> Strip:
        if y < len(self._picture):
            return self._picture[y]
        return Strip.blank(self.size.width, Style())


def _strips(image: Image.Image, width: int, height: int, *, shades: bool) -> list[Strip]:
    if shades:
        # uint8 [height, width]: a level per cell.
        gray = np.asarray(image.convert("L").resize((width, height), Image.Resampling.BOX))
        places = (gray.astype(int) * len(_SHADES)) // 256
        return [Strip([Segment("".join(_SHADES[at] for at in row), Style())]) for row in places]
    pixels: Any = np.asarray(image.resize((width, 2 * height), Image.Resampling.BOX)).tolist()
    return [
        Strip(
            [
                # The upper half block: its colour is the upper pixel, the background the lower one.
                Segment("▀", Style(color=Color.from_rgb(*upper), bgcolor=Color.from_rgb(*lower)))
                for upper, lower in zip(pixels[2 * y], pixels[2 * y + 1], strict=True)
            ]
        )
        for y in range(height)
    ]
