"""Slice pages: all slices, and one."""

from ..inspect.slices_record import slices_record
from ..sections.section import SectionPage
from ..sections.slices import slice_sections, slices_sections
from .addresses import SlicePage, SlicesPage
from .section_screen import SectionScreen


class SlicesScreen(SectionScreen):
    page: SlicesPage

    def load_record(self) -> SectionPage:
        return slices_sections(slices_record(self.data.root, self.data.slice_trainings))


class SliceScreen(SectionScreen):
    page: SlicePage

    def load_record(self) -> SectionPage:
        return slice_sections(self.data.slice_page(self.page.dataset, self.page.name))
