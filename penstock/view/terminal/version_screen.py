"""A version's page: its filter, its samples as cards, and facets of which a key chooses a value."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

from textual.binding import Binding
from textual.widget import Widget

from loader.errors import Corrupt, InvalidRuntime, MissingDependency

from ...text import clean
from ..facets.facets import facets_in_sight
from ..facets.version_filter import VersionFilter
from ..inspect.sample_record import read_sample
from ..inspect.version_record import GridRow, VersionPageRecord, version_record
from ..kinds.kind import Media
from ..kinds.stored_bytes import card_field
from ..marks import count_text
from ..sections.characters.section_lines import section_lines
from ..sections.facets import facet_sections, filter_sections
from ..sections.section import BoxSection, FactsSection, Section
from ..sections.version_tabs import version_tabs
from ..shown_values import field_facts
from ..similarity_query import parse_like
from .addresses import SamplePage, VersionPage
from .record_screen import RecordScreen, heading, line
from .section_screen import SectionList
from .widgets import CARD_COLUMNS, PICTURE_ROWS, CardGrid, GridCard, InputDialog

CARDS = 24
"""Samples per page."""


class _VersionLine(NamedTuple):
    record: VersionPageRecord
    shown: tuple[GridRow, ...]
    pictures: dict[int, Media | None]


class VersionScreen(RecordScreen):
    page: VersionPage
    BINDINGS: ClassVar[list[Any]] = [
        Binding("slash", "filter", "filter"),
        Binding("f", "facets", "facets"),
    ]

    def load_record(self) -> _VersionLine:
        at = self.page
        version = self.data.version(at.dataset, at.number)
        # Without a filter, stored statistics are enough until a person opens a facet.
        facet_names = None
        if at.facet:
            facet_names = [*facets_in_sight(version, self.data.columns), at.facet]
        record = version_record(
            version,
            at.filter,
            first=at.first,
            facet_names=facet_names,
            cache=self.data.columns,
            keep_page=True,
            liked=partial(parse_like, self.data, version),
        )
        # Cards of a terminal are larger than a browser's, and each image is decoded for its cells.
        shown = record.rows[:CARDS]
        pictures = {}
        for row in shown:
            field = card_field(row.fields)
            if not field or self.viewer.pictures == "none":
                continue
            pictures[row.ordinal] = self._thumbnail(version, row.ordinal, field)
        return _VersionLine(record, shown, pictures)

    def _thumbnail(self, version: Any, ordinal: int, field: str) -> Media | None:
        try:
            data = read_sample(version, ordinal, field)
        # The sample's page shows the error; one damaged image must not hide the others.
        except (Corrupt, InvalidRuntime, MissingDependency):
            return None
        facts = field_facts(data, field, version)
        return self.thumbnail(
            data[field],
            facts,
            CARD_COLUMNS - 1,
            PICTURE_ROWS,
        )

    def title_of(self, page: _VersionLine) -> str:
        record = page.record
        title = f"{record.dataset}@{record.number}: {count_text(record.n_samples, 'sample')}"
        if record.n_excluded:
            title += f", {record.n_excluded:,} excluded"
        return title

    def widgets(self, page: _VersionLine) -> Iterable[Widget]:
        record = page.record
        yield line(_summary(page))
        for error in record.error.splitlines():
            yield line(error, bad=True)
        for path, problem in record.damaged.items():
            yield line(f"left out of the search: {path}: {clean(problem, 300)}", bad=True)
        terms = filter_sections(record)
        if terms:
            yield self._list(terms, "terms")
        cards = []
        for row in page.shown:
            picture = page.pictures.get(row.ordinal)
            cards.append(self._card(row, picture))
        yield CardGrid(cards, self.app.size.width)
        yield heading("Columns: Enter on a value filters by it, on a name shows all of its values")
        tabs = version_tabs(record.dataset, record.number, "Samples")
        pages = BoxSection(title="Pages", sections=(FactsSection(tabs[1:]),))
        facets = facet_sections(record, [self.page.facet], stays_open=True)
        yield self._list([*facets, pages], "facets")

    def _list(self, sections: Iterable[Section], name: str) -> SectionList:
        lines = []
        for section in sections:
            lines += section_lines(section, self.app.size.width)
        return SectionList(lines, name=name)

    def _card(self, row: GridRow, media: Media | None) -> GridCard:
        columns = [f"{name} {value}" for name, value in row.columns.items()]
        contents = [row.line] if row.line else row.fields
        number = str(row.ordinal)
        if self.page.filter.like and row.score is not None:
            number += f"  {row.score:.4f}"
        lines = [number, clean(row.key, 80), *columns, *contents]
        picture = self.picture(media, CARD_COLUMNS - 1, PICTURE_ROWS)
        version = f"{self.page.dataset}@{self.page.number}"
        return GridCard(row.ordinal, version, row.key, lines, picture)

    def focus_content(self) -> None:
        """Focus the facet that a person used, or else the first card."""
        if self.page.facet:
            self.action_facets()
            return
        cards = self.query_one(CardGrid).cards
        if cards:
            cards[0].focus(scroll_visible=False)
        else:
            super().focus_content()

    def action_facets(self) -> None:
        """Put the cursor on the facet in use, or on the first one."""
        if self.record is None:
            return
        for lists in self.query(SectionList):
            if lists.name == "facets":
                lists.highlight_text(self.page.facet)
                lists.focus()

    def selected_sample(self) -> tuple[str, str] | None:
        card = self.focused
        if not isinstance(card, GridCard):
            return None
        return card.version, card.key

    def on_grid_card_opened(self, event: GridCard.Opened) -> None:
        self.viewer.open(SamplePage(version=self.page, ordinal=event.card.number))

    def on_card_grid_beyond(self, event: CardGrid.Beyond) -> None:
        if self.record is None:
            return
        first = self.page.first + CARDS
        if event.by < 0:
            first = max(0, self.page.first - CARDS)
        if first < self.record.record.n_found and first != self.page.first:
            self.viewer.open(replace(self.page, first=first, facet=""))

    def action_explain(self) -> None:
        """Open the selected sample's page, which has its provenance."""
        card = self.focused
        if isinstance(card, GridCard):
            self.viewer.open(SamplePage(version=self.page, ordinal=card.number))

    def action_more_like(self) -> None:
        """Rank the samples of the filter by their similarity to the selected one."""
        card = self.focused
        if isinstance(card, GridCard):
            # Two orders exclude each other.
            ranked = replace(self.page.filter, like=card.key, sort="")
            self._show(ranked)

    def action_filter(self) -> None:
        # A wrong filter stays here until a person mends it.
        asked = self.page.filter
        written = {
            "where": asked.where,
            "words": asked.words,
            "like": asked.like,
            "sort": asked.sort,
        }
        dialog = InputDialog("Samples: SQL, words of texts, the key of a sample to be like", written)
        self.app.push_screen(dialog, self._apply_filter)

    def _apply_filter(self, answers: dict[str, str] | None) -> None:
        if answers is None:
            return
        asked = replace(
            self.page.filter,
            where=answers["where"].strip(),
            words=answers["words"].strip(),
            like=answers["like"].strip(),
            sort=answers["sort"].strip(),
        )
        self._show(asked)

    def _show(self, new_filter: VersionFilter) -> None:
        """Open the page of a filter from its first sample on; no facet shows all of its values."""
        page = replace(
            self.page,
            filter=new_filter,
            first=0,
            facet="",
        )
        self.viewer.open(page)

    def command(self) -> str:
        return self.viewer.command("show", f"{self.page.dataset}@{self.page.number}")


def _summary(page: _VersionLine) -> str:
    """Return how many samples pass the filter, and the parts of it."""
    record = page.record
    text = f"{record.n_found:,} found"
    if record.about:
        text = f"about {text}"
    if page.shown:
        end = record.first + len(page.shown)
        text += f", {record.first + 1:,} to {end:,} shown"
    if record.where:
        text += f"; where {record.where}"
    if record.like:
        text += "; the most similar first"
    if record.sort:
        text += f"; sort {record.sort}"
    return text
