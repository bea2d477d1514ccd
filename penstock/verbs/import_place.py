"""`penstock import FORMAT URL NAME`: a version with bytes of its own, from another format."""

from argparse import ArgumentParser, Namespace

import loader
from loader.storage import open_store

from .table_arguments import episodes_argument, fields_of, selection_arguments, selection_of, table_arguments
from .verb import Answer, Verb


def arguments(parser: ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument(
        "format",
        help="one that can be registered (arrow, energon, files, hf, litdata, mds, megatron, parquet, webdataset), or "
        "csv, json, jsonl, lerobot, mcap, robomimic, rosbag",
    )
    parser.add_argument(
        "url", help="folder or bucket prefix that holds the objects; nothing is written there"
    )
    parser.add_argument("name", help="dataset that the version is of; again for what came since")
    order = parser.add_mutually_exclusive_group()
    order.add_argument(
        "--keep-order",
        dest="shuffle",
        action="store_false",
        default=None,
        help="samples lie in the order of their objects (default where an object has many samples)",
    )
    order.add_argument(
        "--shuffle",
        action="store_true",
        default=None,
        help="samples lie in the order of their keys' hashes (default where a file is a sample)",
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="NAME",
        help="leave a field out, of tables a column too; may be repeated",
    )
    selection_arguments(parser)
    table_arguments(parser)
    episodes_argument(parser)
    parser.add_argument("--workers", type=int, default=8, metavar="N", help="threads (default: 8)")


def run(arguments: Namespace) -> Answer:
    """Import a place. Exit status 1, and no version, when something could not be read or written."""
    from ..formats.importing.importer import Options
    from ..formats.run_import import import_place

    done = import_place(
        loader.Root(arguments.root),
        arguments.format,
        open_store(arguments.url),
        arguments.name,
        options=Options(
            arguments.key,
            fields_of(arguments),
            frozenset(arguments.without),
            episodes=arguments.episodes,
        ),
        shuffle=arguments.shuffle,
        workers=arguments.workers,
        selection=selection_of(arguments),
    )
    return done.to_json(), done.to_text(), int(bool(done.failures))


VERB = Verb(text="make a version with bytes of its own from another format", run=run, arguments=arguments)
