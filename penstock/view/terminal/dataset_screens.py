"""Pages of datasets in a terminal: the first page, a version with its samples, a sample, a difference of versions."""

from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

from textual.binding import Binding
from textual.widget import Widget

from loader.errors import Corrupt, InvalidRuntime, MissingDependency

from ...text import clean
from ...units import number, size
from ..inspect.difference import Difference, difference
from ..inspect.plain_text import facet_line
from ..inspect.root_record import RootRecord, root_record
from ..inspect.sample_record import SampleRecord, sample_record, stored_sample
from ..inspect.version_record import GridRow, VersionRecord, version_record
from ..kinds.kind import Media
from ..raw_source import RawObject
from ..samples.shown_values import facts_of
from .addresses import DifferencePlace, Place, RootPlace, RunPlace, SamplePlace, VersionPlace
from .cards import CARD_COLUMNS, PICTURE_ROWS, Card, CardGrid
from .dialogs import Asking
from .record_screen import PlaceList, RecordScreen, heading, line
from .sample_relations import raw_of, raw_widgets, relations

CARDS = 24
"""Samples of a page."""
SAMPLE_ROWS = 14
"""Rows of a picture of a sample's field."""
RAW_LINES = 12
"""Lines of a raw object's value."""
PICTURE_WORDS = (
    "jpg",
    "jpeg",
    "png",
    "webp",
    "img",
    "mp4",
    "mov",
    "webm",
    "mkv",
    "run",
    "wav",
    "flac",
    "mp3",
    "ogg",
    "opus",
    "m4a",
)
"""Last words of fields of which a card shows a picture, those first that are tried first."""


class RootScreen(RecordScreen):
    """The first page: trainings and datasets."""

    place: RootPlace

    def asked(self) -> RootRecord:
        """Return the root's runs and versions."""
        return root_record(self.data.root)

    def title_of(self, record: RootRecord) -> str:
        """Return the root."""
        return f"penstock {record.root}"

    def widgets(self, record: RootRecord) -> Iterable[Widget]:
        """Yield a list of pages."""
        yield PlaceList(self._rows(record))

    def _rows(self, record: RootRecord) -> Iterable[tuple[str, Place | None]]:
        yield "Trainings" if record.runs else "No training has left a trail here", None
        for run in record.runs:
            yield f"  {clean(run, 200)}", RunPlace(run=run)
        for dataset, versions in sorted(record.datasets.items()):
            yield dataset, None
            for at, one in enumerate(versions):
                retired = "  retired" if one.retired else ""
                yield (
                    f"  {dataset}@{one.number}{retired}",
                    VersionPlace(dataset=dataset, number=one.number),
                )
                if at + 1 < len(versions):
                    before = versions[at + 1].number
                    since = DifferencePlace(dataset=dataset, number=before, other=one.number)
                    yield f"    changes since {dataset}@{before}", since

    def shown(self) -> None:
        """Put the cursor into the list."""
        self.query_one(PlaceList).focus()

    def command(self) -> str:
        """Return the verb that lists datasets."""
        return self.viewer.command("ls")


class _Version(NamedTuple):
    """A version, and what its cards show."""

    record: VersionRecord
    """The version."""
    shown: tuple[GridRow, ...]
    """Samples of this page."""
    pictures: dict[int, Media | None]
    """Ordinal -> its picture."""


class VersionScreen(RecordScreen):
    """A version, and a page of its samples."""

    place: VersionPlace
    BINDINGS: ClassVar[list[Any]] = [Binding("slash", "filter", "filter")]

    def asked(self) -> _Version:
        """Return the record, and pictures of the samples that are shown."""
        at = self.place
        version = self.data.version(at.dataset, at.number)
        record = version_record(version, where=at.where, sort=at.sort, first=at.first)
        shown = record.rows[:CARDS]
        pictures = {}
        for row in shown:
            field = next((one for word in PICTURE_WORDS for one in row.fields if _word(one) == word), None)
            if field is not None and self.viewer.pictures != "none":
                pictures[row.ordinal] = self._thumbnail(version, row.ordinal, field)
        return _Version(record, shown, pictures)

    def _thumbnail(self, version: Any, ordinal: int, field: str) -> Media | None:
        """Return a picture of stored bytes; None for those that cannot be read, which the sample's page tells."""
        try:
            data = stored_sample(version, ordinal, field)
        except (Corrupt, InvalidRuntime, MissingDependency):
            return None
        return self.thumbnail(data[field], facts_of(data, field, version), CARD_COLUMNS - 1, PICTURE_ROWS)

    def title_of(self, found: _Version) -> str:
        """Return the version and its number of samples."""
        record = found.record
        excluded = f", {record.n_excluded:,} excluded" if record.n_excluded else ""
        return f"{record.dataset}@{record.number}: {record.n_samples:,} samples{excluded}"

    def widgets(self, found: _Version) -> Iterable[Widget]:
        """Yield the filter, the samples and the columns."""
        record = found.record
        until = record.first + len(found.shown)
        told = f"{record.n_found:,} found" + (f", {record.first + 1:,} to {until:,} shown" if until else "")
        yield line(
            told
            + (f"; where {record.where}" if record.where else "")
            + (f"; sort {record.sort}" if record.sort else "")
        )
        cards = [self._card(row, found.pictures.get(row.ordinal)) for row in found.shown]
        yield CardGrid(cards, self.app.size.width)
        yield heading("Columns")
        for facet in record.facets:
            yield line(facet_line(facet))

    def _card(self, row: GridRow, media: Media | None) -> Card:
        told = [f"{name} {value}" for name, value in row.told.items()]
        lines = [str(row.ordinal), clean(row.key, 80), *told, *row.fields]
        picture = self.picture(media, CARD_COLUMNS - 1, PICTURE_ROWS)
        return Card(row.ordinal, f"{self.place.dataset}@{self.place.number}", row.key, lines, picture)

    def shown(self) -> None:
        """Put the cursor onto the first sample."""
        cards = self.query_one(CardGrid).cards
        (cards[0] if cards else self.query_one("#body")).focus(scroll_visible=False)

    def chosen(self) -> tuple[str, str] | None:
        """Return the sample of the card with the cursor."""
        card = self.focused
        return (card.version, card.key) if isinstance(card, Card) else None

    def on_card_opened(self, event: Card.Opened) -> None:
        """Open the sample."""
        self.viewer.open(SamplePlace(version=self.place, ordinal=event.card.number))

    def on_card_grid_beyond(self, event: CardGrid.Beyond) -> None:
        """Open the page of samples before or after."""
        first = self.place.first + (CARDS if event.by > 0 else -CARDS)
        if (
            self.record is not None
            and 0 <= max(0, first) < self.record.record.n_found
            and first != self.place.first
        ):
            self._page(first=max(0, first))

    def action_explain(self) -> None:
        """Open the sample, whose page has its provenance."""
        card = self.focused
        if isinstance(card, Card):
            self.viewer.open(SamplePlace(version=self.place, ordinal=card.number))

    def action_filter(self) -> None:
        """Ask for a filter and an order."""
        at = self.place
        self.app.push_screen(
            Asking("Samples, by SQL expressions", {"where": at.where, "sort": at.sort}), self._filtered
        )

    def _filtered(self, given: dict[str, str] | None) -> None:
        if given is not None:
            self._page(where=given["where"].strip(), sort=given["sort"].strip())

    def _page(self, *, where: str | None = None, sort: str | None = None, first: int = 0) -> None:
        at = self.place
        self.viewer.open(
            VersionPlace(
                dataset=at.dataset,
                number=at.number,
                where=at.where if where is None else where,
                sort=at.sort if sort is None else sort,
                first=first,
            )
        )

    def command(self) -> str:
        """Return the verb that shows the version."""
        return self.viewer.command("show", f"{self.place.dataset}@{self.place.number}")


class _Sample(NamedTuple):
    """A sample, and what its page shows."""

    record: SampleRecord
    """The sample."""
    pictures: dict[str, Media | None]
    """Field -> its picture."""
    raw: RawObject | None
    """Its raw object; None where none is on record."""


class SampleScreen(RecordScreen):
    """A sample of a version."""

    place: SamplePlace
    BINDINGS: ClassVar[list[Any]] = [
        Binding("left", "walk(-1)", "sample before"),
        Binding("right", "walk(1)", "sample after"),
    ]

    def asked(self) -> _Sample:
        """Return the record, its raw object, and a picture of each field that can be read."""
        at = self.place.version
        version = self.data.version(at.dataset, at.number)
        record = sample_record(version, self.place.ordinal, self.data.asked(self.place.asked))
        pictures = {}
        for one in record.fields:
            if one.decoded is not None:
                data = stored_sample(version, record.ordinal, one.field)
                facts = facts_of(data, one.field, version)
                pictures[one.field] = self.thumbnail(data[one.field], facts, self.app.size.width, SAMPLE_ROWS)
        return _Sample(record, pictures, raw_of(self, record, SAMPLE_ROWS))

    def title_of(self, found: _Sample) -> str:
        """Return version, number and key."""
        record = found.record
        return (
            f"{record.dataset}@{record.number} sample {record.ordinal} of {record.n_samples:,}: {record.key}"
        )

    def widgets(self, found: _Sample) -> Iterable[Widget]:
        """Yield the raw object, fields, edits, look-alikes, columns and provenance."""
        record, pictures = found.record, found.pictures
        if found.raw is not None:
            yield from raw_widgets(self, found.raw, SAMPLE_ROWS, RAW_LINES)
        yield from (line(f"! {mark.text}", bad=True) for mark in record.marks)
        for one in record.fields:
            yield heading(f"{one.field}  {size(one.nbytes)}, CRC-32C {one.crc32c}")
            if one.error:
                yield line(clean(one.error, 400), bad=True)
            picture = self.picture(pictures.get(one.field), self.app.size.width - 4, SAMPLE_ROWS)
            if picture is not None:
                yield picture
            if one.decoded is not None:
                yield from (line(f"! {mark.text}", bad=True) for mark in one.decoded.marks)
                yield from (line(text) for text in one.decoded.lines)
        yield from relations(record, self.place.version, self.place)
        for name, table in (("Columns", record.columns), ("The way back", record.provenance)):
            if table:
                yield heading(name)
                yield from (line(f"{key:<20} {clean(value, 300)}") for key, value in sorted(table.items()))

    def chosen(self) -> tuple[str, str] | None:
        """Return this sample."""
        at = self.place.version
        return None if self.record is None else (f"{at.dataset}@{at.number}", self.record.record.key)

    def explained(self) -> list[str]:
        """Return the provenance columns, and the places of the fields."""
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
        """Open the sample before or after."""
        if self.record is not None and 0 <= self.place.ordinal + by < self.record.record.n_samples:
            self.viewer.open(SamplePlace(version=self.place.version, ordinal=self.place.ordinal + by))

    def command(self) -> str:
        """Return the verb that excludes the sample."""
        at = self.place.version
        key = "KEY" if self.record is None else self.record.record.key
        return self.viewer.command("exclude", "--reason", "R", "--by", "WHO", names=(at.dataset, key))


class DifferenceScreen(RecordScreen):
    """The difference of two versions."""

    place: DifferencePlace

    def asked(self) -> Difference:
        """Return the difference."""
        at = self.place
        return difference(self.data.version(at.dataset, at.number), self.data.version(at.dataset, at.other))

    def title_of(self, record: Difference) -> str:
        """Return the names of both."""
        return f"{record.counts.a} to {record.counts.b}"

    def widgets(self, record: Difference) -> Iterable[Widget]:
        """Yield counts, groups and columns that differ, and samples of one version alone."""
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
            (counts.a, record.n_left_out, record.left_out, self.place.number),
            (counts.b, record.n_added, record.added, self.place.other),
        ):
            listed = f", of which {len(rows)} are listed" if n > len(rows) else ""
            yield heading(f"{n:,} samples that only {name} has{listed}")
            page = VersionPlace(dataset=self.place.dataset, number=version)
            if rows:
                yield PlaceList((clean(key, 200), SamplePlace(version=page, ordinal=at)) for at, key in rows)

    def command(self) -> str:
        """Return the verb that tells the difference."""
        at = self.place
        return self.viewer.command("diff", f"{at.dataset}@{at.number}", f"{at.dataset}@{at.other}")


def _word(field: str) -> str:
    return field.rpartition(".")[2].lower()
