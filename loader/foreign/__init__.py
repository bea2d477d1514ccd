"""Other people's formats, read where they lie: a file per format, and the registration of their bytes as a version.

A format is a module with three names, and a line in `FORMATS`.

- `OBJECTS_PER_SHARD`: objects that one index describes; 1 where an object has many samples.
- `look(store, infos)`: those of the listed objects that are of the format. InvalidStore where none can be read.
- `samples(store, info)`: the samples of one object, each a `ForeignSample`.

It knows nothing of versions: `register.py` makes keys, groups, indexes and tables of what it yields.
"""

from collections.abc import Iterator
from importlib import import_module
from typing import Protocol, cast

from ..errors import InvalidStore
from ..storage import ObjectInfo, Store
from .sample import ForeignSample

FORMATS = {"files": ".plain_files", "webdataset": ".webdataset"}
"""Format -> its module."""


class Format(Protocol):
    """A module of a format."""

    OBJECTS_PER_SHARD: int
    """Objects that one index describes, at most."""

    def look(self, store: Store, infos: list[ObjectInfo]) -> list[ObjectInfo]:
        """Return those of the listed objects that are of the format. Raises: InvalidStore."""

    def samples(self, store: Store, info: ObjectInfo) -> Iterator[ForeignSample]:
        """Yield the samples of an object. Raises: Corrupt; InvalidSample; Changed; StoreError."""


def format_named(name: str) -> Format:
    """Return a format. Raises: InvalidStore for another name."""
    if name not in FORMATS:
        raise InvalidStore(f"format {name!r} is not known; accepted: {', '.join(sorted(FORMATS))}")
    return cast(Format, import_module(FORMATS[name], __name__))
