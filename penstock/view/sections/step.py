"""The page of a rank's part of a step."""

from collections.abc import Mapping

from ...text import clean
from ..inspect.proofs import STAGES
from ..inspect.step_record import StepRecord
from ..marks import count_text
from ..page_address import address
from ..rollouts.decisions import DecisionRow
from .decision import decision_facts
from .section import (
    AskField,
    AskSection,
    BoxSection,
    FactsSection,
    NoticeSection,
    Section,
    SectionPage,
)
from .texts import KeyLink, Text, code, link, neighbour_links, quiet, strong
from .values import MarksSection, ProofsSection, SlotsSection


def step_sections(
    record: StepRecord,
    *,
    alike: Mapping[int, int] | None = None,
    like_pages: Mapping[int, str] | None = None,
    n_unsearched: int = 0,
    decision: DecisionRow | None = None,
    decision_error: str = "",
    recipe: str = "",
) -> SectionPage:
    """Return the page of a step.

    alike: bad slot -> look-alikes of its sample. like_pages: bad slot -> page of the most similar samples.
    decision: of an online run.
    """
    run = address("r", record.training)
    here = f"{run}/{record.step}"
    part = address("", world=record.world_size, rank=record.rank)
    sections = _state(record)
    if decision_error:
        sections += _bad((f"The decision of this step cannot be shown: {decision_error}",))
    if decision is not None:
        facts = decision_facts(decision)
        sections.append(BoxSection(title=link("Decision", f"{here}/decision"), sections=(facts,)))
    sections.append(MarksSection(record.marks, f"{here}/"))
    sections += _more_like(here, part, alike or {}, like_pages or {}, n_unsearched)
    slots = SlotsSection(
        slots=record.slots,
        step=here,
        part=part,
        are_samples=not record.totals,
    )
    sections.append(slots)
    more: tuple[str, ...] = ()
    if recipe:
        more = ("--recipe", recipe)
    return SectionPage(
        title=f"Step {record.step}",
        facts=_facts(record),
        actions=(_part_ask(record, here),),
        caption=step_title(record),
        location=(link(clean(record.training, 24), run), link(f"step {record.step}", here)),
        sections=tuple(sections),
        parent=run,
        run=record.training,
        keys=_keys(record, run, part),
        command=(
            *("batch", f"{record.training}@{record.step}"),
            *("--world", record.world_size, "--rank", record.rank),
            *more,
        ),
        layout="step",
        styles=("sample.css",),
    )


def step_title(record: StepRecord) -> str:
    digest = "no digest"
    if record.digest is not None:
        digest = f"digest {record.digest:016x}"
    return (
        f"{record.training} step {record.step}: rank {record.rank} of {record.world_size}, "
        f"{len(record.slots)} of {record.batch_size} slots, {digest}"
    )


def _state(record: StepRecord) -> list[Section]:
    """Return the proofs of a step, what is wrong with it, and its totals."""
    proofs = ProofsSection(record.proofs, STAGES[record.stage])
    sections: list[Section] = [*_bad((record.untrained,)), proofs]
    trouble = ""
    if record.trouble:
        trouble = f"The recipe failed: {record.trouble}"
    sections += _bad((record.stale, trouble, *record.missing))
    sections += [NoticeSection(text, "quiet") for text in record.datasets]
    if record.totals:
        totals = [(name, strong(f"{n:,}")) for name, n in record.totals.items()]
        sections.append(FactsSection(("over all ranks:", *totals)))
    return sections


def _more_like(
    here: str,
    part: str,
    alike: Mapping[int, int],
    like_pages: Mapping[int, str],
    n_unsearched: int,
) -> list[Section]:
    links = [link(f"slot {slot}", page) for slot, page in like_pages.items()]
    for slot, n in alike.items():
        text = f"slot {slot}: {count_text(n, 'look-alike')}"
        links.append(link(text, f"{here}/{slot}{part}#alike"))
    if not links:
        return []
    if n_unsearched:
        rest = count_text(n_unsearched, "other bad slot", "other bad slots")
        links.append(quiet(f"{rest}: open a slot for samples like its own"))
    return [FactsSection(("More like this:", *links))]


def _bad(texts: tuple[str, ...]) -> list[Section]:
    return [NoticeSection(text, "bad") for text in texts if text]


def _facts(record: StepRecord) -> tuple[Text, ...]:
    facts: list[Text] = [(name, strong(f"{value:.5g}")) for name, value in sorted(record.notes.items())]
    facts.append(f"{len(record.slots)} of {record.batch_size} slots")
    if record.bucket:
        facts.append(f"bucket {record.bucket}")
    facts.append(("plan", code(clean(record.plan, 14))))
    if record.digest is None:
        facts.append("no digest")
    else:
        facts.append(("digest", code(f"{record.digest:016x}")))
    if len(record.mixture) > 1:
        facts += [f"{name} {n}" for name, n in sorted(record.mixture.items())]
    return tuple(facts)


def _part_ask(record: StepRecord, here: str) -> AskSection:
    fields = (
        AskField(
            name="rank",
            label="rank",
            is_number=True,
            value=str(record.rank),
            size=3,
        ),
        AskField(
            name="world",
            label="of ranks",
            is_number=True,
            value=str(record.world_size),
            size=3,
        ),
    )
    return AskSection(
        fields=fields,
        button="Show",
        hint="",
        page=here,
    )


def _keys(record: StepRecord, run: str, part: str) -> tuple[KeyLink, ...]:
    before = ""
    if record.step:
        before = f"{run}/{record.step - 1}{part}"
    after = f"{run}/{record.step + 1}{part}"
    ranks = []
    for key, rank in (("{", record.rank - 1), ("}", record.rank + 1)):
        if 0 <= rank < record.world_size:
            page = f"{run}/{record.step}{address('', world=record.world_size, rank=rank)}"
            ranks.append(
                KeyLink(
                    key=key,
                    name=f"rank {rank}",
                    page=page,
                    text=f"rank {rank}",
                )
            )
    return (
        *neighbour_links(
            "step",
            "[]",
            before,
            after,
        ),
        *ranks,
    )
