"""The shape that pictures and clips are brought to: a size in px, or the name of a bucket."""

import operator
import re
from typing import SupportsIndex

from .framing import Size

_BUCKET = re.compile(r"w([1-9][0-9]{0,5})h([1-9][0-9]{0,5})(?:f([1-9][0-9]{0,5}))?")

GivenSize = tuple[SupportsIndex, SupportsIndex] | str | None


def size_of(given: GivenSize) -> Size | None:
    """(height, width) in px. Raises: TypeError, ValueError for what is neither a pair of whole numbers nor a bucket."""
    if given is None:
        return None
    if isinstance(given, str):
        height, width, _ = _bucket(given)
        return height, width
    try:
        height, width = map(operator.index, given)
    except (TypeError, ValueError):
        raise TypeError("size is (height, width) in whole px, or the name of a bucket") from None
    return height, width


def frames_of(given: object) -> int | None:
    """Frames of a clip, of a bucket that says so. Raises: ValueError for a text that names none."""
    return _bucket(given)[2] if isinstance(given, str) else None


def _bucket(name: str) -> tuple[int, int, int | None]:
    """(height, width, frames) of `w640h384f32`: width first, as the column `bucket` has it."""
    found = _BUCKET.fullmatch(name)
    if found is None:
        raise ValueError("a bucket is named like w896h1152, or w640h384f32 for clips of 32 frames")
    return int(found[2]), int(found[1]), None if found[3] is None else int(found[3])
