"""Pages of two versions, and of two runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...text import clean
from ...units import number
from ...upkeep.diff import Diff
from ..inspect.run_comparison import ComparedSample, RunComparison
from ..inspect.version_record import Difference
from ..marks import count_text
from ..page_address import address, version_address
from .section import (
    BoxSection,
    ColumnsSection,
    FactsSection,
    NoticeSection,
    Section,
    SectionPage,
    TableSection,
    columns,
)
from .texts import (
    Text,
    TextPiece,
    code,
    link,
    quiet,
    tag,
)

_CHECKSUM_DIGITS = 16


def difference_sections(record: Difference) -> SectionPage:
    """Return the page of two versions."""
    counts = record.counts
    sections: list[Section] = [_counts(counts)]
    for title, groups in (("Groups added", counts.groups_added), ("Groups removed", counts.groups_removed)):
        rows = [(name, ", ".join(fields)) for name, fields in sorted(groups.items())]
        if rows:
            table = TableSection(rows=tuple(rows))
            sections.append(BoxSection(title=title, sections=(table,)))
    if counts.slices:
        names = ", ".join(counts.slices)
        sections.append(NoticeSection(f"excluded by slices: {clean(names, 400)}"))
    samples = (
        _samples(counts.a, record.n_left_out, record.left_out),
        _samples(counts.b, record.n_added, record.added),
    )
    sections.append(ColumnsSection(samples))
    if counts.columns:
        sections.append(_differing_columns(counts))
    first = link(counts.a, version_address(counts.a))
    second = link(counts.b, version_address(counts.b))
    return SectionPage(
        title=(
            first,
            "to",
            second,
        ),
        caption=f"{counts.a} to {counts.b}",
        location=(TextPiece(f"{counts.a} and {counts.b}"),),
        sections=tuple(sections),
        parent=version_address(counts.b),
        command=("diff", counts.a, counts.b),
    )


def _counts(counts: Diff) -> Section:
    rows = [
        _pair_row("samples", counts.samples),
        _pair_row("bytes", counts.nbytes),
        _pair_row("excluded rows", counts.excluded),
    ]
    n_parts = (len(counts.parts_removed), len(counts.parts_added))
    rows.append(_pair_row("parts missing in the other", n_parts))
    for name, pair in sorted(counts.coverage.items()):
        rows.append(_pair_row(f"rows of {name}", pair))
    return TableSection(
        columns=columns("number of", counts.a, counts.b, numbers=(counts.a, counts.b)),
        rows=tuple(rows),
    )


def _pair_row(name: str, pair: tuple[int, int]) -> tuple[Text, ...]:
    first, second = pair
    return (
        name,
        number(first),
        number(second),
    )


def _samples(version: str, n: int, listed: Sequence[tuple[int, str]]) -> Section:
    rows = []
    for ordinal, key in listed:
        page = version_address(version, "s", ordinal)
        rows.append((link(clean(key, 200), page),))
    table = TableSection(
        rows=tuple(rows),
        n_more=n - len(rows),
    )
    return BoxSection(
        title=f"{count_text(n, 'sample')} only in {version}",
        sections=(table,),
    )


def _differing_columns(counts: Diff) -> Section:
    rows = []
    for name, pair in sorted(counts.columns.items()):
        first, second = map(_statistics, pair)
        rows.append((clean(name, 80), first, second))
    table = TableSection(
        columns=columns("column", counts.a, counts.b),
        rows=tuple(rows),
    )
    return BoxSection(title="Columns that differ", sections=(table,))


def _statistics(column: Mapping[str, Any] | None) -> str:
    if column is None:
        return "none"
    text = f"{column['n']:,} rows, {column['nulls']:,} without"
    if "mean" not in column:
        return text
    low = f"{column['min']:.5g}"
    high = f"{column['max']:.5g}"
    return f"{text}, {low} to {high}, mean {column['mean']:.5g}"


def comparison_sections(record: RunComparison) -> SectionPage:
    """Return the page of two runs."""
    first, second = record.runs
    sections: list[Section] = [NoticeSection(clean(text, 2000)) for text in record.lines]
    if record.step >= 0:
        sections.append(_steps(record))
    if record.slots:
        rows = []
        for slot in record.slots:
            cells: list[Text] = [str(slot.slot)]
            for run, sample in zip(record.runs, slot.samples, strict=True):
                page = address("r", run, record.step, slot.slot)
                cells.append(sample_cell(sample, page))
            rows.append(tuple(cells))
        table = TableSection(
            columns=columns("slot", first, second, numbers=("slot",)),
            rows=tuple(rows),
            n_more=record.n_slots - len(rows),
        )
        sections.append(BoxSection(title="Slots that differ", sections=(table,)))
    return SectionPage(
        title=(first, quiet("against"), second),
        caption=f"{first} against {second}",
        location=(
            link(clean(first, 60), address("r", first)),
            quiet("against"),
            link(clean(second, 60), address("r", second)),
        ),
        sections=tuple(sections),
        parent=address("r", first),
        run=first,
        command=("trail", "against", first, second),
    )


def _steps(record: RunComparison) -> Section:
    """Return a link to the first differing step of each run, with its digest."""
    facts = []
    for position, run in enumerate(record.runs):
        page = address(
            "r",
            run,
            record.step,
            world=record.world_size,
            rank=record.rank,
        )
        step = link(f"step {record.step} of {run}", page)
        words: Text = step
        if record.digests:
            digest = f"{record.digests[position]:0{_CHECKSUM_DIGITS}x}"
            words = (step, code(digest))
        facts.append(words)
    return FactsSection(tuple(facts))


def sample_cell(sample: ComparedSample | None, slot_page: str = "") -> Text:
    """Return a sample's cell. slot_page: address of its slot."""
    if sample is None:
        return quiet("padding")
    key = link(clean(sample.key, 120), slot_page)
    words: list[str | TextPiece] = [clean(sample.source, 40), key]
    if sample.version:
        page = version_address(sample.version, "s", sample.ordinal)
        words.append(link(sample.version, page))
    if sample.attempt:
        words.append(tag(f"substitute {sample.attempt}", "odd"))
    return tuple(words)
