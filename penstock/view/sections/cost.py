"""The page of datasets' cost, and the line of a dataset's tile."""

from ...text import clean
from ...units import minute, size
from ...usage.cost import CostRow
from ..board.cost_table import CostTable
from ..marks import count_text
from ..page_address import address
from .section import NoticeSection, Section, SectionPage, TableSection, columns
from .texts import Text, link

HOME = "cost"
MOST_ROWS = 1000


def cost_sections(table: CostTable) -> SectionPage:
    """Return the page."""
    sections: list[Section] = [NoticeSection(clean(problem, 400), "bad") for problem in table.problems]
    if table.rows:
        numbers = ("versions", "stored", "frees", "registered", "requests", "read", "GPU-hours")
        header = columns("dataset", *numbers, numbers=numbers)
        rows = tuple(_row(row, table.newest.get(row.name)) for row in table.rows[:MOST_ROWS])
        n_more = len(table.rows) - len(rows)
        sections.append(TableSection(columns=header, rows=rows, n_more=n_more, is_walked=True))
    else:
        sections.append(NoticeSection("There is no dataset yet."))
    return SectionPage(
        title="Cost of datasets",
        facts=(
            f"trainings of the last {table.days} days",
            "frees: if all its versions are retired",
            f"read at {minute(table.read_us)}",
        ),
        caption=f"cost of {count_text(len(table.rows), 'dataset')}",
        location=(link("cost", HOME),),
        sections=tuple(sections),
        command=("usage", "--by", "dataset"),
    )


def _row(row: CostRow, newest: int | None) -> tuple[Text, ...]:
    """Return a dataset's cells. newest: number of its newest version; None without one."""
    name: Text = clean(row.name, 60)
    if newest is not None:
        name = link(clean(row.name, 60), address("v", row.name, newest), "strong")
    return (
        name,
        f"{row.versions:,}",
        size(row.nbytes),
        size(row.frees),
        size(row.registered),
        f"{row.requests:,.0f}",
        size(row.read_nbytes),
        f"{row.gpu_hours:,.1f}",
    )


def cost_line(row: CostRow, days: int) -> str:
    """Return a dataset's cost in one line."""
    return (
        f"{size(row.nbytes)} stored · in {days} days {row.gpu_hours:,.1f} GPU-hours, {row.requests:,.0f} requests, "
        f"{size(row.read_nbytes)} read"
    )
