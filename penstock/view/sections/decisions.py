"""Tables of an online run's decisions."""

from collections.abc import Sequence

from ...text import clean
from ..marks import count_text
from ..page_address import address
from ..rollouts.decision_lines import decision_lines
from ..rollouts.decisions import MOST_LISTED, DecisionChart, DecisionRow
from .section import DecisionsSection, NoticeSection, Section, SectionPage, TableSection, columns
from .texts import (
    Text,
    TextPiece,
    link,
    quiet,
)

_NUMBERS = (
    "policy",
    "groups",
    "sequences",
    "trained",
    "stale",
    "small",
)


def decisions_sections(run: str, record: DecisionChart) -> SectionPage:
    """Return the page of a run's decisions."""
    page = address("r", run)
    notices = []
    if record.error:
        notices.append(NoticeSection(record.error, "bad"))
    facts: list[Text] = []
    if record.like:
        before = f"before step {record.until:,} this run repeats"
        facts.append((before, link(record.like, address("r", record.like))))
    sections = decision_chart_sections(run, record, MOST_LISTED)
    if not sections and not record.error:
        sections = [NoticeSection("This run has decided no step.", "quiet")]
    n_decisions = f"{record.n_decisions:,}"
    return SectionPage(
        title=("Decisions", quiet(n_decisions)),
        facts=tuple(facts),
        caption=f"{run}: {count_text(record.n_decisions, 'decision')}",
        location=(link(clean(run, 24), page), link("decisions", f"{page}/decisions")),
        notices=tuple(notices),
        sections=tuple(sections),
        parent=page,
        run=run,
        command=("trail", "show", run),
    )


def decision_chart_sections(run: str, record: DecisionChart, most: int) -> list[Section]:
    """Return the lines of decisions, and a table of the newest; nothing without a decision."""
    lines = decision_lines(record.rows)
    if lines is None:
        return []
    newest_first = record.rows[::-1]
    drawn = DecisionsSection(
        lines=lines,
        rows=record.rows,
        steps=address("r", run) + "/",
    )
    return [drawn, decision_table(run, newest_first[:most])]


def decision_table(run: str, rows: Sequence[DecisionRow]) -> Section:
    cells = [_row(run, row) for row in rows]
    return TableSection(
        columns=columns("step", *_NUMBERS, numbers=_NUMBERS),
        rows=tuple(cells),
    )


def _row(run: str, row: DecisionRow) -> tuple[Text, ...]:
    page = address("r", run, row.step, "decision")
    step = link(steps_text(row), page)
    if row.error:
        empty = [""] * (len(_NUMBERS) - 1)
        return (
            step,
            TextPiece(row.error, tone="bad"),
            *empty,
        )
    numbers = [getattr(row, name) for name in _NUMBERS]
    return (
        step,
        *map("{:,}".format, numbers),
    )


def steps_text(row: DecisionRow) -> str:
    """Return such as "12" or "12 to 15"."""
    if row.steps == 1:
        return f"{row.step:,}"
    last = row.step + row.steps - 1
    return f"{row.step:,} to {last:,}"
