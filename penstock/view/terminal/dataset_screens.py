"""The first page, a sample, and differences between versions."""

from ..inspect.sample_record import read_sample, sample_record
from ..inspect.version_record import difference
from ..sections.comparisons import difference_sections
from ..sections.cost import cost_sections
from ..sections.home import home_sections
from ..sections.sample import SampleMedia, sample_sections
from ..sections.section import SectionPage
from ..shown_values import field_facts
from .addresses import CostPage, DifferencePage, RootPage, RunPage, SamplePage, StepPage, VersionPage
from .record_screen import raw_of
from .section_screen import SectionList, SectionScreen
from .slot_screen import WHOLE_ROWS, ValuesScreen


class RootScreen(SectionScreen):
    page: RootPage

    def load_record(self) -> SectionPage:
        return home_sections(self.data.home())

    def focus_content(self) -> None:
        """Focus what needs attention, or else the newest run."""
        super().focus_content()
        for lines in self.query(SectionList):
            lines.highlight_first(RunPage, StepPage, VersionPage)


class DifferenceScreen(SectionScreen):
    page: DifferencePage

    def load_record(self) -> SectionPage:
        at = self.page
        before = self.data.version(at.dataset, at.number)
        after = self.data.version(at.dataset, at.other)
        return difference_sections(difference(before, after))


class CostScreen(SectionScreen):
    page: CostPage

    def load_record(self) -> SectionPage:
        return cost_sections(self.data.costs.read(self.data.root))


class SampleScreen(ValuesScreen):
    page: SamplePage

    def load_record(self) -> SectionPage:
        at = self.page.version
        version = self.data.version(at.dataset, at.number)
        search = self.data.run_search(self.page.search_from)
        record = sample_record(
            version,
            self.page.ordinal,
            search,
            self.data.slice_search,
            searches=self.data.columns.searches,
        )
        for field in record.fields:
            if field.decoded is not None:
                data = read_sample(version, record.ordinal, field.field)
                facts = field_facts(data, field.field, version)
                # Drawn here, in the loading thread: decoding takes too long for the main one.
                picture = self.thumbnail(data[field.field], facts, self.app.size.width, WHOLE_ROWS)
                self._pictures["decoded", field.field] = picture
        return sample_sections(record, SampleMedia(raw=raw_of(self, record, WHOLE_ROWS)), {})

    def action_follow(self, key: str) -> None:
        """Open the sample before or after this one, below the same page of samples."""
        links = [link for link in self.record.keys if link.key == key] if self.record is not None else []
        if links:
            by = 1
            if key != "→":
                by = -1
            self.viewer.open(SamplePage(version=self.page.version, ordinal=self.page.ordinal + by))
