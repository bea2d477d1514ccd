"""Text such as captions, as bounded lines without control characters or terminal escapes; and any other value."""

import re
from typing import Any

import numpy as np

from ...text import terminal_text
from ...units import size
from .array_values import shape_text
from .kind import Facts, Kind, Mark, mark, type_name

MAX_LINES = 200
"""Most lines shown per value."""
MAX_LETTERS = 1000
"""Characters shown per line."""
MAX_EXAMINED = 2**20
"""Characters examined for faults."""
# Direction marks and overrides, zero-width characters, tags and other control characters.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\U000e0000-\U000e007f]"
)
_PRINTABLE = bytes(byte if 32 <= byte < 127 else ord(".") for byte in range(256))
"""Byte -> its printable ASCII character, or a dot."""
_BROKEN = re.compile("[\ufffd\ud800-\udfff]")


def text_lines(text: str, *, most: int = MAX_LINES) -> tuple[str, ...]:
    """Return the first lines, control characters as Python escapes."""
    # Enough for all lines that are shown; splitting a text of gigabytes would take seconds.
    start = text[: most * (MAX_LETTERS + 1)]
    lines = start.split("\n")
    shown = [limit_line(line) for line in lines[:most]]
    if len(lines) > most or len(start) < len(text):
        shown.append(f"… {len(text):,} characters in all")
    return tuple(shown)


def limit_line(line: str) -> str:
    """Return one cleaned line of at most MAX_LETTERS."""
    start = line[: MAX_LETTERS + 1].replace("\n", " ")
    cleaned = terminal_text(start)
    if len(cleaned) <= MAX_LETTERS:
        return cleaned
    return f"{cleaned[: MAX_LETTERS - 1]}…"


def hex_lines(data: bytes | memoryview, *, most: int = 64) -> tuple[str, ...]:
    """Return the first bytes in lines of 16: offset, hex, ASCII."""
    start = bytes(data[:most])
    shown = []
    for offset in range(0, len(start), 16):
        row = start[offset : offset + 16]
        ascii_text = row.translate(_PRINTABLE).decode("ascii")
        shown.append(f"{offset:04x}  {row.hex(' '):<47}  {ascii_text}")
    return tuple(shown)


def fits(value: Any, facts: Facts) -> bool:
    return isinstance(value, str)


def lines(value: Any, facts: Facts) -> tuple[str, ...]:
    return f"{len(value):,} characters", *text_lines(value)


def marks(value: Any, facts: Facts) -> tuple[Mark, ...]:
    start = value[:MAX_EXAMINED]
    if not start.strip():
        return (mark("empty", f"no text: {len(value):,} characters, all of them blanks"),)
    out = []
    n_broken = len(_BROKEN.findall(start))
    if n_broken:
        out.append(mark("replaced_letters", f"{n_broken:,} characters were lost in a conversion (U+FFFD)"))
    n_hidden = len(_HIDDEN.findall(start))
    if n_hidden:
        out.append(mark("hidden_letters", f"{n_hidden:,} invisible characters, such as direction marks"))
    return tuple(out)


TEXT = Kind(name="text", fits=fits, lines=lines, marks=marks)


MAX_OTHER_BYTES = 64
"""Bytes shown of any other value."""


def _other_lines(value: Any, facts: Facts) -> tuple[str, ...]:
    if isinstance(value, bytes | bytearray | memoryview):
        view = memoryview(value)
        if view.c_contiguous:
            start = view.cast("B")[:MAX_OTHER_BYTES].tobytes()
        else:
            # Only contiguous memory can be cast to bytes.
            start = view.tobytes()[:MAX_OTHER_BYTES]
        summary = f"{view.nbytes:,} bytes ({size(view.nbytes)})"
        return summary, *hex_lines(start, most=MAX_OTHER_BYTES)
    shape = shape_text(value)
    if shape is not None:
        return limit_line(shape), *hex_lines(_first_bytes(value), most=MAX_OTHER_BYTES)
    name = limit_line(type_name(value).removeprefix("builtins."))
    if isinstance(value, dict | list | tuple | set | frozenset):
        return (f"{name}, {len(value):,} items",)
    return (name,)


def _other_marks(value: Any, facts: Facts) -> tuple[Mark, ...]:
    if isinstance(value, bytes | bytearray | memoryview) and not memoryview(value).nbytes:
        return (mark("empty", "no bytes"),)
    return ()


def _first_bytes(value: object) -> bytes:
    if not isinstance(value, np.ndarray | np.generic):
        return b""
    array = np.asarray(value)
    # Its bytes are addresses in this process.
    if array.dtype.hasobject:
        return b""
    return array.flat[:MAX_OTHER_BYTES].tobytes()


OTHER = Kind(name="other", fits=lambda value, facts: True, lines=_other_lines, marks=_other_marks)
