"""Text of samples in bounded lines, without control characters, terminal escapes and overrides of the direction."""

from ...text import terminal_text

MAX_LINES = 200
"""Lines that are shown of one value."""
MAX_LETTERS = 1000
"""Letters that are shown of one line."""


def text_lines(text: str, *, most: int = MAX_LINES) -> tuple[str, ...]:
    """Return the first lines of a text. Blanks stay; control characters become escapes as Python writes them.

    A line, and a text, that is longer ends in a line or letter that says so.
    """
    start = text[: most * (MAX_LETTERS + 1)]
    lines = start.split("\n")
    shown = [bounded(line) for line in lines[:most]]
    if len(lines) > most or len(start) < len(text):
        shown.append(f"… {len(text):,} letters in all")
    return tuple(shown)


def bounded(line: str) -> str:
    """Return one line of text, cleaned, of at most MAX_LETTERS letters."""
    told = terminal_text(line[: MAX_LETTERS + 1].replace("\n", " "))
    return told if len(told) <= MAX_LETTERS else f"{told[: MAX_LETTERS - 1]}…"


def hex_lines(data: bytes | memoryview, *, most: int = 64) -> tuple[str, ...]:
    """Return the first bytes, 16 a line: offset, hex, and the letters of ASCII among them."""
    start = bytes(data[:most])
    return tuple(
        f"{at:04x}  {start[at : at + 16].hex(' '):<47}  "
        + "".join(chr(one) if 32 <= one < 127 else "." for one in start[at : at + 16])
        for at in range(0, len(start), 16)
    )
