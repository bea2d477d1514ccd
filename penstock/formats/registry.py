"""File formats of other libraries, and how to register (in place), import (copy) and export each.

`FORMATS` names the module of each format, loaded on first use: to add a format, add a row. The module's functions make
it one or several of `RegisteredFormat`, `RegisteredTables`, `Importer` and `Exporter` (equal samples give equal bytes).
"""

import re
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from loader.dataset.columnar.choices import ColumnarOptions
from loader.dataset.columnar.column_names import Partitions
from loader.errors import InvalidRuntime, InvalidStore
from loader.storage import ObjectInfo, Store

if TYPE_CHECKING:
    from .exporter import Exporter
    from .importer import Importer, JoiningImporter
    from .reading.sample import FoundObjects


class Format(NamedTuple):
    registered: str = ""
    """Module that registers; "" if none."""
    importer: str = ""
    """Module, or `module:name`, that imports; "" if `registered` also does."""
    exporter: str = ""
    """Module that exports; "" if none."""
    companions: re.Pattern[str] | None = None
    """Pattern for names of objects without samples, such as indexes."""
    known: re.Pattern[str] | None = None
    """Pattern for names of other objects that are read, or that repeat samples; see also `Readable.known`."""
    is_table: bool = False
    """True for `RegisteredTables`."""
    is_partitioned: bool = False
    """True if folder names may hold values, as in `lang=de/part-0.parquet`."""
    is_isolated: bool = False
    """True if worker processes read it, because damaged files may crash or hang its library."""
    is_sharded: bool = False
    """True if names such as a-00000-of-00005.parquet state how many objects there are."""
    states_counts: bool = False
    """True if the format states what a source has: its files list objects, episodes, records or messages."""

    @property
    def may_miss(self) -> bool:
        """True if a source may state more than it has, so that --allow-missing means something."""
        return self.is_sharded or self.states_counts


_INDEXES = re.compile(r"(^|/)index\.json$|/\.penstock/export\.json$")
_SAVED = re.compile(r"(^|/)(state|dataset_infos?|dataset_dict)\.json$")

FORMATS = {
    "arrow": Format(
        registered=".tables.arrow",
        importer=".tables.arrow",
        known=_SAVED,
        is_table=True,
        is_partitioned=True,
        is_sharded=True,
    ),
    "csv": Format(importer=".tables.text_tables:CSV", is_partitioned=True, is_sharded=True),
    "energon": Format(
        registered=".archives.energon",
        exporter=".archives.energon",
        companions=re.compile(r"(^|/)\.nv-meta/|\.tar\.idx$"),
        known=re.compile(
            r"(^|/)\.nv-meta/((dataset|split|\.info)\.(yaml|json)|index\.(sqlite|uuid))$|\.tar\.idx$"
        ),
        states_counts=True,
    ),
    "files": Format(registered=".files", exporter=".files"),
    "hf": Format(
        registered=".tables.hf",
        importer=".tables.hf",
        companions=re.compile(r"\.(json|md)$"),
        known=_SAVED,
        is_table=True,
        is_partitioned=True,
        is_sharded=True,
        states_counts=True,
    ),
    "json": Format(importer=".tables.text_tables:JSON", is_partitioned=True, is_sharded=True),
    "jsonl": Format(importer=".tables.text_tables:JSON_LINES", is_partitioned=True, is_sharded=True),
    # Data files of earlier versions are not read, and their rows are in the newest version unless they were deleted.
    "lance": Format(
        importer=".tables.lance_import",
        companions=re.compile(r"^(?!data/.*\.lance$)"),
        states_counts=True,
        known=re.compile(r"^(data/.*\.lance$|_[a-z]+/|_latest\.manifest$)"),
    ),
    # `penstock register lerobot` calls `lerobot_registered` itself: an episode needs several files.
    "lerobot": Format(
        importer=".lerobot.lerobot_import",
        exporter=".lerobot.lerobot_export",
        companions=re.compile(r"^meta/|(?<!\.parquet)$"),
        states_counts=True,
    ),
    "litdata": Format(
        registered=".litdata",
        exporter=".litdata",
        companions=_INDEXES,
        known=_INDEXES,
        states_counts=True,
    ),
    "litdata-compressed": Format(
        importer=".litdata", companions=_INDEXES, known=_INDEXES, states_counts=True
    ),
    "mcap": Format(importer=".episodes.mcap_import", states_counts=True),
    "mds": Format(
        registered=".mds",
        exporter=".mds_export",
        companions=_INDEXES,
        known=_INDEXES,
        states_counts=True,
    ),
    "mds-compressed": Format(importer=".mds", companions=_INDEXES, known=_INDEXES, states_counts=True),
    "megatron": Format(
        registered=".megatron",
        exporter=".megatron",
        companions=re.compile(r"\.idx$"),
        known=re.compile(r"\.idx$"),
        states_counts=True,
    ),
    "parquet": Format(
        registered=".tables.parquet",
        importer=".tables.parquet",
        exporter=".tables.parquet",
        is_table=True,
        is_partitioned=True,
        is_sharded=True,
    ),
    "rlds": Format(
        importer=".episodes.rlds_import",
        companions=re.compile(r"\.json$"),
        known=re.compile(r"(^|/)(features|dataset_info|metadata)\.json$"),
        is_sharded=True,
        states_counts=True,
    ),
    "robomimic": Format(importer=".episodes.robomimic_import", is_isolated=True, states_counts=True),
    "rosbag": Format(
        importer=".episodes.rosbag_import",
        companions=re.compile(r"(?<!\.bag)(?<!\bmetadata\.yaml)$", re.IGNORECASE),
        states_counts=True,
    ),
    "tfrecord": Format(
        importer=".tables.tfrecord_import",
        companions=re.compile(r"(^|/)dataset_info\.json$"),
        known=re.compile(r"(^|/)dataset_info\.json$"),
        is_partitioned=True,
        is_sharded=True,
        states_counts=True,
    ),
    "webdataset": Format(
        registered=".archives.webdataset",
        exporter=".archives.webdataset",
        is_sharded=True,
    ),
    "webdataset-compressed": Format(importer=".archives.webdataset", is_sharded=True),
}

REGISTERED = frozenset(name for name, of in FORMATS.items() if of.registered and not of.is_table)
"""Formats that can be registered, and imported by copying byte ranges of objects."""
TABLES = frozenset(name for name, of in FORMATS.items() if of.is_table)
"""Formats that can be registered; reading a sample decodes a chunk of an object."""
IMPORTED = frozenset(name for name, of in FORMATS.items() if of.importer)
EXPORTED = frozenset(name for name, of in FORMATS.items() if of.exporter)


class RegisteredFormat(Protocol):
    """A module that registers a format whose samples are byte ranges."""

    OBJECTS_PER_SHARD: int
    """Most objects per index; 1 if an object has many samples."""

    def find_objects(self, store: Store, infos: list[ObjectInfo]) -> "FoundObjects":
        """Return the listed objects of the format. Raises: InvalidStore; Corrupt."""


class RegisteredTables(Protocol):
    """A module that registers a table format, with one index per object."""

    def find_objects(self, store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> "FoundObjects":
        """Return the listed objects of the format. Raises: InvalidStore; Corrupt."""


def exporter_named(name: str) -> "Exporter":
    """Return the exporter. Raises: InvalidStore if there is none."""
    _check_known(name, EXPORTED)
    return cast("Exporter", import_module(FORMATS[name].exporter, __package__))


def importer_named(name: str) -> "Importer | None":
    """Return the importer; None for `REGISTERED`. Raises: InvalidStore if there is none."""
    _check_known(name, REGISTERED | IMPORTED)
    if name in REGISTERED:
        return None
    module, _, attribute = FORMATS[name].importer.partition(":")
    importer = import_module(module, __package__)
    return cast("Importer", getattr(importer, attribute) if attribute else importer)


def joining_importer(name: str) -> "JoiningImporter":
    """Return the importer of a format that joins several files into one sample."""
    return cast("JoiningImporter", importer_named(name))


def registered_named(name: str) -> RegisteredFormat:
    """Return the module. Raises: InvalidStore for a format that is not in `REGISTERED`."""
    _check_known(name, REGISTERED)
    return cast(RegisteredFormat, import_module(FORMATS[name].registered, __package__))


def find_registered(
    name: str,
    store: Store,
    infos: list[ObjectInfo],
    options: ColumnarOptions,
    texts: Iterable[str] = (),
) -> "tuple[FoundObjects, int]":
    """Return a format's objects, and the most objects per index. texts: the dataset's text columns.

    Raises: InvalidStore if the format cannot be registered; InvalidRuntime for options that it does not accept.
    """
    _check_known(name, REGISTERED | TABLES)
    if name in TABLES:
        module = cast(RegisteredTables, import_module(FORMATS[name].registered, __package__))
        tables = module.find_objects(store, infos, options)
        partitions = Partitions((info.key for info in tables.infos), options.without, texts)
        return tables.with_columns(partitions), 1
    if options.key is not None or options.fields:
        message = (
            f"--key and --field are for tables, whose columns they name; {name} has its own keys and fields"
        )
        raise InvalidRuntime(message, what="--key and --field", given=name, accepted="tables")
    format = registered_named(name)
    return format.find_objects(store, infos), format.OBJECTS_PER_SHARD


def check_allow_missing(format: str, allow_missing: bool) -> None:
    """Raise InvalidRuntime if the option is set for a format that states no numbers."""
    if allow_missing and not FORMATS[format].may_miss:
        accepted = ", ".join(sorted(name for name, one in FORMATS.items() if one.may_miss))
        message = (
            f"--allow-missing is for formats that state how much a source has; {format} states nothing: leave the "
            f"option out. Accepted: {accepted}"
        )
        raise InvalidRuntime(message, what="--allow-missing", given=format, accepted=accepted)


def _check_known(name: str, accepted: frozenset[str]) -> None:
    if name not in accepted:
        message = f"format {name!r} is not known; accepted: {', '.join(sorted(accepted))}"
        raise InvalidStore(message, what="format", given=name, accepted=sorted(accepted))
