"""Arguments that `penstock import` and `penstock register` share: tables, and the choice of objects."""

import re
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from .verb import read_by

if TYPE_CHECKING:
    from ..formats.registration.selection import Selection


def table_arguments(parser: ArgumentParser) -> None:
    """Add --key and --field."""
    parser.add_argument("--key", metavar="COLUMN", help="column of a table that holds the keys")
    parser.add_argument(
        "--field",
        action="append",
        default=[],
        metavar="COLUMN[=EXTENSION]",
        help="column of a table that becomes a field, such as text, image=jpg or ids=u2; may be repeated",
    )


def fields_of(arguments: Namespace) -> dict[str, str]:
    """Return column that becomes a field -> its extension, "" for the format's choice."""
    return {name: word for name, _, word in (one.partition("=") for one in arguments.field)}


def selection_arguments(parser: ArgumentParser) -> None:
    """Add --include and --exclude."""
    parser.add_argument(
        "--include",
        action="append",
        default=[],
        metavar="PATTERN",
        help="take only objects whose keys match this pattern of .gitignore, such as 'train/*'; may be repeated",
    )
    parser.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="PATTERN",
        help="leave out objects whose keys match this pattern of .gitignore, such as '*.tmp'; may be repeated",
    )


def selection_of(arguments: Namespace) -> "Selection":
    """Return the objects that the arguments select."""
    from ..formats.registration.selection import Selection  # Arrow, which help does without

    return Selection(include=tuple(arguments.include), exclude=tuple(arguments.exclude))


def episodes_argument(parser: ArgumentParser) -> None:
    """Add --episodes."""
    parser.add_argument(
        "--episodes",
        type=read_by(episode_numbers),
        default=(),
        metavar="N-M,...",
        help="only these episodes of a LeRobot dataset, such as 0-99,120: a partial download has no others",
    )


def episode_numbers(text: str) -> tuple[tuple[int, int], ...]:
    """Return (first, last) of each part of a text such as "0-99,120". Raises: ValueError."""
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,12})(?:-(\d{1,12}))?", part.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(f"{part!r}: numbers and ranges of episodes are needed, such as 0-99,120")
        found.append((int(match[1]), int(match[2] or match[1])))
    return tuple(found)
