"""Boxes beside a sample: its facts, slices, look-alikes, trainings and edits."""

from collections.abc import Iterable, Mapping

from ...text import clean
from ...units import size
from ..inspect.packed_documents import PackedSequence
from ..inspect.sample_record import SampleRecord
from ..inspect.slot_record import SlotRecord
from ..marks import count_text
from ..page_address import address, version_address
from ..raw_source import RawObjectRecord
from ..sample_relations import HeldSteps
from ..shown_values import StoredField
from .section import (
    BoxSection,
    FoldSection,
    LinksSection,
    NoticeSection,
    Section,
    TableSection,
    columns,
)
from .texts import (
    Text,
    TextPiece,
    code,
    link,
    quiet,
    strong,
)
from .values import AlikeSection, DocumentsSection, LookAlike, RawSection

MOST_NAMES = 12
"""Runs or slices that were not searched, listed by name."""


def card(title: Text, *sections: Section, anchor: str = "") -> BoxSection:
    return BoxSection(
        title=title,
        sections=sections,
        anchor=anchor,
        is_card=True,
    )


def exclusion_notice(record: SampleRecord | SlotRecord) -> list[Section]:
    """Return the exclusion that keeps a sample out of the newest version, if there is one."""
    excluded = record.excluded
    if excluded is None:
        return []
    words: list[str | TextPiece] = [f"excluded since {excluded.version}"]
    if excluded.slice is not None:
        name = clean(excluded.slice, 120)
        words += ["by the slice", link(name, "slices")]
    reason = clean(excluded.reason, 300)
    words.append(f"by {clean(excluded.by, 60)}: {reason}")
    return [NoticeSection(tuple(words), "bad")]


def facts_box(record: SampleRecord | SlotRecord, more: Iterable[tuple[str, str]] = ()) -> BoxSection:
    """Return the columns that stand beside a sample. more: (name, value) pairs before them."""
    rows: list[tuple[Text, ...]] = [(name, value) for name, value in more if value]
    for name, value in record.leading.items():
        rows.append((name, clean(value, 160)))
    sections: list[Section] = [TableSection(rows=tuple(rows))]
    n_others = len(record.columns) - len(record.leading)
    if n_others > 0:
        text = count_text(n_others, "more column")
        others = TextPiece(text, url="#columns")
        sections.append(NoticeSection(others))
    return card("Facts", *sections)


def slices_box(record: SampleRecord | SlotRecord, version: str) -> BoxSection:
    """Return the slices that contain a sample. version: such as `photos@7`."""
    sections: list[Section] = []
    for own in record.slices:
        name = link(
            f"{own.name}@{own.n}",
            version_address(version, **{"in": own.name}),
            "strong",
        )
        samples = count_text(own.n_samples, "sample")
        reason = f"{own.by}: {clean(own.why, 90)}"
        sections.append(NoticeSection((name, quiet(f"{own.kind}, {samples}"), reason)))
    for path, problem in record.slice_problems.items():
        sections.append(NoticeSection((strong(path), problem), "bad"))
    if record.slices_left:
        sections.append(_slice_links(record.slices_left, version))
    number = str(len(record.slices) or "none")
    return card(("Slices", quiet(number)), *sections, anchor="slices")


def _slice_links(names: tuple[str, ...], version: str) -> Section:
    links = []
    for name in names[:MOST_NAMES]:
        page = version_address(version, **{"in": name})
        links.append(link(clean(name, 64), page))
    return LinksSection(
        tuple(links),
        "not searched:",
        "quiet",
        len(names) - len(links),
    )


def alike_box(record: SampleRecord | SlotRecord, version: str, thumb: str) -> list[Section]:
    """Return a sample's look-alikes by hash, if there are some. thumb: field with their thumbnails, or ""."""
    samples = []
    for neighbour in record.neighbours:
        text = count_text(neighbour.distance, "bit")
        samples.append(LookAlike(neighbour.ordinal, neighbour.key, text))
    return _alike(
        samples,
        version,
        thumb,
        "by phash, bits apart",
        "alike",
    )


def similar_box(record: SampleRecord, version: str, thumb: str) -> list[Section]:
    """Return a sample's look-alikes by cosine, if there are some. thumb: field with their thumbnails, or ""."""
    samples = []
    for similar in record.similar:
        text = f"{similar.score:.3f}"
        samples.append(LookAlike(similar.ordinal, similar.key, text))
    return _alike(
        samples,
        version,
        thumb,
        "by cosine",
        "similar",
    )


def _alike(
    samples: list[LookAlike],
    version: str,
    thumb: str,
    measure: str,
    anchor: str,
) -> list[Section]:
    if not samples:
        return []
    alike = AlikeSection(
        tuple(samples),
        version_address(version),
        thumb,
    )
    title = ("Look-alikes", quiet(measure))
    return [card(title, alike, anchor=anchor)]


def trainings_box(
    record: SampleRecord | SlotRecord,
    here: str,
    query: Mapping[str, object],
) -> BoxSection:
    """Return the trainings that held a sample. here, query: address of its page."""
    sections = [_absence_notice(held) for held in record.trainings]
    if record.runs_error:
        reason = clean(record.runs_error, 400)
        text = f"The runs of this root are unknown: {reason}"
        sections.append(NoticeSection(text, "bad"))
    if record.runs_left:
        first = record.runs_left[0]
        parameters = {**query, "trainings": first}
        search = f"{here}{address('', **parameters)}#trainings"
        sections.append(_run_links(record.runs_left, search))
    elif not record.trainings and not record.runs_error:
        text = "No training has recorded a trail here."
        sections.append(NoticeSection(text, "quiet"))
    title = "Trainings that held this sample"
    return card(title, *sections, anchor="trainings")


def _run_links(runs: tuple[str, ...], search: str) -> Section:
    links = []
    for run in runs[:MOST_NAMES]:
        page = address("r", run)
        links.append(link(clean(run, 40), page))
    n_more = len(runs) - len(links)
    links.append(TextPiece("search them", search, style="tag"))
    n_runs = count_text(len(runs), "other run was", "other runs were")
    return LinksSection(
        tuple(links),
        f"{n_runs} not searched:",
        "quiet",
        n_more,
    )


def _absence_notice(held: HeldSteps) -> Section:
    run = address("r", held.training)
    name = link(clean(held.training, 40), run, "strong")
    if held.error:
        error = TextPiece(held.error, tone="bad")
        return NoticeSection((name, error))
    if not held.slots:
        absent = quiet("in none of its recorded steps")
        return NoticeSection((name, absent))
    words = "steps"
    if len(held.slots) == 1:
        words = "step"
    if held.n_slots > len(held.slots):
        words = f"{held.n_slots:,} times, the last at {words}"
    if held.planned:
        words = f"as planned, without a trail: {words}"
    links = []
    for slot in held.slots:
        text = str(slot.step)
        if slot.attempt:
            text += " as substitute"
        page = f"{run}/{slot.step}/{slot.slot}"
        links.append(link(text, page))
    return LinksSection(tuple(links), (name, quiet(words)))


def sequence_box(held: HeldSteps, sequence: PackedSequence, version: str, key: str) -> BoxSection:
    """Return the sequence that a training packed a document into last. version: of the documents. key: its own."""
    slot = held.slots[-1]
    page = address("r", held.training, slot.step, slot.slot)
    title = ("Packed into", link(f"slot {slot.slot} of step {slot.step:,}", page))
    ribbon = DocumentsSection(
        sequence,
        version_address(version),
        key,
    )
    return card(title, ribbon, anchor="packed")


def edits_box(record: SampleRecord | SlotRecord) -> list[Section]:
    """Return the edits of a sample's columns, if there are some."""
    rows = []
    for edit in record.edits:
        row = (
            edit.column,
            edit.value or "removed",
            edit.annotation,
            edit.author,
            edit.at,
        )
        rows.append(row)
    if not rows:
        return []
    table = TableSection(
        columns=columns("column", "value", "annotation", "by", "at (UTC)"),
        rows=tuple(rows),
    )
    title = ("Edits", quiet("of the 20 most recently edited columns"))
    return [card(title, table)]


def columns_fold(record: SampleRecord | SlotRecord) -> list[FoldSection]:
    """Return all columns of a sample, if it has some."""
    if not record.columns:
        return []
    rows = sorted(record.columns.items())
    fold = FoldSection(
        title=("Columns", quiet(str(len(rows)))),
        sections=(TableSection(rows=tuple(rows)),),
        anchor="columns",
    )
    return [fold]


def location_fold(fields: Iterable[StoredField], sample: str) -> FoldSection:
    """Return the place of each stored field. sample: address of the sample's page."""
    rows = []
    nbytes = 0
    for field in fields:
        if not field.path:
            continue
        nbytes += field.nbytes
        page = f"{sample}/{address('stored', field.field)}"
        row = (
            field.field,
            link(count_text(field.nbytes, "byte"), page),
            code(field.path),
            str(field.offset),
            code(field.crc32c),
        )
        rows.append(row)
    names = ("field", "bytes", "shard", "from", "CRC-32C")
    table = TableSection(
        columns=columns(*names, numbers=("bytes", "from")),
        rows=tuple(rows),
    )
    return FoldSection(
        title=("Stored bytes", quiet(size(nbytes))),
        sections=(table,),
        anchor="stored",
        stage="stored",
    )


def provenance_fold(values: Mapping[str, object], *more: Section) -> FoldSection:
    """Return where a sample comes from."""
    rows = [(name, str(value)) for name, value in values.items()]
    table = TableSection(rows=tuple(rows))
    return FoldSection(
        title="Provenance",
        sections=(table, *more),
        anchor="explain",
    )


def raw_fold(raw: RawObjectRecord | None, media_type: str, source: str) -> list[FoldSection]:
    """Return the raw object of a sample, if one is known. source: address of its bytes."""
    if raw is None:
        return []
    title: Text = "Raw object"
    if not raw.reason:
        title = ("Raw object", quiet(size(raw.nbytes)))
    section = RawSection(
        raw,
        media_type,
        source,
    )
    fold = FoldSection(
        title=title,
        sections=(section,),
        anchor="raw",
    )
    return [fold]
