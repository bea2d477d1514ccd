"""Data sets in other people's formats: versions written in them, and read out of them.

A format that is written is a line in `FORMATS`, and a module in `exporters` with the functions of `exporter.Exporter`.
One that is read and cannot be registered is a line in `IMPORTERS`, and a module in `importers` with the names of
`importing.importer.Importer`.

Equal samples give equal bytes: an export that was killed is continued by doing it again. `tests/penstock/formats/exchange` holds
every format of the registry to the same laws.
"""

import re
from importlib import import_module
from typing import cast

from loader.errors import InvalidStore

from .exporting.exporter import Exporter
from .importing.importer import Importer, JoiningImporter
from .registration import COMPANIONS as OF_REGISTERED
from .registration import FORMATS as REGISTERED

FORMATS = {
    "energon": ".archives.to_energon",
    "files": ".to_files",
    "lerobot": ".lerobot.to_lerobot",
    "litdata": ".litdata.to_litdata",
    "mds": ".mds.to_mds",
    "megatron": ".to_megatron",
    "parquet": ".tables.to_parquet",
    "webdataset": ".archives.to_webdataset",
}
"""Format that is written -> its module, which is imported when it is used."""

IMPORTERS = {
    "arrow": ".tables.arrow",
    "csv": ".tables.csv_text",
    "hf": ".tables.hf",
    "json": ".tables.json_array",
    "jsonl": ".tables.jsonl",
    "lance": ".tables.lance",
    "lerobot": ".lerobot.importer",
    "litdata-compressed": ".litdata.compressed_chunks",
    "mcap": ".episodes.mcap_file",
    "mds-compressed": ".mds.compressed_shards",
    "parquet": ".tables.parquet",
    "rlds": ".episodes.rlds",
    "robomimic": ".episodes.robomimic",
    "rosbag": ".episodes.rosbag",
    "tfrecord": ".tables.tfrecord",
    "webdataset-compressed": ".archives.tar_streams",
}
"""Format that is read, and cannot be registered -> its module."""

COMPANIONS = {
    **OF_REGISTERED,
    "hf": re.compile(r"\.(json|md)$"),
    "lance": re.compile(r"^(?!data/.*\.lance$)"),
    "lerobot": re.compile(r"^meta/|(?<!\.parquet)$"),
    "litdata-compressed": OF_REGISTERED["litdata"],
    "mds-compressed": OF_REGISTERED["mds"],
    "rlds": re.compile(r"\.json$"),
    "rosbag": re.compile(r"(?<!\.bag)(?<!\bmetadata\.yaml)$", re.IGNORECASE),
}
"""Format whose objects are read with others of the place -> names of these others, which hold no samples."""

PARTITIONED = frozenset({"arrow", "csv", "hf", "json", "jsonl", "parquet", "tfrecord"})
"""Formats of tables whose folders may name columns: `lang=de/part-0.parquet`."""

ISOLATED = frozenset({"robomimic"})
"""Formats of `IMPORTERS` whose library a damaged object may kill or hold: worker processes read their objects."""


def exporter_named(name: str) -> Exporter:
    """Return the exporter of a format. Raises: InvalidStore for another name."""
    if name not in FORMATS:
        raise InvalidStore(f"format {name!r} is not known; accepted: {', '.join(sorted(FORMATS))}")
    return cast(Exporter, import_module(FORMATS[name], __name__))


def importer_named(name: str) -> Importer | None:
    """Return the importer of a format; None for one that can be registered. Raises: InvalidStore for another name."""
    if name in REGISTERED:
        return None
    if name not in IMPORTERS:
        accepted = ", ".join(sorted({*REGISTERED, *IMPORTERS}))
        raise InvalidStore(f"format {name!r} is not known; accepted: {accepted}")
    return cast(Importer, import_module(IMPORTERS[name], __name__))


def joining_importer(name: str) -> JoiningImporter:
    """Return the importer of a format whose objects lie in several files."""
    return cast(JoiningImporter, importer_named(name))
