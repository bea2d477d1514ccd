"""Export files: one object `<key>.<field>` per field, and one table `metadata.parquet`."""

from collections.abc import Sequence
from typing import Any

from loader.errors import InvalidKey

from .export_selection import ExportSelection, WorkUnit
from .exporter import FOLDER, Loss, Outbox
from .files_registered import TABLE

AT_ONCE = 1000
"""Maximum number of samples per unit."""


def losses(selection: ExportSelection) -> list[Loss]:
    """Return no losses: files hold every name, byte and column."""
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
