"""The page of a decision of an online run."""

from ...text import clean
from ..marks import count_text
from ..page_address import address
from ..rollouts.decisions import DecisionDetail, DecisionRow, EnvCounts
from .decisions import steps_text
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
    ShareBar,
    Text,
    TextPiece,
    code,
    link,
    neighbour_links,
    quiet,
    strong,
)

_HASH = 18
"""Characters of a plan's hash."""


def decision_sections(record: DecisionDetail) -> SectionPage:
    """Return the page of a decision."""
    row = record.row
    run = address("r", record.run)
    decisions = f"{run}/decisions"
    before = after = ""
    if row.step:
        before = f"{run}/{row.step - 1}/decision"
    if record.has_next:
        after = f"{run}/{row.step + row.steps}/decision"
    noun = "step" if row.steps == 1 else "steps"
    steps = f"{noun} {steps_text(row)}"
    sections: list[Section] = [decision_facts(row), *_origin(record)]
    if record.by:
        sections.append(_environments(record))
    sections.append(ColumnsSection((_cursor(record), _arguments(record))))
    return SectionPage(
        title=("Decision", quiet(f"of {steps}")),
        facts=(link(f"step {row.step:,}", f"{run}/{row.step}"),),
        caption=f"{clean(record.run, 80)}: decision of {steps}",
        location=(
            link(clean(record.run, 24), run),
            link("decisions", decisions),
            link(f"step {row.step}", f"{run}/{row.step}/decision"),
        ),
        sections=tuple(sections),
        parent=decisions,
        run=record.run,
        keys=neighbour_links("decision", "[]", before, after),
        command=("trail", "show", record.run),
    )


def decision_facts(row: DecisionRow) -> FactsSection:
    """Return the counts of a decision in one line."""
    sequences = count_text(row.sequences, "sequence")
    noun = "group" if row.groups == 1 else "groups"
    return FactsSection(
        (
            ("policy", strong(f"{row.policy:,}")),
            (strong(f"{row.groups:,}"), f"{noun} in {sequences}"),
            (strong(f"{row.trained:,}"), "rollouts trained"),
            (strong(f"{row.stale:,}"), "stale"),
            (strong(f"{row.small:,}"), "in small groups"),
        )
    )


def _origin(record: DecisionDetail) -> list[Section]:
    sections: list[Section] = []
    if record.owner != record.run:
        owner = link(record.owner, address("r", record.owner))
        sections.append(NoticeSection(("Made by run", owner, "and repeated by this run.")))
    if not record.plan:
        sections.append(NoticeSection("A takedown removed every rollout of this decision.", "bad"))
    return sections


def _environments(record: DecisionDetail) -> Section:
    rows = [_environment_row(one, max(1, record.most)) for one in record.by]
    table = TableSection(
        columns=columns("environment", "shortest", "second", "third", "longest"),
        rows=tuple(rows),
        n_more=record.n_envs - len(rows),
    )
    legend = FactsSection((TextPiece("trained", colour=1), TextPiece("+ withheld", colour=2)))
    title = (
        "Rollouts by environment and length",
        quiet("quartiles of the decided rollouts, the short ones first"),
    )
    return BoxSection(title=title, sections=(table, legend))


def _environment_row(counts: EnvCounts, most: int) -> tuple[Text, ...]:
    cells: list[Text] = [counts.env or "no environment"]
    for trained, withheld in zip(counts.trained, counts.withheld, strict=True):
        bar = ShareBar(trained / most, f"{trained:,}", second=withheld / most)
        rest = ""
        if withheld:
            rest = f"+ {withheld:,}"
        cells.append((bar, quiet(rest)))
    return tuple(cells)


def _cursor(record: DecisionDetail) -> Section:
    parts: list[str | TextPiece] = [f"{record.n_parts:,}"]
    if record.last_part:
        parts += ["the last", code(record.last_part)]
    later = f"{record.n_undecided:,}"
    if record.n_undecided_parts:
        later += f" in {count_text(record.n_undecided_parts, 'part')}"
    plan = TextPiece("none")
    if record.plan:
        plan = link(clean(record.plan, _HASH), address("r", record.plan), "code")
    rows: list[tuple[Text, ...]] = [
        ("version", code(record.version_id or "none")),
        ("parts read", tuple(parts)),
        ("rows for later", later),
        ("plan", plan),
        ("plan before", code(clean(record.before, _HASH) or "none")),
    ]
    return BoxSection(title="Cursor", sections=(TableSection(rows=tuple(rows)),))


def _arguments(record: DecisionDetail) -> Section:
    table = TableSection(
        rows=tuple(record.asked.items()),
        n_more=record.n_asked - len(record.asked),
    )
    return BoxSection(title="Arguments", sections=(table,))
