"""`penstock register FORMAT URL NAME`: a version over bytes that stay where they are."""

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from typing import TYPE_CHECKING

import loader
from loader.errors import InvalidRuntime, InvalidStore
from loader.storage import open_store

from .table_arguments import episodes_argument, fields_of, selection_arguments, selection_of, table_arguments
from .verb import Answer, Verb

if TYPE_CHECKING:
    from ..formats.registration.register import RegistrationReport

LEROBOT = "lerobot"
"""The format whose numbers and texts are copied, and whose videos stay."""


def arguments(parser: ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument(
        "format",
        help="webdataset: tar archives; energon: the same with .nv-meta; mds: shards of MosaicML streaming; litdata: "
        "chunks of LitData; megatron: indexed datasets; files: a sample each; arrow, parquet, hf: tables, each row "
        "a sample; lerobot: episodes, whose videos stay and whose numbers are copied",
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
        help="leave a field out, of tables and of JSON documents a column too; may be repeated",
    )
    selection_arguments(parser)
    table_arguments(parser)
    episodes_argument(parser)


def run(arguments: Namespace) -> Answer:
    """Register a place."""
    from ..formats.registration.chunks import chunks_of

    done = _registered(arguments)
    version = done.version
    counts = {name: getattr(done, name) for name in ("new", "replaced", "same", "others")} | {
        "gone": done.missing
    }
    body = {
        "name": version.name,
        "id": version.id,
        "samples": len(version),
        "fields": version.fields,
        **counts,
        "refusals": asdict(done.refusals),
        "notes": list(done.notes),
    }
    what, stay = ("episodes", "videos") if arguments.format == LEROBOT else ("objects", "bytes")
    lines = [
        f"{version.name}  {version.id}",
        f"{len(version)} samples with {', '.join(version.fields)}, whose {stay} stay at {arguments.url}",
        f"{what}: {done.new} new, {done.replaced} changed, {done.missing} removed, {done.same} unchanged; "
        f"{done.others} others ignored",
        *done.refusals.lines(),
        *done.notes,
    ]
    if done.left_out:
        body["left_out"] = list(done.left_out)
        lines.append(f"left out, as text over time is not read yet: {', '.join(done.left_out)}")
    if done.sealed:
        body["sealed"] = done.sealed
        lines.append(f"{done.sealed} new shards were read through, and are sealed")
    if chunks := chunks_of(version):
        body |= chunks.to_json()
        lines.append(chunks.to_text())
    return body, "\n".join(lines), 0


def _registered(arguments: Namespace) -> "RegistrationReport":
    """Register the place. Raises: InvalidRuntime; InvalidStore; as `register` and `register_lerobot`."""
    from ..formats import REGISTERED, TABLES
    from ..formats.registration.register import register

    root, format, selection = loader.Root(arguments.root), arguments.format, selection_of(arguments)
    if arguments.episodes and format != LEROBOT:
        from ..formats.importing.importer import EPISODES_OF

        raise InvalidRuntime(EPISODES_OF)
    if format == LEROBOT:
        from ..formats.lerobot.lerobot_registered import register_lerobot

        if arguments.key or arguments.field:
            raise InvalidRuntime(f"--key and --field are for tables; {format} has its own keys and fields")
        return register_lerobot(
            root,
            open_store(arguments.url),
            arguments.name,
            without=arguments.without,
            selection=selection,
            episodes=arguments.episodes,
        )
    if format not in REGISTERED | TABLES:
        accepted = ", ".join(sorted([LEROBOT, *REGISTERED, *TABLES]))
        raise InvalidStore(f"format {format!r} cannot be registered; accepted: {accepted}")
    return register(
        root,
        format,
        arguments.url,
        arguments.name,
        without=arguments.without,
        key=arguments.key,
        fields=fields_of(arguments),
        selection=selection,
    )


VERB = Verb(text="make a version over bytes that stay where they are", run=run, arguments=arguments)
