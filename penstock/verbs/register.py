"""`penstock register FORMAT URL NAME`: a version over bytes that stay where they are."""

from argparse import ArgumentParser, Namespace

import loader

from .table_arguments import fields_of, table_arguments
from .verb import Answer, Verb


def arguments(parser: ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument(
        "format",
        help="webdataset: tar archives; energon: the same with .nv-meta; mds: shards of MosaicML streaming; litdata: "
        "chunks of LitData; megatron: indexed datasets; files: a sample each; parquet, hf: tables, each row a sample",
    )
    parser.add_argument(
        "url", help="folder or bucket prefix that holds the objects; nothing is written there"
    )
    parser.add_argument("name", help="dataset that the version is of; again for what changed since")
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="FIELD",
        help="leave a field out, of tables a column too; may be repeated",
    )
    table_arguments(parser)


def run(arguments: Namespace) -> Answer:
    """Register a place."""
    from loader.foreign.register import register

    from ..registered.chunks import chunks_of

    root = loader.Root(arguments.root)
    done = register(
        root,
        arguments.format,
        arguments.url,
        arguments.name,
        without=arguments.without,
        key=arguments.key,
        fields=fields_of(arguments),
    )
    version = done.version
    counts = {name: getattr(done, name) for name in ("new", "replaced", "gone", "same", "others")}
    body = {
        "name": version.name,
        "id": version.id,
        "samples": len(version),
        "fields": version.fields,
        **counts,
    }
    lines = [
        f"{version.name}  {version.id}",
        f"{len(version)} samples with {', '.join(version.fields)}, whose bytes stay at {arguments.url}",
        f"objects: {done.new} new, {done.replaced} written again, {done.gone} gone, {done.same} as before; "
        f"{done.others} others were left alone",
    ]
    if told := chunks_of(version):
        body |= told.to_json()
        lines.append(told.to_text())
    return body, "\n".join(lines), 0


VERB = Verb(text="make a version over bytes that stay where they are", run=run, arguments=arguments)
