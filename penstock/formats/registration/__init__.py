"""Other people's formats, read where they lie: and registered as a version. each in its folder of `penstock.formats`.

A format is a module with two names, and a line in `FORMATS`.

- `OBJECTS_PER_SHARD`: objects that one index describes; 1 where an object has many samples.
- `look(store, infos)`: those of the listed objects that are of the format, with a function that gives the samples of
  one, each a `ForeignSample`, or many as a `ForeignRun`. InvalidStore where none can be read.

Tables are in `TABLES`: their `look` takes options too. Samples of Parquet lie in what objects decode to.

It knows nothing of versions: `register.py` makes keys, groups, indexes and tables of what it yields.
"""

import re
from collections.abc import Iterable
from importlib import import_module
from typing import Protocol, cast

from loader.dataset.columnar.choices import Options
from loader.dataset.columnar.partitions import Partitions
from loader.errors import InvalidRuntime, InvalidStore
from loader.storage import ObjectInfo, Store

from ..reading.sample import Found

FORMATS = {
    "energon": "..archives.energon",
    "files": "..plain_files",
    "litdata": "..litdata.chunks",
    "mds": "..mds.shards",
    "megatron": "..megatron_documents",
    "webdataset": "..archives.webdataset",
}
"""Format -> its module."""
_INDEXES = re.compile(r"(^|/)index\.json$|/\.penstock/export\.json$")
COMPANIONS = {
    "energon": re.compile(r"(^|/)\.nv-meta/|\.tar\.idx$"),
    "litdata": _INDEXES,
    "mds": _INDEXES,
    "megatron": re.compile(r"\.idx$"),
}
"""Format whose objects are read with others of the place -> names of these others, which hold no samples."""
TABLES = {
    "arrow": "..tables.arrow_batches",
    "hf": "..tables.hub",
    "parquet": "..tables.parquet_rows",
}
"""Format of tables -> its module."""


class Format(Protocol):
    """A module of a format."""

    OBJECTS_PER_SHARD: int
    """Objects that one index describes, at most."""

    def look(self, store: Store, infos: list[ObjectInfo]) -> Found:
        """Return those of the listed objects that are of the format. Raises: InvalidStore; Corrupt; StoreError."""


class TableFormat(Protocol):
    """A module of a format of tables; an object is an index."""

    def look(self, store: Store, infos: list[ObjectInfo], options: Options) -> Found:
        """Return those of the listed objects that are of the format. Raises: InvalidStore; Corrupt; StoreError."""


def look_at(
    format: str,
    store: Store,
    infos: list[ObjectInfo],
    options: Options,
    texts: Iterable[str] = (),
) -> tuple[Found, int]:
    """Return the objects of a format, and how many of them one index describes, at most.

    texts: columns that the dataset has as text.

    Raises: InvalidStore for another format; InvalidRuntime for options that it does not take; as `Format.look`.
    """
    if format in TABLES:
        tables = cast(TableFormat, import_module(TABLES[format], __name__)).look(store, infos, options)
        partitions = Partitions((info.key for info in tables.infos), options.without, texts)
        return tables.with_partitions(partitions), 1
    if format not in FORMATS:
        raise InvalidStore(
            f"format {format!r} is not known; accepted: {', '.join(sorted({*FORMATS, *TABLES}))}"
        )
    if options.key is not None or options.fields:
        raise InvalidRuntime(
            f"--key and --field are for tables, whose columns they name; {format} has its own keys and fields"
        )
    found = format_named(format)
    return found.look(store, infos), found.OBJECTS_PER_SHARD


def format_named(name: str) -> Format:
    """Return a format. Raises: InvalidStore for another name."""
    if name not in FORMATS:
        raise InvalidStore(f"format {name!r} is not known; accepted: {', '.join(sorted(FORMATS))}")
    return cast(Format, import_module(FORMATS[name], __name__))
