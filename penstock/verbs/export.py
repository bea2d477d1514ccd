"""`penstock export REF FORMAT URL`: a version in another format."""

from argparse import ArgumentParser, Namespace

import loader
from loader.storage import open_store

from .doctor import option, options_of
from .verb import Answer, Verb


def arguments(parser: ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("ref", help="e.g. photos@3")
    parser.add_argument(
        "format", help="energon, files, lerobot, litdata, mds, megatron, parquet or webdataset"
    )
    parser.add_argument("url", help="path or URL of the target: an empty place, or one of the same export")
    parser.add_argument("--where", metavar="SQL", help="export the samples for which it is true")
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="NAME",
        help="leave a field or column out; may be repeated",
    )
    parser.add_argument(
        "--lossy",
        action="store_true",
        help="leave out what the format cannot hold, which is refused otherwise",
    )
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="threads (default: 4)")
    parser.add_argument(
        "--option",
        type=option,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of the target's store, as loader.Root(options=) takes them, again and again",
    )


def run(arguments: Namespace) -> Answer:
    """Export a version. Exit status 1 when a part of it could not be written."""
    from ..formats.run_export import export

    done = export(
        loader.Root(arguments.root).open(arguments.ref),
        arguments.format,
        open_store(arguments.url, options_of(arguments.option)),
        where=arguments.where,
        without=arguments.without,
        lossy=arguments.lossy,
        workers=arguments.workers,
    )
    return done.to_json(), done.to_text(), int(bool(done.failures))


VERB = Verb(text="write a version in another format", run=run, arguments=arguments)
