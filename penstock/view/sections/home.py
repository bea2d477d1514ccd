"""The first page: what needs attention, trainings, datasets."""

import math
from collections.abc import Sequence

from ...text import clean
from ...units import minute, share, size
from ..board.attention import AttentionItem
from ..board.dataset_cards import DatasetCard
from ..board.home_record import HomeRecord, VersionLine
from ..board.training_lines import TrainingLine
from ..board.unpublished import MOST_UNPUBLISHED, UnpublishedDataset
from ..marks import count_text
from ..page_address import address, version_address
from .cost import HOME as COST
from .cost import cost_line
from .run import MOST_WAITING
from .run_states import state_text
from .section import (
    AttentionRow,
    AttentionSection,
    BoxSection,
    DatasetsSection,
    DatasetTile,
    FactsSection,
    FoldSection,
    LinksSection,
    NoticeSection,
    Section,
    SectionPage,
    TableSection,
    columns,
)
from .texts import (
    SparkPiece,
    Text,
    TextPiece,
    Tone,
    code,
    link,
    quiet,
    tag,
)

MOST_VERSIONS = 200
"""Versions listed of a dataset."""
MOST_READS = 3
_ADVICE = "No training has recorded a run log here. Record one with"
_EXAMPLE = 'loader.Loader(plan, trail=loader.Trail(root, run="..."))'


def home_sections(record: HomeRecord) -> SectionPage:
    """Return the first page."""
    sections: list[Section] = []
    if record.attention:
        rows = tuple(_attention(item) for item in record.attention)
        sections.append(AttentionSection(rows))
    if any(line.starts_us for line in record.trainings):
        sections.append(_unread_signs())
    sections += [
        _trainings(record),
        _datasets(record),
    ]
    n_datasets = count_text(len(record.datasets), "dataset")
    n_runs = count_text(len(record.runs), "training")
    return SectionPage(
        title=record.root,
        facts=(n_datasets, n_runs, f"read at {minute(record.read_us)}"),
        caption=f"penstock {record.root}",
        location=(),
        tabs=(link("Home", "", "strong"), link("Slices", "slices"), link("Cost", COST)),
        sections=tuple(sections),
        command=("ls",),
        styles=("home.css",),
        layout="board",
    )


def _attention(item: AttentionItem) -> AttentionRow:
    name = clean(item.subject, 60)
    # A dataset without a version has no page.
    subject = TextPiece(name, style="strong")
    if item.page:
        page = address(*item.page.split("/"))
        subject = link(name, page, "strong")
    tone: Tone = "odd"
    if item.severity == "error":
        tone = "bad"
    return AttentionRow(
        name=item.name,
        tone=tone,
        subject=subject,
        text=clean(item.text, 400),
        remedy=item.runbook,
    )


def _trainings(record: HomeRecord) -> Section:
    sections: list[Section] = []
    if record.trainings:
        numbers = ("step", "now", "goodput", "waits")
        header = columns(
            *("run", "state", "step", "metric", "now", "goodput", "waits"),
            *("newest checkpoint", "last step", "reads"),
            numbers=numbers,
        )
        rows = tuple(_training(line) for line in record.trainings)
        table = TableSection(
            columns=header,
            rows=rows,
            is_walked=True,
            style="board",
        )
        sections.append(table)
    else:
        sections.append(NoticeSection((_ADVICE, code(_EXAMPLE))))
    shown = {line.run for line in record.trainings}
    earlier = [run for run in record.runs if run not in shown]
    if earlier:
        links = tuple(link(clean(run, 60), address("r", run)) for run in earlier)
        fold = FoldSection(
            title=count_text(len(links), "earlier run"),
            sections=(LinksSection(links, most=len(links)),),
        )
        sections.append(fold)
    return BoxSection(
        title="Trainings",
        sections=tuple(sections),
        anchor="trainings",
    )


def _training(line: TrainingLine) -> tuple[Text, ...]:
    step = ""
    if line.last_step >= 0:
        step = f"{line.last_step:,}"
    now: Text = ""
    if not math.isnan(line.now):
        now = (f"{line.now:.4g}", quiet(clean(line.metric, 16)))
    waits: Text = _share(line.waiting)
    if line.waiting > MOST_WAITING:
        waits = TextPiece(_share(line.waiting), tone="bad")
    checkpoint: Text = quiet("none")
    if line.checkpoint >= 0:
        checkpoint = f"step {line.checkpoint:,}"
    last = ""
    if line.last_us:
        last = minute(line.last_us)
    # A mixture may read many versions.
    reads = [link(name, version_address(name)) for name in line.reads[:MOST_READS]]
    if len(line.reads) > MOST_READS:
        reads.append(quiet(f"and {len(line.reads) - MOST_READS} more"))
    return (
        link(clean(line.run, 40), address("r", line.run), "strong"),
        state_text(line.state, line.news),
        step,
        _metric(line),
        now,
        _share(line.goodput),
        waits,
        checkpoint,
        last,
        tuple(reads),
    )


def _unread_signs() -> Section:
    # They need the intervals and faults of all runs: many requests for a first page.
    text = (
        "Signs against nodes are failed checks only here:",
        code("penstock node suspects"),
        "also judges slow steps, wrong reads and crashes.",
    )
    return NoticeSection(text, "quiet")


def _metric(line: TrainingLine) -> Text:
    if line.error:
        return TextPiece(clean(line.error, 80), tone="bad")
    if not line.line:
        return quiet("none")
    first, last = line.line_ends
    label = f"{clean(line.metric, 40)} from {first:.4g} to {last:.4g}"
    if line.n_not_finite:
        label += f", {count_text(line.n_not_finite, 'step')} not finite"
    return SparkPiece(line.line, line.ticks, label)


def _share(value: float) -> str:
    if math.isnan(value):
        return ""
    return share(value, 1)


def _datasets(record: HomeRecord) -> Section:
    sections: list[Section] = []
    costs = _cost_lines(record)
    tiles = [_tile(card, costs.get(card.dataset, "")) for card in record.cards]
    tiles += [_draft_tile(dataset) for dataset in record.unpublished]
    if tiles:
        sections.append(DatasetsSection(tuple(tiles)))
    else:
        sections.append(NoticeSection("There is no dataset yet."))
    if len(record.unpublished) == MOST_UNPUBLISHED:
        text = f"At most {MOST_UNPUBLISHED} datasets without a version are shown, the first by name."
        sections.append(NoticeSection(text, "quiet"))
    if record.datasets:
        lists = tuple(_versions(name, versions) for name, versions in sorted(record.datasets.items()))
        sections.append(FoldSection(title="all versions", sections=lists))
    return BoxSection(
        title="Datasets",
        sections=tuple(sections),
        anchor="datasets",
    )


def _cost_lines(record: HomeRecord) -> dict[str, str]:
    """Return dataset -> its cost in one line; nothing until a person opens the page of the cost."""
    table = record.cost
    if table is None:
        return {}
    return {row.name: cost_line(row, table.days) for row in table.rows}


def _tile(card: DatasetCard, cost: str) -> DatasetTile:
    page = address("v", card.dataset, card.number)
    state = None
    if card.error:
        state = tag("damaged", "bad")
    elif card.stopped:
        n = count_text(len(card.stopped), "batch", "batches")
        state = tag(f"{n} stopped", "odd")
    elif card.gate == "passed":
        state = tag("gate passed", "good")
    elif card.gate:
        state = tag(f"gate {card.gate}", "odd")
    problems = []
    if card.error:
        problems.append(clean(card.error, 200))
    noun = "samples"
    if card.n_samples == 1:
        noun = "sample"
    return DatasetTile(
        name=f"{card.dataset}@{card.number}",
        page=page,
        state=state,
        n_samples=f"{card.n_samples:,}",
        facts=f"{noun} · {size(card.nbytes)} · {minute(card.created_us)}",
        growth=card.growth,
        growth_label=f"samples over {card.n_versions:,} versions",
        problems=tuple(problems),
        cost=cost,
    )


def _draft_tile(unpublished: UnpublishedDataset) -> DatasetTile:
    reasons = [f"batch {batch.batch} stopped: {clean(batch.reason, 200)}" for batch in unpublished.stopped]
    if not reasons:
        reasons = ["its first batch is not published yet"]
    return DatasetTile(
        name=unpublished.dataset,
        page=None,
        state=tag("no version", "odd"),
        facts="",
        n_samples="",
        growth="",
        growth_label="",
        problems=tuple(reasons),
    )


def _versions(dataset: str, versions: Sequence[VersionLine]) -> Section:
    """Return links to a dataset's versions, the newest first, and to what changed between two of them."""
    facts: list[Text] = [TextPiece(dataset, style="strong")]
    listed = versions[:MOST_VERSIONS]
    for position, version in enumerate(listed):
        name = f"{dataset}@{version.number}"
        words: list[str | TextPiece] = [link(name, version_address(name))]
        if version.retired:
            words.append(tag("retired", "odd"))
        facts.append(tuple(words))
        if position + 1 < len(versions):
            before = versions[position + 1].number
            page = version_address(f"{dataset}@{before}", "diff", version.number)
            facts.append(link(f"changes since {dataset}@{before}", page))
    if len(versions) > len(listed):
        facts.append(f"and {len(versions) - len(listed):,} more")
    return FactsSection(tuple(facts))
