"""Register plain files: each is a sample, its extension is the field. Only listings are read."""

import posixpath
from collections.abc import Iterator
from functools import partial

from loader.storage import ByteRange, ObjectInfo, Store

from .reading.exported import is_export
from .reading.sample import ForeignSample, FoundObjects

OBJECTS_PER_SHARD = 4096
TABLE = "metadata.parquet"
"""Name of an export's table, which holds its samples' columns."""


def find_objects(store: Store, infos: list[ObjectInfo]) -> FoundObjects:
    """Return the files whose extension is a valid field name, except hidden files and export tables."""
    files = [info for info in infos if _field(info.key)]
    return FoundObjects([info for info in files if not _is_table(store, info.key)], partial(samples, store))


def _is_table(store: Store, key: str) -> bool:
    folder, slash, name = key.rpartition("/")
    return name == TABLE and is_export(store, f"{folder}{slash}", "files")


def samples(store: Store, info: ObjectInfo) -> Iterator[ForeignSample]:
    """Yield a file's one sample; its key is the path without the extension."""
    key = posixpath.splitext(info.key)[0]
    metadata = {"path": info.key, "nbytes": info.nbytes, "modified_us": info.modified_us}
    yield ForeignSample(key, {_field(info.key): ByteRange(0, info.nbytes)}, metadata)


def _field(key: str) -> str:
    """Return a file's field name, "" if the file is not a sample. Pickles are rejected by name later."""
    stem, extension = posixpath.splitext(key)
    name = extension.removeprefix(".").lower()
    hidden = any(word.startswith(".") for word in stem.split("/"))
    return name if name.isalnum() and name.isascii() and not hidden else ""
