"""`penstock adopt REF`: registered bytes copied into the root."""

from argparse import ArgumentParser, Namespace

import loader

from .verb import Answer, Verb


def arguments(parser: ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("ref", help="e.g. photos@3, which penstock seal has sealed")
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="threads (default: 4)")


def run(arguments: Namespace) -> Answer:
    """Adopt a version. Exit status 1 when an object could not be copied."""
    from ..formats.registration.adoption import adopt

    done = adopt(loader.Root(arguments.root), arguments.ref, workers=arguments.workers)
    return done.to_json(), done.to_text(), int(bool(done.failures))


VERB = Verb(text="copy registered bytes into the root", run=run, arguments=arguments)
