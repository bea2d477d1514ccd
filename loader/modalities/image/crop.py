"""The kept part of an image and its size, between upright and stored pixels."""

from dataclasses import dataclass
from typing import NamedTuple

from ...errors import DecodeFailed
from .orientation import Turn

Size = tuple[int, int]
"""(height, width) in px."""

Box = tuple[int, int, int, int]
"""(top, left, height, width) in px."""


class Layout(NamedTuple):
    """The cut and scaling of one image, in the stored orientation."""

    source: Box
    """Part that is cut out of the image."""
    scaled: Size
    """Size that the part is scaled to."""
    kept: Box
    """Part of the scaled image that is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framing:
    """The cut and scaling of every image of a clip, upright."""

    size: Size | None = None
    """(height, width) of the result in px; None for the size there is."""
    crop: str | Box | None = None
    """None stretches the image to `size`; a Box is cut first; "center" and "random" cover `size` and cut the rest."""
    place: tuple[float, float] | None = None
    """Position of a random crop, from (0, 0) to just under 1; None: the middle."""

    def layout(self, stored: Size, turn: Turn) -> Layout:
        """Return the layout for an image of `stored` px before `turn`. Raises: DecodeFailed (a box outside)."""
        whole = stored[::-1] if turn.transpose else stored
        source: Box = (0, 0, *whole)
        scaled = kept_size = self.size or whole
        kept_at = (0, 0)
        if isinstance(self.crop, tuple):
            top, left, height, width = self.crop
            if top + height > whole[0] or left + width > whole[1]:
                raise DecodeFailed(
                    f"video: crop={self.crop} (top, left, height, width) reaches out of a frame of {whole[0]} x "
                    f"{whole[1]} px (height x width)"
                )
            if self.size is None:
                kept_at, kept_size = (top, left), (height, width)
            else:
                source = self.crop
        elif self.crop is not None and self.size is not None:
            scaled = covering(whole, self.size)
            slack = (scaled[0] - self.size[0], scaled[1] - self.size[1])
            if self.crop == "random" and self.place is not None:
                kept_at = (int(self.place[0] * (slack[0] + 1)), int(self.place[1] * (slack[1] + 1)))
            else:
                kept_at = (slack[0] // 2, slack[1] // 2)
        return Layout(
            stored_box(source, whole, turn),
            scaled[::-1] if turn.transpose else scaled,
            stored_box((*kept_at, *kept_size), scaled, turn),
        )


def covering(whole: Size, size: Size) -> Size:
    """Return the size of an image of `whole`'s shape that just covers `size`; half px round up."""
    (height, width), (to_height, to_width) = whole, size
    if to_height * width >= to_width * height:
        return to_height, max(to_width, (2 * width * to_height + height) // (2 * height))
    return max(to_height, (2 * height * to_width + width) // (2 * width)), to_width


def stored_box(box: Box, whole: Size, turn: Turn) -> Box:
    """Return an upright image's box in the stored one. whole: upright size."""
    top, left, height, width = box
    if turn.flip_x:
        left = whole[1] - left - width
    if turn.flip_y:
        top = whole[0] - top - height
    return (left, top, width, height) if turn.transpose else (top, left, height, width)
