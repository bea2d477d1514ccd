"""A line of a section in characters."""

from dataclasses import dataclass
from typing import Literal

LineTone = Literal["", "heading", "bad", "quiet", "hint"]
"""A hint names a key of the terminal."""


@dataclass(frozen=True, slots=True)
class SectionLine:
    text: str
    page: str | None = None
    """Address of the page that it opens, or None."""
    tone: LineTone = ""
    link: str = ""
    """Part of the text that names the page."""
    others: tuple[tuple[str, str], ...] = ()
    """(part of the text, address) of further links, in their order after the first."""
