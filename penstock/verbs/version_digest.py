"""`penstock digest REF`: a digest of a version's content, free of order and layout."""

from argparse import ArgumentParser, Namespace

import loader

from .verb import Answer, Verb


def arguments(parser: ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("ref", help="e.g. photos@3")
    parser.add_argument(
        "--full", action="store_true", help="read and check every byte, instead of believing the indexes"
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="NAME",
        help="leave a field or metadata column out; may be repeated",
    )
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="threads (default: 4)")


def run(arguments: Namespace) -> Answer:
    """Give the digest. Exit status 1 when samples could not be read."""
    from ..formats.content_digest import content_digest

    done = content_digest(
        loader.Root(arguments.root).open(arguments.ref),
        full=arguments.full,
        without=arguments.without,
        workers=arguments.workers,
    )
    return done.to_json(), done.to_text(), int(bool(done.failures))


VERB = Verb(text="a digest of the content, free of order and layout", run=run, arguments=arguments)
