"""Facets in characters: a line for the column, and one for each value with a bar."""

from ....text import clean
from ..section import FacetRow, FacetSection
from .bars import bar_text, metric_bars
from .section_line import SectionLine

_LABEL = 28
"""Characters of a value's name."""


def facet_lines(section: FacetSection) -> list[SectionLine]:
    column = clean(section.column, 40)
    words = [column]
    if section.note:
        words.append(section.note)
    if section.histogram is not None and any(section.histogram.counts):
        n_bins = len(section.histogram.counts)
        # An empty bin is blank, not a low bar.
        counts = [n or None for n in section.histogram.counts]
        words.append(metric_bars(counts, range(n_bins), n_bins))
    head = SectionLine(
        "  ".join(words),
        page=section.version + section.query,
        tone="heading",
        link=column,
    )
    lines = [head]
    lines += [_row_line(section, row) for row in section.rows]
    if section.n_more:
        more = f"{section.n_more:,} more"
        line = SectionLine(
            f"    {more}",
            page=section.version + section.query,
            link=more,
        )
        lines.append(line)
    return lines


def _row_line(section: FacetSection, row: FacetRow) -> SectionLine:
    sign = " "
    if row.is_on:
        sign = "●"
    label = clean(row.label, _LABEL)
    count = f"{row.n:,}"
    if row.n != row.all:
        count = f"{row.n:,} of {row.all:,}"
    bar = bar_text(row.n / section.largest)
    return SectionLine(
        f"  {sign} {label:<{_LABEL}} {count:>16}  {bar}",
        page=section.version + row.query,
        link=label,
    )
