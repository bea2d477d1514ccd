"""`penstock register|import|seal|adopt|export`: other formats."""

import re
from argparse import Namespace
from dataclasses import asdict
from typing import TYPE_CHECKING

import loader
from loader.errors import InvalidRuntime, InvalidStore
from loader.storage import open_store

from .verb import (
    REF,
    Answer,
    argument,
    argument_type,
    exclusive_options,
    flag,
    list_option,
    parse_options,
    report_answer,
    store_options,
    verb,
    workers_argument,
)

if TYPE_CHECKING:
    from ..formats.registration.file_labels import LabelOptions
    from ..formats.registration.register import RegistrationReport
    from ..formats.registration.selection import Selection


LEROBOT = "lerobot"
"""Format whose videos stay in place while numbers and texts are copied."""


def episode_numbers(text: str) -> tuple[tuple[int, int], ...]:
    """Parse "0-99,120" into (first, last) pairs. Raises: ValueError."""
    ranges = []
    for part in text.split(","):
        # Twelve digits: more than any dataset has episodes, and far below an int64.
        match = re.fullmatch(r"(\d{1,12})(?:-(\d{1,12}))?", part.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(f"{part!r}: numbers and ranges of episodes are needed, such as 0-99,120")
        ranges.append((int(match[1]), int(match[2] or match[1])))
    return tuple(ranges)


_SOURCE = argument("url", "folder or bucket prefix that holds the objects; nothing is written there")
_CHOSEN = (
    list_option(
        "--include PATTERN",
        "take only objects whose keys match this pattern of .gitignore, such as 'train/*'",
    ),
    list_option(
        "--exclude PATTERN", "leave out objects whose keys match this pattern of .gitignore, such as '*.tmp'"
    ),
    argument("--key COLUMN", "column of a table that holds the keys, or of --labels that names the files"),
    list_option(
        "--field COLUMN[=EXTENSION]",
        "column of a table that becomes a field, such as text, image=jpg or ids=u2",
    ),
    argument(
        "--episodes N-M,...",
        "only these episodes of a LeRobot dataset, such as 0-99,120: a partial download has no others",
        type=argument_type(episode_numbers),
        default=(),
    ),
    flag(
        "--allow-missing",
        "take what is there if the place states more (files, episodes, records), and record what is missing",
    ),
)
"""Options that choose objects, columns and episodes."""
_LABELS = (
    argument(
        "--labels FILE",
        "labels of plain files: a .csv, .tsv, .jsonl or .parquet with a row per file, whose other columns become "
        "columns of the dataset; path or URL",
        default="",
    ),
    argument(
        "--label-from SOURCE",
        "folder: a plain file's label is its folder's name; none: new files have no label, though earlier ones do",
        choices=("folder", "none"),
        default="",
    ),
    flag("--partial-labels", "ignore rows of --labels that no file has (default: refuse them)"),
)


@verb(
    "make a version of objects that stay in place",
    argument(
        "format",
        "webdataset: tar archives; energon: the same with .nv-meta; mds: shards of MosaicML streaming; litdata: "
        "chunks of LitData; megatron: indexed datasets; files: one sample each; arrow, parquet, hf: one sample per "
        "row; lerobot: episodes (videos stay in place, numbers are copied)",
    ),
    _SOURCE,
    argument("name", "name of the dataset; run again to register changes"),
    list_option("--without FIELD", "leave out a field, or a column of tables and JSON documents"),
    *_CHOSEN,
    *_LABELS,
)
def run_register(arguments: Namespace) -> Answer:
    from ..formats.registration.register import shuffle_chunks

    done = _register(arguments, loader.Root(arguments.root))
    version = done.version
    counts = {name: getattr(done, name) for name in ("new", "replaced", "same", "taken_down", "others")}
    counts["gone"] = done.missing
    body = {
        "name": version.name,
        "id": version.id,
        "samples": len(version),
        "fields": version.fields,
        **counts,
        "refusals": asdict(done.refusals),
        "notes": list(done.notes),
        "missing_parts": list(done.missing_parts),
    }
    skipped = ""
    if done.taken_down:
        skipped = f", {done.taken_down} taken down and skipped"
    what, stay = ("episodes", "videos") if arguments.format == LEROBOT else ("objects", "bytes")
    lines = [
        f"{version.name}  {version.id}",
        f"{len(version)} samples with {', '.join(version.fields)}, whose {stay} stay at {arguments.url}",
        f"{done.new + done.replaced + done.same} {what}: {done.new} added, {done.replaced} changed, "
        f"{done.missing} removed, {done.same} unchanged{skipped} "
        f"({done.others} other files hold no samples, or were not selected)",
        *done.refusals.lines(),
        *(f"  missing, left out: {text}" for text in done.missing_parts),
        *done.notes,
    ]
    if done.relabelled:
        body["relabelled"] = done.relabelled
        lines.append(f"{done.relabelled} samples of unchanged files have new labels")
    if done.sealed:
        body["sealed"] = done.sealed
        lines.append(f"{done.sealed} new shards read and sealed")
    if chunks := shuffle_chunks(version):
        body |= chunks.to_json()
        lines.append(chunks.to_text())
    return body, "\n".join(lines), 0


def _register(arguments: Namespace, root: "loader.Root") -> "RegistrationReport":
    from ..formats.registration.file_labels import read_labels
    from ..formats.registration.register import register
    from ..formats.registry import REGISTERED, TABLES

    format = arguments.format
    selection = parse_selection(arguments)
    label_options = label_options_of(arguments)
    if arguments.episodes and format != LEROBOT:
        from ..formats.importer import EPISODES_OF

        raise InvalidRuntime(EPISODES_OF)
    if format == LEROBOT:
        from ..formats.lerobot.lerobot_registered import register_lerobot

        if arguments.key or arguments.field:
            raise InvalidRuntime(f"--key and --field are for tables; {format} has its own keys and fields")
        read_labels(format, label_options, (), None)  # which this format has none of
        return register_lerobot(
            root,
            open_store(arguments.url),
            arguments.name,
            without=arguments.without,
            selection=selection,
            episodes=arguments.episodes,
            allow_missing=arguments.allow_missing,
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
        # With --labels, --key names the column of that table, and plain files have no key column.
        key=None if label_options.table else arguments.key,
        fields=parse_fields(arguments),
        selection=selection,
        allow_missing=arguments.allow_missing,
        label_options=label_options,
    )


@verb(
    "copy objects of another format into a version",
    argument(
        "format",
        "arrow, csv, energon, files, hf, json, jsonl, lance, lerobot, litdata, litdata-compressed, mcap, mds, "
        "mds-compressed, megatron, parquet, rlds, robomimic, rosbag, tfrecord, webdataset or "
        "webdataset-compressed",
    ),
    _SOURCE,
    argument("name", "name of the dataset; run again to import new objects"),
    exclusive_options(
        argument(
            "--keep-order",
            "keep the order of the objects (default if an object has many samples)",
            dest="shuffle",
            action="store_false",
            default=None,
        ),
        flag(
            "--shuffle",
            "order samples by the hashes of their keys (default if a file is a sample)",
            default=None,
        ),
    ),
    list_option("--without NAME", "leave out a field, or a column of tables"),
    *_CHOSEN,
    list_option(
        "--clock [TOPIC=]CLOCK",
        "clock of a topic of mcap or rosbag, or of all topics: log_time or stamp (default: stamp, if all topics then "
        "have one clock)",
    ),
    *_LABELS,
    workers_argument(8),
)
def run_import(arguments: Namespace) -> Answer:
    """Exit with 1 and no version if an object fails."""
    from ..formats.importer import ColumnarOptions
    from ..formats.run_import import import_place

    label_options = label_options_of(arguments)
    done = import_place(
        loader.Root(arguments.root),
        arguments.format,
        open_store(arguments.url),
        arguments.name,
        options=ColumnarOptions(
            # With --labels, --key names the column of that table, and plain files have no key column.
            None if label_options.table else arguments.key,
            parse_fields(arguments),
            frozenset(arguments.without),
            episodes=arguments.episodes,
            clocks=_parse_clocks(arguments),
            allow_missing=arguments.allow_missing,
        ),
        shuffle=arguments.shuffle,
        workers=arguments.workers,
        selection=parse_selection(arguments),
        label_options=label_options,
    )
    return report_answer(done, failed=done.failures)


def parse_fields(arguments: Namespace) -> dict[str, str]:
    """Return column -> file extension; "" for the format's default."""
    return {name: word for name, _, word in (one.partition("=") for one in arguments.field)}


def _parse_clocks(arguments: Namespace) -> dict[str, str]:
    """Return topic -> clock. Raises: InvalidRuntime if a topic has two."""
    from ..formats.importer import EVERY_TOPIC

    clocks = dict[str, str]()
    for text in arguments.clock:
        topic, separator, clock = text.rpartition("=")
        name = topic if separator else EVERY_TOPIC
        if clocks.setdefault(name, clock) != clock:
            raise InvalidRuntime(
                f"--clock {text}: topic {name!r} already has the clock {clocks[name]!r}; give one"
            )
    return clocks


def label_options_of(arguments: Namespace) -> "LabelOptions":
    from ..formats.registration.file_labels import LabelOptions  # imports Arrow, which `--help` must not load

    # Without --labels, --key names the key column of the data itself.
    key = None
    if arguments.labels:
        key = arguments.key
    return LabelOptions(
        table=arguments.labels,
        key=key,
        label_from=arguments.label_from,
        is_partial=arguments.partial_labels,
    )


def parse_selection(arguments: Namespace) -> "Selection":
    from ..formats.registration.selection import Selection  # imports Arrow, which `--help` must not load

    return Selection(include=tuple(arguments.include), exclude=tuple(arguments.exclude))


@verb("read registered objects once and record their checksums", REF, workers_argument())
def run_seal(arguments: Namespace) -> Answer:
    """Exit with 1 if an object failed."""
    from ..formats.registration.sealing import seal

    done = seal(loader.Root(arguments.root).open(arguments.ref), workers=arguments.workers)
    return report_answer(done, failed=done.failures)


@verb(
    "copy registered objects into the root",
    argument("ref", "sealed version, e.g. photos@3"),
    workers_argument(),
)
def run_adopt(arguments: Namespace) -> Answer:
    """Exit with 1 if an object failed."""
    from ..formats.registration.adoption import adopt

    done = adopt(loader.Root(arguments.root), arguments.ref, workers=arguments.workers)
    return report_answer(done, failed=done.failures)


@verb(
    "write a version in another format",
    REF,
    argument("format", "energon, files, lerobot, litdata, mds, megatron, parquet or webdataset"),
    argument("url", "path or URL of the target: empty, or an earlier run of the same export"),
    argument("--where SQL", "export only samples that match this expression"),
    argument("--slice NAME", "export only samples of this slice", dest="slice_name"),
    list_option("--without NAME", "leave out a field or column"),
    argument(
        "--norm PATH",
        "take mean, std and quantiles from this norm of the root (lerobot; `loader.norm(...).path`)",
        default="",
    ),
    flag("--lossy", "leave out what the format cannot hold (default: refuse)"),
    workers_argument(),
    store_options("--option", "the target's store"),
)
def run_export(arguments: Namespace) -> Answer:
    """Exit with 1 if a part failed."""
    from ..formats.run_export import export

    done = export(
        loader.Root(arguments.root).open(arguments.ref),
        arguments.format,
        open_store(arguments.url, parse_options(arguments.option)),
        where=arguments.where,
        without=arguments.without,
        lossy=arguments.lossy,
        workers=arguments.workers,
        norm=arguments.norm,
        slice_name=arguments.slice_name,
    )
    return report_answer(done, failed=done.failures)
