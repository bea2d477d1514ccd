"""Arguments about tables, of `penstock import` and `penstock register`."""

from argparse import ArgumentParser, Namespace


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
