"""Patterns over keys, as .gitignore has them (through pathspec).

Without a '/' a pattern names files in any folder. `**` spans folders, a '/' in front binds to the place itself, `!`
takes back, and case counts.
"""

from collections.abc import Callable, Sequence

from ..errors import InvalidRuntime, MissingDependency

KeyFilter = Callable[[str], str]
"""Key -> why it is left out: "not_included", "excluded" or ""."""


def key_filter(include: Sequence[str], exclude: Sequence[str], whose: str) -> KeyFilter:
    """Return a function that gives the reason why patterns leave out a key.

    include: patterns of keys to keep; all when empty. exclude: patterns of keys to leave out. whose: for messages.

    Raises: InvalidRuntime for what is no pattern; MissingDependency.
    """
    if not include and not exclude:
        return lambda key: ""
    try:
        from pathspec import GitIgnoreSpec  # 20 ms, and definitions are loaded often
    except ImportError:
        raise MissingDependency(f"{whose}: patterns need pathspec: pip install pathspec") from None
    try:
        included = GitIgnoreSpec.from_lines(include) if include else None
        excluded = GitIgnoreSpec.from_lines(exclude) if exclude else None
    except (ValueError, TypeError) as error:
        raise InvalidRuntime(f"{whose}: {error}; write patterns as in .gitignore") from error

    def why(key: str) -> str:
        if included is not None and not included.match_file(key):
            return "not_included"
        return "excluded" if excluded is not None and excluded.match_file(key) else ""

    return why
