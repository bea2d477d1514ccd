"""Values of samples as lines: marks, proofs, slots, fields, documents."""

from collections.abc import Iterator

from ....text import clean
from ....units import shorten_list
from ...inspect.packed_documents import PackedDocument
from ...inspect.step_record import SlotRow
from ...kinds.kind import Mark
from ...marks import StepMark
from ..values import (
    AlikeSection,
    DocumentsSection,
    FieldsSection,
    FieldValues,
    LookAlike,
    MarksSection,
    ProofsSection,
    RawSection,
    SlotsSection,
)
from .section_line import LineTone, SectionLine

ValueSection = (
    MarksSection | ProofsSection | SlotsSection | FieldsSection | DocumentsSection | AlikeSection | RawSection
)
_SIGNS = {True: "proved", False: "DIFFERS", None: "not tried"}


def value_lines(section: ValueSection) -> Iterator[SectionLine]:
    """Yield a section's lines."""
    match section:
        case MarksSection():
            yield from map(_bad_line, section.marks)
        case ProofsSection():
            yield from _proof_lines(section)
        case SlotsSection():
            for row in section.slots:
                yield from _slot_lines(section, row)
        case FieldsSection():
            for field in section.fields:
                yield from _field_lines(field)
        case DocumentsSection():
            yield from _document_lines(section)
        case AlikeSection():
            for sample in section.samples:
                yield _alike_line(section, sample)
        case RawSection():
            yield from _raw_lines(section)


def mark_line(mark: StepMark | Mark) -> str:
    if not isinstance(mark, StepMark) or not mark.slots:
        return f"  ! {mark.text}"
    noun = "slots"
    if len(mark.slots) == 1:
        noun = "slot"
    slots = shorten_list(mark.slots)
    return f"  ! {mark.text}  ({noun} {slots})"


def _proof_lines(section: ProofsSection) -> Iterator[SectionLine]:
    for proof in section.proofs:
        tone: LineTone = ""
        if proof.proved is False:
            tone = "bad"
        sign = _SIGNS[proof.proved]
        yield SectionLine(f"  {proof.name:<8} {sign:<9} {proof.text}", tone=tone)
    yield SectionLine(f"  {section.stage}")


def _slot_lines(section: SlotsSection, row: SlotRow) -> Iterator[SectionLine]:
    facts = [f"{row.version} sample {row.ordinal}"]
    if not row.version:
        facts = [f"source {row.source} item {row.ordinal}"]
    if row.attempt:
        facts.append(f"substitute {row.attempt}")
    facts += [f"{name} {value:.4g}" for name, value in row.largest.items()]
    name = f"slot {row.slot}"
    text = f"{name}  {row.key}  {', '.join(facts)}"
    page = f"{section.step}/{row.slot}{section.part}"
    yield SectionLine(
        text,
        page,
        link=name,
    )
    if row.error:
        yield SectionLine(f"  {row.error}", tone="bad")
    for value in row.shown:
        words = list(value.lines[:1])
        words += [f"! {mark.text}" for mark in value.marks]
        yield SectionLine(f"  {value.field:<14} {'  '.join(words)}")


def _field_lines(field: FieldValues) -> Iterator[SectionLine]:
    yield SectionLine(field.field, tone="heading")
    if field.error:
        yield SectionLine(f"  {clean(field.error, 400)}", tone="bad")
    for stage in field.stages:
        if stage.value is not None and stage.has_marks:
            yield from map(_bad_line, stage.value.marks)
        if stage.value is not None:
            for line in stage.value.lines:
                yield SectionLine(f"  {stage.name:<11} {line}")
        for note in stage.notes:
            yield SectionLine(f"  {note}")


def _bad_line(mark: StepMark | Mark) -> SectionLine:
    return SectionLine(mark_line(mark), tone="bad")


def _alike_line(section: AlikeSection, sample: LookAlike) -> SectionLine:
    key = clean(sample.key, 200)
    page = f"{section.version}/s/{sample.ordinal}"
    return SectionLine(
        f"{sample.text:>7}  {key}",
        page,
        link=key,
    )


def _document_lines(section: DocumentsSection) -> Iterator[SectionLine]:
    packed = section.packed
    yield SectionLine(
        f"{packed.n_documents:,} documents, {packed.n_tokens:,} of {packed.length:,} positions filled",
        tone="heading",
    )
    if section.own:
        return
    for document in packed.documents:
        page = f"{section.version}/s/{document.ordinal}"
        key = clean(document.key, 80)
        yield SectionLine(
            _document_text(document, key),
            page,
            link=key,
        )
    n_more = packed.n_documents - len(packed.documents)
    if n_more:
        yield SectionLine(f"and {n_more:,} more")


def _document_text(document: PackedDocument, key: str) -> str:
    words = [f"{document.segment:>4} {document.first:>8,} {document.n_tokens:>8,}", key]
    if document.is_masked:
        words.append("masked")
    elif document.counts_first:
        words.append("! the loss counts its first token")
    words += [f"{name} {value}" for name, value in document.columns.items()]
    return "  ".join(words)


def _raw_lines(section: RawSection) -> Iterator[SectionLine]:
    raw = section.object
    yield SectionLine(f"  {clean(raw.uri, 300)}")
    if raw.reason:
        yield SectionLine(f"  {clean(raw.reason, 400)}")
    if raw.shown is not None:
        yield from map(_bad_line, raw.shown.marks)
        for line in raw.shown.lines:
            yield SectionLine(f"  {line}")
