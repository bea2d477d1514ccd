"""Escape untrusted text, such as captions and keys, for HTML, Markdown, YAML, a terminal and a shell."""

import html
import re
import shlex
import unicodedata
from collections.abc import Iterable, Sequence

WORD_JOINER = "\u2060"
"""Invisible; prevents renderers from linking an address."""

_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;", "|": "&#124;", "\\": "&#92;"}
_BACKSLASHED = frozenset("`*_[]~$#")
# GitHub's Markdown links these in plain text, some even after it removes escapes.
_ADDRESS = re.compile(r"(://|\bwww(?=\.)|(?<=[\w.+-])@(?=[\w-]+\.)|\b(?:mailto|xmpp):)", re.IGNORECASE)
# At the start of a line: a list item, or a horizontal rule. Group 1: the number of a numbered item.
_START = re.compile(r"^(?:(\d{1,9})(?=[.)](?:\s|$))|(?=[+-](?:\s|$)|-{3}))")

_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
# C0 and C1 except tab and line feed, bidirectional overrides, surrogates.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
MAX_TABLE_ROWS = 50
"""Rows of a Markdown table; others are only counted."""


def clean(text: object, longest: int | None = None) -> str:
    """Return one line, without control characters, lone surrogates and bidirectional overrides.

    longest: most characters; longer text ends in '…'.
    """
    cleaned = str(text)
    if longest is not None and len(cleaned) > 8 * longest + 64:
        cleaned = cleaned[: 8 * longest + 64]  # avoid scanning megabytes for one line
    if not (cleaned.isascii() and cleaned.isprintable()):  # the fast path
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
    """Escape for HTML and SVG: content and quoted attributes."""
    return html.escape(clean(text), quote=True)


def markdown_text(text: object) -> str:
    """Escape text so that Markdown shows it literally: in a line, a table cell or alternative text."""
    line = _ADDRESS.sub(_break_link, clean(text))
    escaped = "".join(
        _ENTITIES.get(letter) or (f"\\{letter}" if letter in _BACKSLASHED else letter) for letter in line
    )
    return _START.sub(_escape_start, escaped)


def _escape_start(match: re.Match[str]) -> str:
    # Markdown escapes no digits: "1. x" becomes "1\. x", and "- x" becomes "\- x".
    number = match.group(1) or ""
    return f"{number}\\"


def markdown_plain(text: str) -> str:
    """Undo any release's `markdown_text`."""
    return html.unescape(_ESCAPED.sub(r"\1", text).replace(WORD_JOINER, ""))


def terminal_text(text: str) -> str:
    """Escape control characters, which could move the cursor or write to the clipboard."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def line_text(text: object) -> str:
    """Escape the control characters of untrusted text, so that it stays within its line or cell."""
    return terminal_text(str(text)).translate(_LINE_ENDS)


def lines_text(lines: Iterable[object]) -> str:
    """Return lines of untrusted text; none can begin another line."""
    return "\n".join(map(line_text, lines))


_LINE_ENDS = {ord(one): one.encode("unicode_escape").decode() for one in "\t\n\x85\u2028\u2029"}


def _break_link(match: re.Match[str]) -> str:
    address = match.group()
    if address == "://":
        return f":{WORD_JOINER}//"
    return f"{address}{WORD_JOINER}"


def yaml_text(text: object) -> str:
    """Return a double-quoted, cleaned YAML scalar."""
    out = []
    for letter in clean(text):
        if letter in '"\\':
            out.append(f"\\{letter}")
        elif " " <= letter <= "~" or (letter.isprintable() and "\xa0" < letter < "\ufdd0"):
            out.append(letter)
        else:
            out.append(f"\\U{ord(letter):08X}")
    return '"' + "".join(out) + '"'


_QUOTED = {"\\": "\\\\", "'": "\\'"}


def shell_command(root: str, *words: object, names: Sequence[object] = ()) -> str:
    """Return a `penstock` command line for a root. names: last arguments, which may begin with `-`."""
    after = ["--", *names] if names else []
    return " ".join(map(shell_word, ("penstock", *words, "--root", root, *after)))


def shell_word(word: object) -> str:
    """Return a word quoted for bash and zsh. Unprintable characters are escaped."""
    text = str(word)
    if text.isprintable():
        return shlex.quote(text)
    return (
        "$'" + "".join(_QUOTED.get(one) or (one if one.isprintable() else _code(one)) for one in text) + "'"
    )


def _code(character: str) -> str:
    n = ord(character)
    if n < 0x80:
        return f"\\x{n:02x}"
    if n < 0x10000:
        return f"\\u{n:04x}"
    return f"\\U{n:08x}"


class Markdown(str):
    """Markup for a table cell, such as a link, which is not escaped."""


def markdown_table(
    header: Sequence[str],
    rows: Sequence[Sequence[object]],
) -> str:
    """Return a Markdown table. Cells but `Markdown` are escaped; rows beyond `MAX_TABLE_ROWS` are only counted."""
    rule = " --- |" * len(header)
    lines = [_table_line(header), f"|{rule}"]
    for row in rows[:MAX_TABLE_ROWS]:
        cells = [_cell(value) for value in row]
        lines.append(_table_line(cells))
    n_others = len(rows) - MAX_TABLE_ROWS
    if n_others > 0:
        lines.append(f"\nand {n_others} more")
    return "\n".join(lines)


def _table_line(cells: Sequence[str]) -> str:
    text = " | ".join(cells)
    return f"| {text} |"


def _cell(value: object) -> str:
    if isinstance(value, Markdown):
        return value
    return markdown_text(value)
