"""Kinds of values. A new kind is a module that defines a `Kind`, listed in `KINDS`."""

from .array import ARRAY
from .audio import AUDIO
from .image import IMAGE
from .json_value import JSON
from .kind import Facts, Kind, Mark, Media, TokenBox
from .stored_bytes import stored_bytes_kind
from .text import OTHER, TEXT
from .tokens import PACKED, TOKENS
from .video import VIDEO

__all__ = ["KINDS", "Facts", "Kind", "Mark", "Media", "TokenBox", "find_kind"]


def find_kind(value: object, facts: Facts) -> Kind:
    return next(kind for kind in KINDS.values() if kind.fits(value, facts))


# The first kind that fits wins. The last kind fits every value.
KINDS = {
    kind.name: kind
    for kind in (PACKED, TOKENS, IMAGE, VIDEO, AUDIO, TEXT, JSON, ARRAY, stored_bytes_kind(find_kind), OTHER)
}
