"""`penstock bench REF`."""

from argparse import ArgumentParser, Namespace

import loader

from .verb import Answer, Verb, add_fields, choose_fields


def arguments(parser: ArgumentParser) -> None:
    """What it takes."""
    parser.add_argument("ref", help="e.g. photos@3")
    add_fields(parser)
    parser.add_argument("--batch", type=int, default=64, metavar="N", help="samples in a batch (default: 64)")
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S", help="how long (default: 10)")
    parser.add_argument(
        "--workers", type=int, default=None, metavar="N", help="threads (default: one per core)"
    )
    parser.add_argument(
        "--verify",
        choices=("crc32c", "sha256"),
        default="crc32c",
        help="what samples are held against, as loader.Root(verify=) (default: crc32c)",
    )


def run(arguments: Namespace) -> Answer:
    """How fast a version can be loaded here, and what limits."""
    from ..bench import bench as measure

    version = loader.Root(arguments.root, verify=arguments.verify).open(arguments.ref)
    fields, where_present = choose_fields(version, arguments.fields)
    found = measure(
        version,
        fields,
        where_present=where_present,
        batch=arguments.batch,
        seconds=arguments.seconds,
        workers=arguments.workers,
    )
    return found.to_json(), found.to_text(), 0


VERB = Verb(
    text="how fast a version can be loaded here, which stage limits, what to change",
    run=run,
    arguments=arguments,
)
