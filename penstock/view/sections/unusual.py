"""Unusual steps of a run, and samples with the largest metrics; what `penstock trail show` prints."""

import math
from collections.abc import Iterable

from ...text import clean
from ...units import shorten_list
from ..inspect.run_record import MOST_SPIKES, Spike, TrainingRunRecord
from ..inspect.step_record import BAD_WEIGHT
from ..marks import count_text
from ..page_address import address
from ..runs.log_facts import MOST_LARGEST
from ..runs.unusual_steps import UnusualCause
from .relations import card
from .section import (
    BoxSection,
    FactsSection,
    FoldSection,
    LinesSection,
    NoticeSection,
    Section,
    SectionPage,
    TableSection,
)
from .texts import Text, TextPiece, Tone, link, quiet, tag


def trail_sections(record: TrainingRunRecord, decided: Iterable[str] = ()) -> SectionPage:
    """Return the contents of a run log. decided: lines on the run's decisions."""
    lines = []
    for start in record.starts:
        versions = ", ".join(start.versions) or start.error or "none"
        plan = start.plan or "of each decision"
        recipe = start.recipe or "none"
        lines.append(f"  plan {plan} of {versions}, {start.world_size} ranks, recipe {recipe}")
    lines += decided
    for text, steps in (
        ("! received twice with different samples:", record.differing),
        ("repeated with other metrics:", record.differing_notes),
        ("substituted samples at", record.substituted),
    ):
        if steps:
            lines.append(f"  {text} steps {shorten_list(steps, 20)}")
    sections = [LinesSection(tuple(lines)), *unusual_box(record)]
    n_more = record.n_spikes - len(record.spikes)
    if n_more:
        more = count_text(n_more, "more unusual step")
        sections.append(NoticeSection(f"and {more}: penstock trail show {clean(record.run)} --all"))
    return SectionPage(
        title=record.run,
        caption=f"{record.run}: {record.n_steps} steps, {record.first_step} to {record.last_step}",
        location=(),
        sections=(*sections, *largest_box(record)),
    )


def unusual_box(record: TrainingRunRecord) -> list[Section]:
    """Return the unusual steps by cause, if there are some."""
    if not record.causes:
        return []
    causes = [_cause_row(record.run, cause) for cause in record.causes]
    rows = [_spike_row(record.run, spike) for spike in record.spikes]
    # A page lists few of them: a run may have millions.
    sections: list[Section] = []
    first = record.first_spike
    end = first + len(rows)
    if record.n_spikes > len(rows):
        facts: list[Text] = [f"{first + 1:,} to {end:,} of {record.n_spikes:,}"]
        if first:
            before = max(0, first - MOST_SPIKES)
            page = (
                address(
                    "r",
                    record.run,
                    unusual=before,
                )
                + "#unusual"
            )
            facts.append(link(f"previous unusual steps, from number {before + 1}", page))
        if end < record.n_spikes:
            page = (
                address(
                    "r",
                    record.run,
                    unusual=end,
                )
                + "#unusual"
            )
            facts.append(link(count_text(record.n_spikes - end, "more unusual step"), page))
        sections.append(FactsSection(tuple(facts)))
    sections.append(TableSection(rows=tuple(rows), is_walked=True))
    fold = FoldSection(
        title="each step",
        sections=tuple(sections),
        is_open=first > 0,
    )
    box = BoxSection(
        title=f"Unusual steps: {record.n_spikes:,}, the worst first",
        sections=(TableSection(rows=tuple(causes)), fold),
        anchor="unusual",
        is_card=True,
    )
    return [box]


def _cause_row(run: str, cause: UnusualCause) -> tuple[Text, ...]:
    name = clean(cause.note, 40)
    reason = tag(f"{name} not finite", "bad")
    if cause.is_finite:
        reason = tag(f"{name} far from the median", "odd")
    words: list[str | TextPiece] = [reason]
    if cause.n_steps > 1:
        words.append(quiet(count_text(cause.n_steps, "step")))
    return link(
        f"step {cause.worst:,}",
        address(
            "r",
            run,
            cause.worst,
        ),
    ), tuple(words)


def _spike_row(run: str, spike: Spike) -> tuple[Text, ...]:
    tags = []
    for mark in spike.marks:
        tone: Tone = "odd"
        if mark.weight >= BAD_WEIGHT:
            tone = "bad"
        tags.append(tag(mark.text, tone))
    page = address(
        "r",
        run,
        spike.step,
    )
    return link(f"step {spike.step:,}", page), tuple(tags)


def largest_box(record: TrainingRunRecord) -> list[Section]:
    """Return the samples with the largest metrics, if they are recorded."""
    rows = []
    for largest in record.largest[:MOST_LARGEST]:
        place = f"step {largest.step:,} slot {largest.slot}"
        page = address(
            "r",
            record.run,
            largest.step,
            largest.slot,
        )
        words = f"{clean(largest.note, 30)} {largest.value:.4g}"
        value: Text = words
        if not math.isfinite(largest.value):
            value = tag(words, "bad")
        rows.append((link(place, page), value))
    if not rows:
        return []
    table = TableSection(rows=tuple(rows))
    return [card("Samples with the largest metrics", table)]
