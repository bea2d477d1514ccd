"""Dataset pages: the first page, versions, samples, and differences between versions."""

from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

from textual.binding import Binding
from textual.widget import Widget

from loader.errors import Corrupt, InvalidRuntime, MissingDependency

from ...text import clean
from ...units import number, size
from ..inspect.plain_text import facet_line
from ..inspect.sample_record import SampleRecord, sample_record, stored_sample
from ..inspect.version_record import (
    Difference,
    GridRow,
    RootRecord,
    VersionPageRecord,
    difference,
    root_record,
    version_record,
)
from ..kinds.kind import Media
from ..kinds.stored_bytes import pictured_field
from ..raw_source import RawObjectRecord
from ..shown_values import facts_of
from .addresses import DifferencePage, PageAddress, RootPage, RunPage, SamplePage, VersionPage
from .record_screen import LinkList, RecordScreen, heading, line, raw_of, raw_widgets, relations
from .widgets import CARD_COLUMNS, PICTURE_ROWS, CardGrid, GridCard, InputDialog

CARDS = 24
"""Samples per page."""
SAMPLE_ROWS = 14
"""Rows of an image on a sample's page."""
RAW_LINES = 12
"""Lines of a raw object's value."""


class RootScreen(RecordScreen):
    page: RootPage

    def load_record(self) -> RootRecord:
        return root_record(self.data.root)

    def title_of(self, record: RootRecord) -> str:
        return f"penstock {record.root}"

    def widgets(self, record: RootRecord) -> Iterable[Widget]:
        yield LinkList(self._rows(record))

    def _rows(self, record: RootRecord) -> Iterable[tuple[str, PageAddress | None]]:
        yield "Trainings" if record.runs else "No training has recorded a trail here", None
        for run in record.runs:
            yield f"  {clean(run, 200)}", RunPage(run=run)
        for dataset, versions in sorted(record.datasets.items()):
            yield dataset, None
            for at, version in enumerate(versions):
                retired = "  retired" if version.retired else ""
                yield (
                    f"  {dataset}@{version.number}{retired}",
                    VersionPage(dataset=dataset, number=version.number),
                )
                if at + 1 < len(versions):
                    before = versions[at + 1].number
                    since = DifferencePage(dataset=dataset, number=before, other=version.number)
                    yield f"    changes since {dataset}@{before}", since

    def focus_content(self) -> None:
        self.query_one(LinkList).focus()

    def command(self) -> str:
        return self.viewer.command("ls")


class _VersionLine(NamedTuple):
    record: VersionPageRecord
    shown: tuple[GridRow, ...]
    pictures: dict[int, Media | None]


class VersionScreen(RecordScreen):
    page: VersionPage
    BINDINGS: ClassVar[list[Any]] = [Binding("slash", "filter", "filter")]

    def load_record(self) -> _VersionLine:
        at = self.page
        version = self.data.version(at.dataset, at.number)
        record = version_record(version, where=at.where, sort=at.sort, first=at.first)
        shown = record.rows[:CARDS]
        pictures = {}
        for row in shown:
            field = pictured_field(row.fields)
            if field and self.viewer.pictures != "none":
                pictures[row.ordinal] = self._thumbnail(version, row.ordinal, field)
        return _VersionLine(record, shown, pictures)

    def _thumbnail(self, version: Any, ordinal: int, field: str) -> Media | None:
        try:
            data = stored_sample(version, ordinal, field)
        except (Corrupt, InvalidRuntime, MissingDependency):
            return None
        return self.thumbnail(data[field], facts_of(data, field, version), CARD_COLUMNS - 1, PICTURE_ROWS)

    def title_of(self, page: _VersionLine) -> str:
        record = page.record
        excluded = f", {record.n_excluded:,} excluded" if record.n_excluded else ""
        return f"{record.dataset}@{record.number}: {record.n_samples:,} samples{excluded}"

    def widgets(self, page: _VersionLine) -> Iterable[Widget]:
        record = page.record
        until = record.first + len(page.shown)
        summary = f"{record.n_found:,} found" + (
            f", {record.first + 1:,} to {until:,} shown" if until else ""
        )
        yield line(
            summary
            + (f"; where {record.where}" if record.where else "")
            + (f"; sort {record.sort}" if record.sort else "")
        )
        cards = [self._card(row, page.pictures.get(row.ordinal)) for row in page.shown]
        yield CardGrid(cards, self.app.size.width)
        yield heading("Columns")
        for facet in record.facets:
            yield line(facet_line(facet))

    def _card(self, row: GridRow, media: Media | None) -> GridCard:
        columns = [f"{name} {value}" for name, value in row.columns.items()]
        lines = [str(row.ordinal), clean(row.key, 80), *columns, *row.fields]
        picture = self.picture(media, CARD_COLUMNS - 1, PICTURE_ROWS)
        return GridCard(row.ordinal, f"{self.page.dataset}@{self.page.number}", row.key, lines, picture)

    def focus_content(self) -> None:
        cards = self.query_one(CardGrid).cards
        (cards[0] if cards else self.query_one("#body")).focus(scroll_visible=False)

    def selected_sample(self) -> tuple[str, str] | None:
        card = self.focused
        return (card.version, card.key) if isinstance(card, GridCard) else None

    def on_grid_card_opened(self, event: GridCard.Opened) -> None:
        self.viewer.open(SamplePage(version=self.page, ordinal=event.card.number))

    def on_card_grid_beyond(self, event: CardGrid.Beyond) -> None:
        first = self.page.first + (CARDS if event.by > 0 else -CARDS)
        if (
            self.record is not None
            and 0 <= max(0, first) < self.record.record.n_found
            and first != self.page.first
        ):
            self._page(first=max(0, first))

    def action_explain(self) -> None:
        """Open the selected sample's page, which has its provenance."""
        card = self.focused
        if isinstance(card, GridCard):
            self.viewer.open(SamplePage(version=self.page, ordinal=card.number))

    def action_filter(self) -> None:
        at = self.page
        self.app.push_screen(
            InputDialog("Samples, by SQL expressions", {"where": at.where, "sort": at.sort}),
            self._apply_filter,
        )

    def _apply_filter(self, answers: dict[str, str] | None) -> None:
        if answers is not None:
            self._page(where=answers["where"].strip(), sort=answers["sort"].strip())

    def _page(self, *, where: str | None = None, sort: str | None = None, first: int = 0) -> None:
        at = self.page
        self.viewer.open(
            VersionPage(
                dataset=at.dataset,
                number=at.number,
                where=at.where if where is None else where,
                sort=at.sort if sort is None else sort,
                first=first,
            )
        )

    def command(self) -> str:
        return self.viewer.command("show", f"{self.page.dataset}@{self.page.number}")


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
        record = sample_record(version, self.page.ordinal, self.data.run_search(self.page.search_from))
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


class DifferenceScreen(RecordScreen):
    page: DifferencePage

    def load_record(self) -> Difference:
        at = self.page
        return difference(self.data.version(at.dataset, at.number), self.data.version(at.dataset, at.other))

    def title_of(self, record: Difference) -> str:
        return f"{record.counts.a} to {record.counts.b}"

    def widgets(self, record: Difference) -> Iterable[Widget]:
        counts = record.counts
        for name, (a, b) in (
            ("samples", counts.samples),
            ("bytes", counts.nbytes),
            ("excluded rows", counts.excluded),
            *((f"rows of {group}", pair) for group, pair in sorted(counts.coverage.items())),
        ):
            yield line(f"{name:<24} {number(a):>18} {number(b):>18}")
        for sign, groups in (("+", counts.groups_added), ("-", counts.groups_removed)):
            yield from (
                line(f"{sign} group {name}: {', '.join(fields)}") for name, fields in sorted(groups.items())
            )
        yield from (line(f"column {name} differs") for name in sorted(counts.columns))
        for name, n, rows, version in (
            (counts.a, record.n_left_out, record.left_out, self.page.number),
            (counts.b, record.n_added, record.added, self.page.other),
        ):
            listed = f", the first {len(rows)} listed" if n > len(rows) else ""
            yield heading(f"{n:,} samples only in {name}{listed}")
            page = VersionPage(dataset=self.page.dataset, number=version)
            if rows:
                yield LinkList((clean(key, 200), SamplePage(version=page, ordinal=at)) for at, key in rows)

    def command(self) -> str:
        at = self.page
        return self.viewer.command("diff", f"{at.dataset}@{at.number}", f"{at.dataset}@{at.other}")
