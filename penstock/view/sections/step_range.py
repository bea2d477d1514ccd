"""The page of several steps of a run."""

from collections.abc import Sequence

from ...text import clean
from ...units import shorten_list
from ..inspect.step_range import MOST_STEPS, RangeSample, StepRange
from ..page_address import address, version_address
from .run import step_range_ask
from .section import BoxSection, NoticeSection, Section, SectionPage, TableSection, columns
from .texts import (
    Text,
    TextPiece,
    link,
    quiet,
)


def step_range_sections(record: StepRange) -> SectionPage:
    """Return the page of a range of steps."""
    run = address("r", record.training)
    here = address(
        "r",
        record.training,
        "window",
        **{"from": str(record.first), "to": str(record.last)},
    )
    steps = f"steps {record.first} to {record.last}"
    samples = (
        f"{record.n_slots:,} slots, {record.n_samples:,} different samples, {record.n_padding:,} padding"
    )
    notices = [NoticeSection(text, "bad") for text in missing_step_lines(record)]
    sections = [
        step_range_ask(f"{run}/window", str(record.first), str(record.last)),
        NoticeSection(
            f"From the plan's slots and the ledger, without media; up to {MOST_STEPS:,} steps.", "quiet"
        ),
        *_mixture(record),
        _samples("Repeated samples", record, record.n_repeated, record.repeated),
        _samples("Substitutes", record, record.n_substituted, record.substituted),
    ]
    return SectionPage(
        title=(steps.capitalize(), quiet(f"of {clean(record.training, 40)}")),
        facts=(samples,),
        caption=f"{clean(record.training, 80)} {steps}: {samples}",
        location=(link(clean(record.training, 24), run), link(steps, here)),
        notices=tuple(notices),
        sections=tuple(sections),
        parent=run,
        run=record.training,
        command=(
            *("trail", "window", record.training),
            *("--from", str(record.first), "--to", str(record.last)),
        ),
    )


def missing_step_lines(record: StepRange) -> list[str]:
    """Return a line if some of the range's steps are not recorded."""
    if not record.unrecorded:
        return []
    n = len(record.unrecorded)
    noun = "steps are"
    if n == 1:
        noun = "step is"
    return [f"{n:,} of these {noun} not on the trail but as planned: {shorten_list(record.unrecorded)}"]


def _mixture(record: StepRange) -> list[Section]:
    rows = []
    for source in record.sources:
        part = 100 * source.delivered / max(1, record.n_slots)
        cells = (
            clean(source.source, 80),
            f"{source.planned:,.1f}",
            f"{source.delivered:,}",
            f"{part:.2f} %",
        )
        rows.append(cells)
    numbers = ("slots by the weights", "slots delivered", "share")
    table = TableSection(
        columns=columns("source", *numbers, numbers=numbers),
        rows=tuple(rows),
    )
    sections: list[Section] = [BoxSection(title="Mixture", sections=(table,))]
    buckets = [(clean(name, 80), f"{n:,}") for name, n in record.buckets.items()]
    if buckets:
        table = TableSection(
            columns=columns("bucket", "steps", numbers=("steps",)),
            rows=tuple(buckets),
        )
        sections.append(BoxSection(title="Buckets", sections=(table,)))
    return sections


def _samples(
    title: str,
    record: StepRange,
    n: int,
    listed: Sequence[RangeSample],
) -> Section:
    if not listed:
        return BoxSection(title=f"{title}: {n:,}", sections=())
    rows = tuple(_row(record.training, sample) for sample in listed)
    table = TableSection(
        columns=columns(
            "sample", "source", "version", "slots", "steps", numbers=("slots",), links=("steps",)
        ),
        rows=rows,
    )
    sections: list[Section] = [table]
    if n > len(rows):
        text = f"The first {len(rows):,} are listed. Choose fewer steps to see the others."
        sections.append(NoticeSection(text, "quiet"))
    return BoxSection(title=f"{title}: {n:,}", sections=tuple(sections))


def _row(run: str, sample: RangeSample) -> tuple[Text, ...]:
    steps: list[str | TextPiece] = []
    for step, slot in sample.places:
        steps.append(link(str(step), address("r", run, step, slot)))
    n_more = sample.n_slots - len(sample.places)
    if n_more > 0:
        steps.append(f"and {n_more:,} more")
    version: Text = ""
    if sample.version:
        version = link(sample.version, version_address(sample.version, "s", sample.ordinal))
    return (
        clean(sample.key, 120),
        clean(sample.source, 40),
        version,
        f"{sample.n_slots:,}",
        tuple(steps),
    )
