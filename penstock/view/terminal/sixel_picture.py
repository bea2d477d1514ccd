"""A sixel image that selects each colour after defining it, as xterm requires. Importing queries the terminal."""

import re
from typing import Any

from PIL import Image
from textual.app import ComposeResult
from textual_image.widget import SixelImage, SixelOptions
from textual_image.widget import sixel as library

MOST_COLORS = 256
"""Most colours per image, limited by textual-image."""
_DEFINED = re.compile(r"#(\d+);2;\d+;\d+;\d+")


class SixelPicture(SixelImage, Renderable=SixelImage._Renderable):
    """An image with as many colours as the terminal supports."""

    def __init__(self, image: Image.Image, colors: int | None) -> None:
        """image: RGB. colors: the terminal's; None if unknown."""
        super().__init__(image, sixel_options=SixelOptions(colors=min(MOST_COLORS, colors or MOST_COLORS)))

    def compose(self) -> ComposeResult:
        yield _Selecting(self.image, self._sixel_options)


class _Selecting(library._ImageSixelImpl, can_focus=False, inherit_css=False):
    def _image_to_sixels(self, *arguments: Any, **options: Any) -> str:
        return _DEFINED.sub(r"\g<0>#\1", super()._image_to_sixels(*arguments, **options))
