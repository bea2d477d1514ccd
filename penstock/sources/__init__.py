"""Data sets in other people's formats: versions written in them, and read out of them.

A format that is written is a line in `FORMATS`, and a module in `exporters` with the functions of `exporter.Exporter`.
One that is read and cannot be registered is a line in `IMPORTERS`, and a module in `importers` with the names of
`importing.importer.Importer`.

Equal samples give equal bytes: an export that was killed is continued by doing it again. `tests/penstock/sources` holds
every format of the registry to the same laws.
"""

import re
from importlib import import_module
from typing import cast

from loader.errors import InvalidStore
from loader.foreign import COMPANIONS as OF_REGISTERED
from loader.foreign import FORMATS as REGISTERED

from .exporter import Exporter
from .importing.importer import Importer, JoiningImporter

FORMATS = {
    "energon": ".exporters.to_energon",
    "files": ".exporters.to_files",
    "lerobot": ".exporters.to_lerobot",
    "litdata": ".exporters.to_litdata",
    "mds": ".exporters.to_mds",
    "megatron": ".exporters.to_megatron",
    "parquet": ".exporters.to_parquet",
    "webdataset": ".exporters.to_webdataset",
}
"""Format that is written -> its module, which is imported when it is used."""

IMPORTERS = {
    "arrow": ".importers.arrow",
    "csv": ".importers.csv_text",
    "hf": ".importers.hf",
    "json": ".importers.json_array",
    "jsonl": ".importers.jsonl",
    "lance": ".importers.lance",
    "lerobot": ".importers.episodes.lerobot",
    "litdata-compressed": ".importers.streamed.litdata_chunks",
    "mcap": ".importers.episodes.mcap_file",
    "mds-compressed": ".importers.streamed.mds_shards",
    "parquet": ".importers.parquet",
    "rlds": ".importers.episodes.rlds",
    "robomimic": ".importers.episodes.robomimic",
    "rosbag": ".importers.episodes.rosbag",
    "tfrecord": ".importers.streamed.tfrecord",
    "webdataset-compressed": ".importers.streamed.tar_streams",
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
