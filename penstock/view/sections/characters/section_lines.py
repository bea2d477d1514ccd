"""Sections as lines of text, for terminals and commands."""

import shlex
from collections.abc import Iterator, Sequence

from ..section import (
    ActionsSection,
    AskSection,
    AttentionSection,
    BoxSection,
    ColumnsSection,
    CurvesSection,
    DatasetsSection,
    DecisionsSection,
    FacetSection,
    FactsSection,
    FoldSection,
    LinesSection,
    LinksSection,
    NoticeSection,
    Section,
    SectionPage,
    TableSection,
    TilesSection,
)
from ..texts import (
    ShareBar,
    SparkPiece,
    Text,
    TextPiece,
    Tone,
    piece_text,
    pieces,
    plain_text,
)
from .bars import bar_text
from .curve_lines import curve_lines
from .facet_lines import facet_lines
from .section_line import LineTone, SectionLine
from .spark_text import spark_text
from .value_lines import value_lines

MOST_CELL = 48
"""Most characters of a cell that has another one after it."""


def page_sections(page: SectionPage) -> Iterator[Section]:
    """Yield all of a page but its caption, in the order of a terminal."""
    yield FactsSection(page.facts)
    # The page itself is the strong tab.
    others = [tab for tab in page.tabs if tab.style != "strong"]
    yield FactsSection(tuple(others))
    yield from (*page.notices, *page.top, *page.sections, *page.side, *page.folds, *page.actions)


def page_lines(page: SectionPage, columns: int) -> list[SectionLine]:
    """Return all of a page but its caption. columns: width in characters, for drawings."""
    lines = []
    for section in page_sections(page):
        lines += section_lines(section, columns)
    return lines


def page_text(page: SectionPage, columns: int = 100) -> str:
    """Return a page as text, without keys of the terminal. columns: of `page_lines`."""
    lines = [page.caption]
    lines += [line.text for line in page_lines(page, columns) if line.tone != "hint"]
    return "\n".join(lines)


def section_lines(section: Section, columns: int) -> list[SectionLine]:
    """Return a section's lines. The first link of a line is its page. columns: of `page_lines`."""
    match section:
        case NoticeSection():
            return [_line(plain_text(section.text), (section.text,), _line_tone(section.tone))]
        case FactsSection():
            return _fact_lines(section.facts)
        case LinksSection():
            return _link_lines(section)
        case TableSection():
            return list(_table_lines(section))
        case TilesSection():
            rows = [(tile.name, tile.value, tile.note) for tile in section.tiles]
            return list(_table_lines(TableSection(rows=tuple(rows))))
        case LinesSection():
            return [SectionLine(text) for text in section.lines]
        case CurvesSection():
            texts = curve_lines(section.chart, section.struck, section.main, columns)
            return [SectionLine(text) for text in texts]
        case DecisionsSection():
            return _decision_lines(section, columns)
        case AskSection():
            if not section.hint:
                return []
            return [SectionLine(section.hint, tone="hint")]
        case FacetSection():
            return facet_lines(section)
        case AttentionSection():
            return _attention_lines(section)
        case DatasetsSection():
            return _dataset_lines(section)
        case ActionsSection():
            lines = []
            for action in section.actions:
                text = shlex.join(["penstock", *action.command])
                lines.append(SectionLine(text, tone="quiet"))
            return lines
        case BoxSection() | FoldSection() | ColumnsSection():
            return _inner_lines(section, columns)
    return list(value_lines(section))


def _inner_lines(section: BoxSection | FoldSection | ColumnsSection, columns: int) -> list[SectionLine]:
    lines = []
    if isinstance(section, BoxSection):
        lines.append(SectionLine(""))
    if not isinstance(section, ColumnsSection):
        lines.append(_line(plain_text(section.title), (section.title,), "heading"))
    for inner in section.sections:
        lines += section_lines(inner, columns)
    return lines


def _attention_lines(section: AttentionSection) -> list[SectionLine]:
    lines = [SectionLine(f"Needs attention: {len(section.rows)}", tone="heading")]
    for row in section.rows:
        text = f"  ! {row.name}  {row.subject.text}: {row.text}"
        lines.append(_line(text, (row.subject,)))
    return lines


def _dataset_lines(section: DatasetsSection) -> list[SectionLine]:
    lines = []
    for tile in section.tiles:
        words = [tile.name]
        if tile.state is not None:
            words.append(tile.state.text)
        words += tile.problems
        if not tile.problems:
            words.append(f"{tile.n_samples} {tile.facts}")
        if tile.cost:
            words.append(tile.cost)
        line = SectionLine(
            "  ".join(words),
            page=tile.page,
            link=tile.name,
        )
        lines.append(line)
    return lines


def _decision_lines(section: DecisionsSection, columns: int) -> list[SectionLine]:
    # A damaged record has no counts.
    rows = [row for row in section.rows if not row.error]
    chart = {
        "step": [row.step for row in rows],
        "trained": [row.trained for row in rows],
        "stale": [row.stale for row in rows],
        "in small groups": [row.small for row in rows],
    }
    texts = curve_lines(chart, (), "", columns)
    return [SectionLine(text) for text in texts]


def _links(texts: Sequence[Text]) -> list[tuple[str, str]]:
    """Return (text, address) of each link in texts."""
    links: list[tuple[str, str]] = []
    for text in texts:
        linked = [piece for piece in pieces(text) if isinstance(piece, TextPiece)]
        links += [(piece.text, piece.page) for piece in linked if piece.page is not None]
    return links


def _line(text: str, texts: Sequence[Text], tone: LineTone = "") -> SectionLine:
    """Return a line that opens the pages of the links in texts, at first the first one's."""
    links = _links(texts)
    if not links:
        return SectionLine(text, tone=tone)
    name, page = links[0]
    return SectionLine(
        text,
        page,
        tone,
        name,
        tuple(links[1:]),
    )


def _line_tone(tone: Tone) -> LineTone:
    match tone:
        case "bad" | "quiet":
            return tone
    return ""


def _fact_lines(facts: Sequence[Text]) -> list[SectionLine]:
    """Return plain facts in one line, then a line for each fact with a link."""
    # A terminal opens one page per line.
    words = []
    lines = []
    for fact in facts:
        text = plain_text(fact)
        if not _links((fact,)):
            words.append(text)
        else:
            lines.append(_line(text, (fact,)))
    if words:
        lines.insert(0, SectionLine("  ".join(words)))
    return lines


def _link_lines(section: LinksSection) -> list[SectionLine]:
    lines = []
    title = plain_text(section.title)
    if title:
        lines.append(_line(title, (section.title,), _line_tone(section.tone)))
    shown = section.links[: section.most]
    lines += [_line(f"  {link.text}", (link,)) for link in shown]
    n_more = section.n_more + len(section.links) - len(shown)
    if n_more:
        lines.append(SectionLine(f"  and {n_more:,} more"))
    return lines


def _table_lines(table: TableSection) -> Iterator[SectionLine]:
    header = [column.name for column in table.columns]
    cells = [_row_texts(row) for row in table.rows]
    widths = _widths([header, *cells])
    if header:
        yield SectionLine(_row_text(header, widths, table), tone="quiet")
    for row, texts in zip(table.rows, cells, strict=True):
        yield _line(_row_text(texts, widths, table), row)
    if table.n_more:
        yield SectionLine(f"and {table.n_more:,} more")


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the characters of each column."""
    widths: dict[int, int] = {}
    for row in rows:
        for position, text in enumerate(row):
            width = min(MOST_CELL, len(text))
            widths[position] = max(width, widths.get(position, 0))
    return list(widths.values())


def _row_texts(row: Sequence[Text]) -> list[str]:
    texts = []
    for cell in row:
        text = _cell_text(cell)
        texts.append(text)
    return texts


def _cell_text(cell: Text) -> str:
    words = []
    for piece in pieces(cell):
        if isinstance(piece, ShareBar):
            words.append(bar_text(piece.share))
        if isinstance(piece, SparkPiece):
            # The label has the metric's name and its ends, which a line of a terminal has beside it.
            words.append(spark_text(piece.points))
            continue
        words.append(piece_text(piece))
    return " ".join(filter(None, words))


def _row_text(texts: Sequence[str], widths: Sequence[int], table: TableSection) -> str:
    words = []
    last = len(texts) - 1
    for position, text in enumerate(texts):
        width = widths[position]
        if table.columns and table.columns[position].is_number:
            words.append(text.rjust(width))
        elif position == last:
            words.append(text)  # nothing follows: it may be longer
        else:
            words.append(_cut(text, width).ljust(width))
    return "  ".join(words).rstrip()


def _cut(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    return f"{text[: width - 1]}…"
