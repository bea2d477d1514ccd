"""Facts about a sample beside its fields, on its own page and its slots': edits, and samples that look like it."""

from collections.abc import Iterable

from textual.widget import Widget

from ..inspect.plain_text import edit_line, neighbour_line
from ..inspect.sample_record import SampleRecord
from ..inspect.slot_record import SlotRecord
from .addresses import SamplePlace, VersionPlace
from .record_screen import PlaceList, heading, line


def relations(record: SampleRecord | SlotRecord, version: VersionPlace) -> Iterable[Widget]:
    """Yield the edits and neighbours of a sample. version: the page of its version."""
    if record.edits:
        yield heading("Edits")
        yield from (line(edit_line(one)) for one in record.edits)
    if record.neighbours:
        yield heading("Samples that look like it")
        yield PlaceList(
            (neighbour_line(one), SamplePlace(version=version, ordinal=one.ordinal))
            for one in record.neighbours
        )
