"""Arguments that `penstock import` and `penstock register` share: tables, and the choice of objects."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loader.foreign.selection import Selection


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
    from loader.foreign.selection import Selection  # Arrow, which help does without

    return Selection(include=tuple(arguments.include), exclude=tuple(arguments.exclude))
