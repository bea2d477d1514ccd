"""`penstock seal REF`: checksums of registered bytes."""

from argparse import ArgumentParser, Namespace

import loader

from .verb import Answer, Verb


def arguments(parser: ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("ref", help="e.g. photos@3")
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="threads (default: 4)")


def run(arguments: Namespace) -> Answer:
    """Seal a version. Exit status 1 when an object could not be read."""
    from ..formats.registration.sealing import seal

    done = seal(loader.Root(arguments.root).open(arguments.ref), workers=arguments.workers)
    return done.to_json(), done.to_text(), int(bool(done.failures))


VERB = Verb(text="read registered bytes once, and keep their checksums", run=run, arguments=arguments)
