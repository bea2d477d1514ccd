"""WebDataset: a tar archive for each part, with the fields of all groups, and metadata as a `.json` member."""

from collections.abc import Sequence
from typing import Any

from loader.dataset.shards.shard import BLOCK_BYTES, member_header

from ..exporter import Loss
from ..outbox import Outbox
from ..selection import Selection, WorkUnit
from .metadata_json import metadata_json

MEMBERS = ("json", "metadata.json")
"""Extensions of the metadata's member: the first that no field has."""


def losses(selection: Selection) -> list[Loss]:
    """Return fields whose names webdataset changes, and metadata without a name left."""
    found = [
        Loss(f"field {name!r}", f"webdataset reads extensions in lower case: it becomes {name.lower()!r}")
        for name in selection.fields
        if name != name.lower()
    ]
    if selection.columns and _member(selection) is None:
        taken = " and ".join(map(repr, MEMBERS))
        found.append(
            Loss("metadata", f"its member would be one of {taken}, which are fields: it is left out")
        )
    return found


def units(selection: Selection) -> list[WorkUnit]:
    """Return the samples of each part."""
    return selection.by_part()


def write(selection: Selection, unit: WorkUnit, outbox: Outbox) -> dict[str, Any]:
    """Put an archive: members of a sample side by side, names sorted."""
    member = _member(selection)
    with outbox.file(f"{unit.number:06d}.tar") as file:
        for sample in selection.samples(unit):
            fields = dict(sample.fields)
            if member and sample.columns:
                fields[member] = metadata_json(sample.columns)
            for name, data in sorted(fields.items()):
                file.write(member_header(f"{sample.key}.{name}", len(data)))
                file.write(data)
                file.write(bytes(-len(data) % BLOCK_BYTES))
        file.write(bytes(2 * BLOCK_BYTES))
    return {}


def finish(selection: Selection, facts: Sequence[dict[str, Any]], outbox: Outbox) -> None:
    """Put nothing: an archive needs no other."""


def _member(selection: Selection) -> str | None:
    taken = {name.lower() for name in selection.fields}
    return next((name for name in MEMBERS if name not in taken), None)
