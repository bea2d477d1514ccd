"""A sixel picture whose colours are selected after they are defined: xterm does not take the one for the other.

Importing this module asks the terminal (`textual_image.widget`).
"""

import re
from typing import Any

from PIL import Image
from textual.app import ComposeResult
from textual_image.widget import SixelImage, SixelOptions
from textual_image.widget import sixel as library

from .terminal_answers import color_registers

MOST_COLORS = 256
"""Colours of a picture; textual-image makes no more."""
_DEFINED = re.compile(r"#(\d+);2;\d+;\d+;\d+")


class SixelPicture(SixelImage, Renderable=SixelImage._Renderable):
    """A picture in as many colours as the terminal has for it."""

    def __init__(self, picture: Image.Image) -> None:
        """Take an RGB picture."""
        colors = min(MOST_COLORS, color_registers() or MOST_COLORS)
        super().__init__(picture, sixel_options=SixelOptions(colors=colors))

    def compose(self) -> ComposeResult:
        """Give the part that writes the picture."""
        yield _Selecting(self.image, self._sixel_options)


class _Selecting(library._ImageSixelImpl, can_focus=False, inherit_css=False):
    def _image_to_sixels(self, *given: Any, **named: Any) -> str:
        return _DEFINED.sub(r"\g<0>#\1", super()._image_to_sixels(*given, **named))
