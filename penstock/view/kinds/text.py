"""Text: captions, documents, transcripts."""

import re
from typing import Any

from .kind import Facts, Kind, Mark, mark
from .shown_text import text_lines

MAX_EXAMINED = 2**20
"""Letters of a text whose faults are looked for."""

# Marks and overrides of the writing direction, letters without width, tags, other control characters.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\U000e0000-\U000e007f]"
)
_BROKEN = re.compile("[\ufffd\ud800-\udfff]")


def fits(value: Any, facts: Facts) -> bool:
    """Return whether a value is a text."""
    return isinstance(value, str)


def lines(value: Any, facts: Facts) -> tuple[str, ...]:
    """Return the number of letters, and the text."""
    return f"{len(value):,} letters", *text_lines(value)


def marks(value: Any, facts: Facts) -> tuple[Mark, ...]:
    """Return: no text; letters that were lost in a conversion; letters that nobody sees."""
    start = value[:MAX_EXAMINED]
    if not start.strip():
        return (mark("empty", f"no text: {len(value):,} letters, all of them blanks"),)
    out = []
    if broken := len(_BROKEN.findall(start)):
        out.append(mark("replaced_letters", f"{broken:,} letters were lost in a conversion (U+FFFD)"))
    if hidden := len(_HIDDEN.findall(start)):
        out.append(mark("hidden_letters", f"{hidden:,} letters that nobody sees, such as turns of direction"))
    return tuple(out)


TEXT = Kind(name="text", fits=fits, lines=lines, marks=marks)
