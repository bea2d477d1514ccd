"""Export WebDataset: a tar archive per part, with the fields of all groups, and metadata as a `.json` member."""

from collections.abc import Sequence
from typing import Any

from ..exporting.exporter import Loss
from ..exporting.outbox import Outbox
from ..exporting.selection import ExportSelection, WorkUnit
from .tar_members import metadata_loss, put_archive


def losses(selection: ExportSelection) -> list[Loss]:
    """Return fields whose names webdataset changes, and metadata without a free name."""
    out = [
        Loss(f"field {name!r}", f"webdataset reads extensions in lower case: it becomes {name.lower()!r}")
        for name in selection.fields
        if name != name.lower()
    ]
    return out + metadata_loss(selection)


def units(selection: ExportSelection) -> list[WorkUnit]:
    """Return the samples of each part."""
    return selection.by_part()


def write(selection: ExportSelection, unit: WorkUnit, outbox: Outbox) -> dict[str, Any]:
    """Put an archive."""
    put_archive(selection, unit, outbox, f"{unit.number:06d}.tar")
    return {}


def finish(selection: ExportSelection, facts: Sequence[dict[str, Any]], outbox: Outbox) -> None:
    """Put nothing: archives need no index."""
