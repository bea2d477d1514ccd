"""`penstock retire REF`."""

from argparse import ArgumentParser, Namespace

import loader

from .verb import Answer, Verb


def arguments(parser: ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("ref", help="e.g. photos@3")
    parser.add_argument("--reason", required=True)


def run(arguments: Namespace) -> Answer:
    """Retire a version: it can no longer be opened."""
    root = loader.Root(arguments.root)
    record = root.record(arguments.ref, retired=True)
    root.retire(arguments.ref, reason=arguments.reason)
    return {"name": record.name, "id": record.id}, f"{record.name} is retired: {arguments.reason}", 0


VERB = Verb(text="take a version out of use", run=run, arguments=arguments)
