"""Metadata of photos: EXIF directories as far as readable, and coordinates."""

import re
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image


MAIN, EXIF, GPS, INTEROPERABILITY = 0, 0x8769, 0x8825, 0xA005

_DAMAGE = (OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, ArithmeticError, struct.error)
"""Errors of Pillow's EXIF reader for damaged blocks, which do not make pixels unusable."""


def directory(image: "Image", tag: int) -> Mapping[int, object]:
    """Return tag -> value of one of the directories above; empty if missing or damaged."""
    try:
        exif = image.getexif()
        return dict(exif if tag == MAIN else exif.get_ifd(tag))
    except _DAMAGE:
        return {}


_VERSION = 0  # GPSVersionID is the only entry of many directories

# Coordinates of XMP (any position or format), and QuickTime's in a motion photo's video.
_COORDINATES = re.compile(rb"GPSL(?:at|ong)itude|GPSPosition|location\.ISO6709")
_FILM_PLACE = b"\xa9xyz"
_END = b"\xff\xd9"


def tells_place(image: "Image", data: bytes) -> bool:
    """Return whether there are coordinates in EXIF, XMP, other text, or after a JPEG's end.

    data: the whole file. Place names (IPTC, XMP) are not coordinates. Cost: O(bytes).
    """
    if set(directory(image, GPS)) - {_VERSION}:
        return True
    if _COORDINATES.search(data):
        return True
    for value in image.info.values():  # texts that the file compresses
        text = value.encode() if isinstance(value, str) else value
        if isinstance(text, bytes) and _COORDINATES.search(text):
            return True
    if image.format in ("JPEG", "MPO"):
        behind = data.find(b"ftyp", data.find(_END) + 2)
        return behind > 0 and data.find(_FILM_PLACE, behind) > 0
    return False
