"""Turning stored pixels upright: EXIF tag 0x0112 (CIPA DC-008, 4.6.4), or `tiff:Orientation` in XMP without EXIF."""

import re
import struct
from typing import NamedTuple

import numpy as np


class Turn(NamedTuple):
    """A turn of [..., H, W, C], in the order of the fields."""

    transpose: bool
    """True swaps H and W."""
    flip_y: bool
    """True reverses the rows."""
    flip_x: bool
    """True reverses the columns."""


UPRIGHT = Turn(False, False, False)

# EXIF orientation -> the turn that makes the stored pixels upright.
EXIF_TURNS = {
    1: UPRIGHT,
    2: Turn(False, False, True),
    3: Turn(False, True, True),
    4: Turn(False, True, False),
    5: Turn(True, False, False),
    6: Turn(True, False, True),  # a quarter turn clockwise
    7: Turn(True, True, True),
    8: Turn(True, True, False),  # a quarter turn anticlockwise
}

_ORIENTATION_TAG = 0x0112
_XMP = re.compile(rb"tiff:Orientation(?:\s*=\s*[\"']|>)\s*([1-8])")


def turned(pixels: np.ndarray, turn: Turn) -> np.ndarray:
    """Return uint8 [..., H, W, C], C-contiguous, after `turn`; `pixels` itself if unchanged."""
    if turn == UPRIGHT:
        return pixels
    n_channels = pixels.shape[-1]
    whole = pixels.view(f"V{n_channels}")[..., 0]  # a pixel as one item is moved twice as fast as C bytes
    if turn.transpose:
        whole = np.swapaxes(whole, -2, -1)
    if turn.flip_y:
        whole = whole[..., ::-1, :]
    if turn.flip_x:
        whole = whole[..., ::-1]
    whole = np.ascontiguousarray(whole)
    return whole.view(np.uint8).reshape(*whole.shape, n_channels)


def turn_of(exif: bytes | None, xmp: bytes | None) -> Turn:
    """Return the turn in an image's metadata: EXIF first, then XMP. Malformed metadata is ignored."""
    orientation = (exif_orientation(exif) if exif else 0) or (xmp_orientation(xmp) if xmp else 0)
    return EXIF_TURNS.get(orientation, UPRIGHT)


def exif_orientation(exif: bytes) -> int:
    """Return tag 0x0112 of an EXIF block's first directory (IFD0), with or without its `Exif` header."""
    tiff = exif[6:] if exif[:6] == b"Exif\0\0" else exif
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if order is None:
        return 0
    try:
        (directory,) = struct.unpack_from(order + "I", tiff, 4)
        (n_entries,) = struct.unpack_from(order + "H", tiff, directory)
        for entry in range(directory + 2, directory + 2 + 12 * n_entries, 12):
            tag, kind, count = struct.unpack_from(order + "HHI", tiff, entry)
            if tag == _ORIENTATION_TAG and count == 1 and kind in (3, 4):
                (value,) = struct.unpack_from(order + ("H" if kind == 3 else "I"), tiff, entry + 8)
                return value if value in EXIF_TURNS else 0
    except struct.error:
        return 0
    return 0


def xmp_orientation(xmp: bytes) -> int:
    """Return `tiff:Orientation` of an XMP packet: 1..8, or 0."""
    match = _XMP.search(xmp)
    return int(match[1]) if match else 0
