"""Directories of a photo's EXIF, as far as they can be read. Damaged metadata are no reason to refuse sound pixels."""

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

MAIN, EXIF, GPS, INTEROPERABILITY = 0, 0x8769, 0x8825, 0xA005

_DAMAGE = (OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, ArithmeticError, struct.error)
"""What Pillow's reader of EXIF raises for damaged blocks."""


def directory(picture: "Image", tag: int) -> Mapping[int, object]:
    """tag -> value of one of the directories above; empty where it is missing or damaged."""
    try:
        exif = picture.getexif()
        return dict(exif if tag == MAIN else exif.get_ifd(tag))
    except _DAMAGE:
        return {}
