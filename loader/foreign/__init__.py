"""Other people's formats, read where they lie: and registered as a version. `formats` has a file for each.

A format is a module with two names, and a line in `FORMATS`.

- `OBJECTS_PER_SHARD`: objects that one index describes; 1 where an object has many samples.
- `look(store, infos)`: those of the listed objects that are of the format, with a function that gives the samples of
  one, each a `ForeignSample`, or many as a `ForeignRun`. InvalidStore where none can be read.

It knows nothing of versions: `register.py` makes keys, groups, indexes and tables of what it yields.
"""

from importlib import import_module
from typing import Protocol, cast

from ..errors import InvalidStore
from ..storage import ObjectInfo, Store
from .formats.sample import Found

FORMATS = {
    "energon": ".formats.energon.archives",
    "files": ".formats.plain_files",
    "mds": ".formats.mds",
    "megatron": ".formats.megatron.documents",
    "webdataset": ".formats.webdataset",
}
"""Format -> its module."""


class Format(Protocol):
    """A module of a format."""

    OBJECTS_PER_SHARD: int
    """Objects that one index describes, at most."""

    def look(self, store: Store, infos: list[ObjectInfo]) -> Found:
        """Return those of the listed objects that are of the format. Raises: InvalidStore; Corrupt; StoreError."""


def format_named(name: str) -> Format:
    """Return a format. Raises: InvalidStore for another name."""
    if name not in FORMATS:
        raise InvalidStore(f"format {name!r} is not known; accepted: {', '.join(sorted(FORMATS))}")
    return cast(Format, import_module(FORMATS[name], __name__))
