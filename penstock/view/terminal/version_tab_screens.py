"""Screens of a version beside its samples."""

from ..inspect.version_contents import version_contents
from ..inspect.version_lineage import version_lineage
from ..maps.groups_record import groups_record, parse_cosine
from ..maps.groups_sections import groups_sections
from ..sections.section import SectionPage
from ..sections.version_tabs import contents_sections, lineage_sections
from .addresses import ContentsPage, GroupsPage, LineagePage
from .section_screen import SectionScreen


class ContentsScreen(SectionScreen):
    page: ContentsPage

    def load_record(self) -> SectionPage:
        version = self.data.version(self.page.dataset, self.page.number)
        return contents_sections(version_contents(version))


class LineageScreen(SectionScreen):
    page: LineagePage

    def load_record(self) -> SectionPage:
        version = self.data.version(self.page.dataset, self.page.number)
        return lineage_sections(version_lineage(self.data.root, version))


class GroupsScreen(SectionScreen):
    page: GroupsPage

    def load_record(self) -> SectionPage:
        version = self.data.version(self.page.dataset, self.page.number)
        record = groups_record(
            version,
            self.data.columns,
            parse_cosine(self.page.cosine),
        )
        return groups_sections(record)
