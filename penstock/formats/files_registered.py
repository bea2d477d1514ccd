"""Register plain files: each is a sample, its extension the field. Only a listing is read."""

import posixpath
from collections.abc import Iterator
from functools import partial

from loader.storage import ObjectInfo, Span, Store

from .reading.exported import is_export
from .reading.sample import ForeignSample, FoundObjects

OBJECTS_PER_SHARD = 4096
TABLE = "metadata.parquet"
"""Table of an export, with the columns of its samples."""


def find_objects(store: Store, infos: list[ObjectInfo]) -> FoundObjects:
    """Return the files whose extension can be a field, without hidden files and tables of exports."""
    files = [info for info in infos if _field(info.key)]
    return FoundObjects([info for info in files if not _is_table(store, info.key)], partial(samples, store))


def _is_table(store: Store, key: str) -> bool:
    folder, slash, name = key.rpartition("/")
    return name == TABLE and is_export(store, f"{folder}{slash}", "files")


def samples(store: Store, info: ObjectInfo) -> Iterator[ForeignSample]:
    """Yield the one sample of a file; its key is the path without the extension."""
    key = posixpath.splitext(info.key)[0]
    metadata = {"path": info.key, "nbytes": info.nbytes, "modified_us": info.modified_us}
    yield ForeignSample(key, {_field(info.key): Span(0, info.nbytes)}, metadata)


def _field(key: str) -> str:
    """Return the field of a file, "" if it is no sample. Pickles are refused by name later."""
    stem, extension = posixpath.splitext(key)
    name = extension.removeprefix(".").lower()
    hidden = any(word.startswith(".") for word in stem.split("/"))
    return name if name.isalnum() and name.isascii() and not hidden else ""
