"""Directories of a photo's EXIF, as far as they can be read, and whether they tell a place.

Damaged metadata are no reason to refuse sound pixels.
"""

import re
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image


MAIN, EXIF, GPS, INTEROPERABILITY = 0, 0x8769, 0x8825, 0xA005

_DAMAGE = (OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, ArithmeticError, struct.error)
"""Errors that Pillow's reader of EXIF raises for damaged blocks."""


def directory(picture: "Image", tag: int) -> Mapping[int, object]:
    """Return tag -> value of one of the directories above; empty where it is missing or damaged."""
    try:
        exif = picture.getexif()
        return dict(exif if tag == MAIN else exif.get_ifd(tag))
    except _DAMAGE:
        return {}


_VERSION = 0  # GPSVersionID stands in many directories that have nothing else

# XMP's coordinates (in whatever place or format), and those of QuickTime in a motion photo's film.
_COORDINATES = re.compile(rb"GPSL(?:at|ong)itude|GPSPosition|location\.ISO6709")
_FILM_PLACE = b"\xa9xyz"
_END = b"\xff\xd9"


def tells_place(picture: "Image", data: bytes) -> bool:
    """Return whether there are coordinates in EXIF, in XMP or other text, or behind the end of a JPEG.

    data: the whole file. Names of places (IPTC, XMP) are no coordinates, and are not looked for. Cost: O(bytes).
    """
    if set(directory(picture, GPS)) - {_VERSION}:
        return True
    if _COORDINATES.search(data):
        return True
    for value in picture.info.values():  # texts that are compressed in the file
        text = value.encode() if isinstance(value, str) else value
        if isinstance(text, bytes) and _COORDINATES.search(text):
            return True
    if picture.format in ("JPEG", "MPO"):
        behind = data.find(b"ftyp", data.find(_END) + 2)
        return behind > 0 and data.find(_FILM_PLACE, behind) > 0
    return False
