"""Dataset pages: the first page, versions, samples, and differences between versions."""

from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

from textual.binding import Binding
from textual.widget import Widget

from ...text import clean
from ...units import size
from ..inspect.sample_record import SampleRecord, sample_record, stored_sample
from ..inspect.version_record import (
    difference,
)
from ..kinds.kind import Media
from ..raw_source import RawObjectRecord
from ..sections.comparisons import difference_sections
from ..sections.home import home_sections
from ..sections.section import SectionPage
from ..shown_values import facts_of
from .addresses import (
    DifferencePage,
    RootPage,
    RunPage,
    SamplePage,
    StepPage,
    VersionPage,
)
from .record_screen import RecordScreen, heading, line, raw_of, raw_widgets, relations
from .section_screen import SectionList, SectionScreen

CARDS = 24
"""Samples per page."""
SAMPLE_ROWS = 14
"""Rows of an image on a sample's page."""
RAW_LINES = 12
"""Lines of a raw object's value."""


class RootScreen(SectionScreen):
    page: RootPage

    def load_record(self) -> SectionPage:
        return home_sections(self.data.home())

    def focus_content(self) -> None:
        """Focus what needs attention, or else the newest run."""
        super().focus_content()
        for lines in self.query(SectionList):
            lines.highlight_first(RunPage, StepPage, VersionPage)


class _Sample(NamedTuple):
    record: SampleRecord
    pictures: dict[str, Media | None]
    raw: RawObjectRecord | None


class SampleScreen(RecordScreen):
    page: SamplePage
    BINDINGS: ClassVar[list[Any]] = [
        Binding("left", "walk(-1)", "previous sample"),
        Binding("right", "walk(1)", "next sample"),
    ]

    def load_record(self) -> _Sample:
        at = self.page.version
        version = self.data.version(at.dataset, at.number)
        search = self.data.run_search(self.page.search_from)
        record = sample_record(version, self.page.ordinal, search, self.data.slice_search)
        pictures = {}
        for field in record.fields:
            if field.decoded is not None:
                data = stored_sample(version, record.ordinal, field.field)
                facts = facts_of(data, field.field, version)
                pictures[field.field] = self.thumbnail(
                    data[field.field], facts, self.app.size.width, SAMPLE_ROWS
                )
        return _Sample(record, pictures, raw_of(self, record, SAMPLE_ROWS))

    def title_of(self, page: _Sample) -> str:
        record = page.record
        return (
            f"{record.dataset}@{record.number} sample {record.ordinal} of {record.n_samples:,}: {record.key}"
        )

    def widgets(self, page: _Sample) -> Iterable[Widget]:
        record, pictures = page.record, page.pictures
        if page.raw is not None:
            yield from raw_widgets(self, page.raw, SAMPLE_ROWS, RAW_LINES)
        yield from (line(f"! {mark.text}", bad=True) for mark in record.marks)
        for field in record.fields:
            yield heading(f"{field.field}  {size(field.nbytes)}, CRC-32C {field.crc32c}")
            if field.error:
                yield line(clean(field.error, 400), bad=True)
            picture = self.picture(pictures.get(field.field), self.app.size.width - 4, SAMPLE_ROWS)
            if picture is not None:
                yield picture
            if field.decoded is not None:
                yield from (line(f"! {mark.text}", bad=True) for mark in field.decoded.marks)
                yield from (line(text) for text in field.decoded.lines)
        yield from relations(record, self.page.version, self.page)
        for name, table in (("Columns", record.columns), ("Provenance", record.provenance)):
            if table:
                yield heading(name)
                yield from (line(f"{key:<20} {clean(value, 300)}") for key, value in sorted(table.items()))

    def selected_sample(self) -> tuple[str, str] | None:
        at = self.page.version
        return None if self.record is None else (f"{at.dataset}@{at.number}", self.record.record.key)

    def provenance_lines(self) -> list[str]:
        if self.record is None:
            return []
        record = self.record.record
        places = [
            f"{one.field}: {one.nbytes:,} bytes of {one.path} from {one.offset}" for one in record.fields
        ]
        return [
            record.key,
            *places,
            *(f"{key} {clean(value, 300)}" for key, value in record.provenance.items()),
        ]

    def action_walk(self, by: int) -> None:
        if self.record is not None and 0 <= self.page.ordinal + by < self.record.record.n_samples:
            self.viewer.open(SamplePage(version=self.page.version, ordinal=self.page.ordinal + by))

    def command(self) -> str:
        at = self.page.version
        key = "KEY" if self.record is None else self.record.record.key
        return self.viewer.command("exclude", "--reason", "R", "--by", "WHO", names=(at.dataset, key))


class DifferenceScreen(SectionScreen):
    page: DifferencePage

    def load_record(self) -> SectionPage:
        at = self.page
        before = self.data.version(at.dataset, at.number)
        after = self.data.version(at.dataset, at.other)
        return difference_sections(difference(before, after))
