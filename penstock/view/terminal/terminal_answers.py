"""Answers of the terminal about itself: its name with the version, and the colours of its pictures.

It is asked before Textual reads keys: a later answer would be read as keys.
"""

import os
import re
import sys
from functools import cache
from select import select

WAIT_S = 1.0
"""Seconds without a byte, after which nothing is awaited any more."""
_ATTRIBUTES = re.compile(rb"\x1b\[\?[\d;]*c")
"""Answer to the question for attributes, which every terminal gives."""
_PLACEHOLDERS = {"kitty": (0, 28), "ghostty": (1, 0)}
"""Name -> first version that puts a picture where Unicode placeholders stand."""


def has_placeholders() -> bool:
    """Return whether the terminal is known to draw pictures of kitty's protocol where textual-image puts them."""
    found = re.search(r">\|(\w+)[ (](\d+)\.(\d+)", _answer("\x1b[>q"))
    if found is None:
        return False
    first = _PLACEHOLDERS.get(found[1].lower())
    return first is not None and (int(found[2]), int(found[3])) >= first


@cache
def color_registers() -> int | None:
    """Return the number of colours that a sixel picture may have here, asked for once; None where nobody says."""
    found = re.search(r"\[\?1;0;(\d{1,9})S", _answer("\x1b[?1;1;0S"))
    return int(found[1]) if found else None


def _answer(question: str) -> str:
    """Return the terminal's answer; "" for a question that it does not know, and without a terminal.

    The question for attributes follows. Answers come in the order of questions: what comes before its own is ours.
    """
    import termios  # other systems have none
    import tty

    stdin, stdout = sys.__stdin__, sys.__stdout__
    if stdin is None or stdout is None or not (stdin.isatty() and stdout.isatty()):
        return ""
    file = stdin.fileno()
    before = termios.tcgetattr(file)
    tty.setcbreak(file, termios.TCSANOW)
    try:
        stdout.write(f"{question}\x1b[c")
        stdout.flush()
        return _read(file)
    finally:
        termios.tcsetattr(file, termios.TCSANOW, before)


def _read(file: int) -> str:
    found = b""
    while select([file], [], [], WAIT_S)[0] and (data := os.read(file, 4096)):
        found += data
        if end := _ATTRIBUTES.search(found):
            return found[: end.start()].decode("ascii", "replace")
    return ""
