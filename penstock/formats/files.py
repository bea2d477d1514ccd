"""Plain files: each is a sample, its extension is the field. Registering reads only listings.

An export is one object `<key>.<field>` per field, and one table `metadata.parquet`.
"""

import posixpath
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from loader.errors import InvalidKey
from loader.storage import ByteRange, ObjectInfo, Store

from .archives.field_names import FieldNames
from .exporter import FOLDER, ExportSelection, Loss, Outbox, WorkUnit
from .reading.exported import is_export
from .reading.sample import ForeignSample, FoundObjects

OBJECTS_PER_SHARD = 4096
TABLE = "metadata.parquet"
"""Name of an export's table of columns."""


def find_objects(store: Store, infos: list[ObjectInfo]) -> FoundObjects:
    """Return the files whose extension is a valid field name, without hidden files and export tables."""
    files = list[ObjectInfo]()
    field_names = FieldNames()
    for info in infos:
        if field := _field(info.key):
            field_names.add(field, info.key)
            files.append(info)
    return FoundObjects([info for info in files if not _is_table(store, info.key)], partial(samples, store))


def _is_table(store: Store, key: str) -> bool:
    folder, slash, name = key.rpartition("/")
    # By the export's note: a user's own file may have that name.
    return name == TABLE and is_export(store, f"{folder}{slash}", "files")


def samples(store: Store, info: ObjectInfo) -> Iterator[ForeignSample]:
    key = posixpath.splitext(info.key)[0]
    metadata = {"path": info.key, "nbytes": info.nbytes, "modified_us": info.modified_us}
    yield ForeignSample(key, {_field(info.key): ByteRange(0, info.nbytes)}, metadata)


def _field(key: str) -> str:
    """Return the field, "" for no sample. Pickles are rejected by name later."""
    stem, extension = posixpath.splitext(key)
    name = extension.removeprefix(".").lower()
    # Tools make hidden files beside media, such as .DS_Store.
    hidden = any(word.startswith(".") for word in stem.split("/"))
    if name.isalnum() and name.isascii() and not hidden:
        return name
    return ""


AT_ONCE = 1000
"""Most samples per unit."""


def losses(selection: ExportSelection) -> list[Loss]:
    return []


def units(selection: ExportSelection) -> list[WorkUnit]:
    return selection.by_part(AT_ONCE)


def write(selection: ExportSelection, unit: WorkUnit, outbox: Outbox) -> dict[str, Any]:
    for sample in selection.samples(unit):
        for name, data in sample.fields.items():
            outbox.put(_key(sample.key, name), data)
    return {}


def finish(selection: ExportSelection, facts: Sequence[dict[str, Any]], outbox: Outbox) -> None:
    """Write the table of keys, metadata and provenance, if there are such columns."""
    if selection.frame is None:
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    keys = selection.version.samples().select("key").collect()
    chosen = keys.hstack(selection.frame).filter(selection.members)
    sink = pa.BufferOutputStream()
    pq.write_table(chosen.to_arrow(), sink, compression="zstd")
    outbox.put(TABLE, sink.getvalue().to_pybytes())


def _key(key: str, field: str) -> str:
    name = f"{key}.{field}"
    if name == TABLE or name.startswith(FOLDER):
        raise InvalidKey(
            f"sample {key!r} with field {field!r} would be written as {name}, which is the export's own; leave it out "
            "with --where"
        )
    return name
