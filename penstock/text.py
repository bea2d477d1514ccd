"""Escape untrusted text for a card's HTML, Markdown and YAML, and for a terminal.

Captions, labels, licences, keys and reasons come from the data's authors. None of them may end a table, begin a
link, load an image or run a script.
"""

import html
import re
import unicodedata

WORD_JOINER = "\u2060"
"""No width and no meaning: between the letters of an address it keeps renderers from making a link of it."""

_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;", "|": "&#124;", "\\": "&#92;"}
_BACKSLASHED = frozenset("`*_[]~$#")
# GitHub's and others' Markdown finds these in plain text, some of them after it removes escapes.
_ADDRESS = re.compile(r"(://|\bwww(?=\.)|(?<=[\w.+-])@(?=[\w-]+\.)|\b(?:mailto|xmpp):)", re.IGNORECASE)
# At the beginning of a line: an item of a list, or a rule across the page.
_START = re.compile(r"^(?:(\d{1,9})(?=[.)](?:\s|$))|(?=[+-](?:\s|$)|-{3}))")

_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
# C0 and C1 but for tab and line feed, overrides of the writing direction, halves of surrogate pairs.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def clean(text: object, longest: int | None = None) -> str:
    """Return text on one line, without control characters, halves of surrogate pairs and overrides of the direction.

    longest: in characters; a longer text ends in '…'.
    """
    cleaned = str(text)
    if longest is not None and len(cleaned) > 8 * longest + 64:
        cleaned = cleaned[
            : 8 * longest + 64
        ]  # a document of megabytes is not walked through for its first line
    if not (cleaned.isascii() and cleaned.isprintable()):  # most texts are, and are not walked through
        cleaned = "".join(" " if letter.isspace() else letter for letter in cleaned if _is_shown(letter))
    line = " ".join(cleaned.split())
    if longest is not None and len(line) > longest:
        line = line[: longest - 1].rstrip() + "…"
    return line


def _is_shown(letter: str) -> bool:
    if letter.isspace():
        return True
    if unicodedata.category(letter) in ("Cc", "Cs", "Cn"):
        return False
    return letter not in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def html_text(text: object) -> str:
    """Return text for the content and the quoted attributes of HTML and SVG."""
    return html.escape(clean(text), quote=True)


def markdown_text(text: object) -> str:
    """Return text for Markdown (CommonMark with GitHub's tables) that is shown as it is and read as nothing.

    It fits into a line, a table's cell or an image's alternative text.
    """
    line = _ADDRESS.sub(_broken, clean(text))
    escaped = "".join(
        _ENTITIES.get(letter) or (f"\\{letter}" if letter in _BACKSLASHED else letter) for letter in line
    )
    return _START.sub(lambda match: f"{match.group(1) or ''}\\", escaped)


def markdown_plain(text: str) -> str:
    """Return the text that `markdown_text`, or the releases before it, made this of."""
    return html.unescape(_ESCAPED.sub(r"\1", text).replace(WORD_JOINER, ""))


def terminal_text(text: str) -> str:
    """Return text for a terminal: control characters become escapes as Python writes them; lines and tabs stay.

    Control characters may move the terminal's cursor or write to its clipboard.
    """
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _broken(match: re.Match[str]) -> str:
    address = match.group()
    if address == "://":
        return f":{WORD_JOINER}//"
    return f"{address}{WORD_JOINER}"


def yaml_text(text: object) -> str:
    """Return a YAML scalar in double quotes that every YAML reader gives back as the cleaned text."""
    out = []
    for letter in clean(text):
        if letter in '"\\':
            out.append(f"\\{letter}")
        elif " " <= letter <= "~" or (letter.isprintable() and "\xa0" < letter < "\ufdd0"):
            out.append(letter)
        else:
            out.append(f"\\U{ord(letter):08X}")
    return '"' + "".join(out) + '"'
