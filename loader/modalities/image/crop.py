"""Compute how to turn images upright (EXIF, XMP), cut and scale them; map upright pixels to stored ones."""

import re
import struct
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from ...errors import DecodeFailed


class PixelTurn(NamedTuple):
    """A turn of [..., H, W, C], in the order of the fields."""

    transpose: bool
    """True swaps H and W."""
    flip_y: bool
    """True reverses the rows."""
    flip_x: bool
    """True reverses the columns."""


UPRIGHT = PixelTurn(False, False, False)
FLIPPED = PixelTurn(False, False, True)

# EXIF orientation -> turn that makes the stored pixels upright.
EXIF_TURNS = {
    1: UPRIGHT,
    2: FLIPPED,
    3: PixelTurn(False, True, True),
    4: PixelTurn(False, True, False),
    5: PixelTurn(True, False, False),
    6: PixelTurn(True, False, True),  # a quarter turn clockwise
    7: PixelTurn(True, True, True),
    8: PixelTurn(True, True, False),  # a quarter turn anticlockwise
}

_ORIENTATION_TAG = 0x0112
_XMP = re.compile(rb"tiff:Orientation(?:\s*=\s*[\"']|>)\s*([1-8])")


def apply_turn(pixels: np.ndarray, turn: PixelTurn) -> np.ndarray:
    """Return uint8 or uint16 [..., H, W, C], C-contiguous, after `turn`; `pixels` itself if unchanged."""
    if turn == UPRIGHT:
        return pixels
    n_channels = pixels.shape[-1]
    pixel_nbytes = n_channels * pixels.itemsize
    whole = pixels.view(f"V{pixel_nbytes}")[..., 0]  # one item per pixel moves twice as fast as C bytes
    if turn.transpose:
        whole = np.swapaxes(whole, -2, -1)
    if turn.flip_y:
        whole = whole[..., ::-1, :]
    if turn.flip_x:
        whole = whole[..., ::-1]
    whole = np.ascontiguousarray(whole)
    return whole.view(pixels.dtype).reshape(*whole.shape, n_channels)


def metadata_turn(exif: bytes | None, xmp: bytes | None) -> PixelTurn:
    """Return the turn given by an image's metadata: EXIF first, then XMP. Malformed metadata is ignored."""
    orientation = (exif_orientation(exif) if exif else 0) or (xmp_orientation(xmp) if xmp else 0)
    return EXIF_TURNS.get(orientation, UPRIGHT)


def exif_orientation(exif: bytes) -> int:
    """Return tag 0x0112 of an EXIF block's first directory (IFD0), with or without its `Exif` header."""
    if exif[:6] == b"Exif\0\0":
        tiff = exif[6:]
    else:
        tiff = exif
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if order is None:
        return 0
    try:
        (directory,) = struct.unpack_from(order + "I", tiff, 4)
        (n_entries,) = struct.unpack_from(order + "H", tiff, directory)
        for entry in range(directory + 2, directory + 2 + 12 * n_entries, 12):
            tag, kind, count = struct.unpack_from(order + "HHI", tiff, entry)
            if tag == _ORIENTATION_TAG and count == 1 and kind in (3, 4):
                letter = "I"
                if kind == 3:
                    letter = "H"
                (value,) = struct.unpack_from(order + letter, tiff, entry + 8)
                if value not in EXIF_TURNS:
                    return 0
                return int(value)
    except struct.error:
        return 0
    return 0


def xmp_orientation(xmp: bytes) -> int:
    """Return `tiff:Orientation` of an XMP packet: 1..8, or 0."""
    match = _XMP.search(xmp)
    if match:
        return int(match[1])
    return 0


Size = tuple[int, int]
"""(height, width) in px."""

Bits = Literal[8, 16]
"""Bits of each sample of the result."""
BITS = (8, 16)

Box = tuple[int, int, int, int]
"""(top, left, height, width) in px."""


class CropGeometry(NamedTuple):
    """Cuts and scales one image, in the stored orientation."""

    source: Box
    """Part to cut out of the image."""
    scaled: Size
    """Size to which the part is scaled."""
    kept: Box
    """Part of the scaled image to keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framing:
    """Request to cut and scale images, in upright orientation."""

    size: Size | None = None
    """(height, width) of the result in px; None for the stored size."""
    crop: str | Box | None = None
    """None stretches the image; a Box is cut first; "center" and "random" cover `size` and cut the excess."""
    place: tuple[float, float] | None = None
    """Position of a random crop, each from 0 to just under 1; None for the middle."""
    bits: Bits | None = None
    """Bits per sample of the result; None keeps gray of more than 8 bits, and gives 8 for colour."""

    def layout(self, stored: Size, turn: PixelTurn) -> CropGeometry:
        """Return the layout for an image of size `stored` before `turn`. Raises: DecodeFailed if a box is outside."""
        if turn.transpose:
            whole = stored[::-1]
        else:
            whole = stored
        source: Box = (0, 0, *whole)
        scaled = kept_size = self.size or whole
        kept_at = (0, 0)
        if isinstance(self.crop, tuple):
            top, left, height, width = self.crop
            if top + height > whole[0] or left + width > whole[1]:
                raise DecodeFailed(
                    f"video: crop={self.crop} (top, left, height, width) reaches out of a frame of {whole[0]} x "
                    f"{whole[1]} px (height x width)",
                    what="crop",
                    given=self.crop,
                    accepted=whole,
                )
            if self.size is None:
                kept_at = (top, left)
                kept_size = (height, width)
            else:
                source = self.crop
        elif self.crop is not None and self.size is not None:
            scaled = covering(whole, self.size)
            slack = (scaled[0] - self.size[0], scaled[1] - self.size[1])
            if self.crop == "random" and self.place is not None:
                kept_at = (int(self.place[0] * (slack[0] + 1)), int(self.place[1] * (slack[1] + 1)))
            else:
                kept_at = (slack[0] // 2, slack[1] // 2)
        return CropGeometry(
            stored_coordinates(source, whole, turn),
            scaled[::-1] if turn.transpose else scaled,
            stored_coordinates((*kept_at, *kept_size), scaled, turn),
        )


def nearest(pixels: np.ndarray, source: Box, scaled: Size, part: Box) -> np.ndarray:
    """Return a part of the box `source` of [H, W, C], scaled to `scaled` without new values: each pixel is a copy.

    A mean of two depths is the depth of nothing, and a mean with 0, "unknown", is wrong.
    """
    first_row, first_column, height, width = source
    y = part[0] + np.arange(part[2])
    x = part[1] + np.arange(part[3])
    # The source pixel that contains the centre of a scaled pixel, in whole numbers.
    rows = first_row + (2 * y + 1) * height // (2 * scaled[0])
    columns = first_column + (2 * x + 1) * width // (2 * scaled[1])
    return pixels[rows[:, None], columns]


def covering(whole: Size, size: Size) -> Size:
    (height, width), (to_height, to_width) = whole, size
    if to_height * width >= to_width * height:
        return to_height, max(to_width, (2 * width * to_height + height) // (2 * height))
    return max(to_height, (2 * height * to_width + width) // (2 * width)), to_width


def stored_coordinates(box: Box, whole: Size, turn: PixelTurn) -> Box:
    """Return an upright image's box in stored coordinates. whole: upright size."""
    top, left, height, width = box
    if turn.flip_x:
        left = whole[1] - left - width
    if turn.flip_y:
        top = whole[0] - top - height
    if turn.transpose:
        return (left, top, width, height)
    return (top, left, height, width)
