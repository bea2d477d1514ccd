"""Commands of `penstock` that pages give to copy, quoted for a shell: keys hold whatever their maker wrote."""

import shlex
from collections.abc import Sequence

_ESCAPED = {"\\": "\\\\", "'": "\\'"}


def shell_command(root: str, *words: object, names: Sequence[object] = ()) -> str:
    """Return a command over a root. names: its last arguments, of which any may begin with `-`."""
    after = ["--", *names] if names else []
    return " ".join(map(shell_word, ("penstock", *words, "--root", root, *after)))


def shell_word(word: object) -> str:
    """Return a word as a shell reads it back; letters that are not printed, such as turns of direction, are escaped.

    Those would act on the terminal into which they are pasted, or hide what the command does. (bash and zsh.)
    """
    text = str(word)
    if text.isprintable():
        return shlex.quote(text)
    return (
        "$'" + "".join(_ESCAPED.get(one) or (one if one.isprintable() else _code(one)) for one in text) + "'"
    )


def _code(letter: str) -> str:
    n = ord(letter)
    return f"\\x{n:02x}" if n < 0x80 else f"\\u{n:04x}" if n < 0x10000 else f"\\U{n:08x}"
