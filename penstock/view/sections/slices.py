"""Pages of slices."""

from loader.dataset.tables.slice_record import SliceRecord

from ...text import clean, shell_command
from ...units import minute
from ..facets.version_filter import VersionFilter
from ..inspect.slice_trainings import TrainedSlices
from ..inspect.slices_record import MOST_SLICES, SlicePageRecord, SlicesRecord
from ..marks import count_text
from ..page_address import address, version_address
from .section import (
    ActionsSection,
    BoxSection,
    FactsSection,
    NoticeSection,
    Section,
    SectionPage,
    SliceAction,
    TableSection,
    columns,
)
from .texts import (
    Piece,
    Text,
    TextPiece,
    code,
    link,
    quiet,
    tag,
)

HOME = "slices"
MOST_RUNS_SHOWN = 3
"""Trainings named beside a slice, the newest ones."""
_ADVICE = "No slice is saved. Filter a version, or choose samples with b, and press s."


def slices_sections(record: SlicesRecord) -> SectionPage:
    """Return the page of all slices."""
    n = len(record.slices)
    sections: list[Section] = []
    for path, problem in sorted(record.damaged.items()):
        sections.append(NoticeSection((TextPiece(path, style="strong"), clean(problem, 400)), "bad"))
    if n:
        header = columns(
            *("slice", "number", "kind", "samples", "trainings", "of", "by", "at (UTC)", "why", "rule"),
            numbers=("number", "samples"),
        )
        rows = tuple(_row(one_slice, record) for one_slice in record.slices)
        sections.append(TableSection(columns=header, rows=rows, is_walked=True))
        sections += _unread_runs(record.trained)
    elif not record.n_unread:
        sections.append(NoticeSection(_ADVICE))
    sections += _other_pages(record)
    return SectionPage(
        title=("Slices", quiet(f"{n + record.n_unread:,}")),
        facts=("samples that a person named: train on them, weigh them, or leave them out",),
        caption=count_text(n, "slice"),
        location=(link("slices", HOME),),
        sections=tuple(sections),
        command=("slice", "ls"),
    )


def _other_pages(record: SlicesRecord) -> list[Section]:
    """Return links to the slices of other pages."""
    first = record.first
    facts: list[Text] = []
    if first:
        before = max(0, first - MOST_SLICES)
        page = address(HOME, **{"from": before})
        facts.append(link("those saved later", page))
    n_earlier = record.n_unread - first
    if n_earlier > 0:
        page = address(HOME, **{"from": first + MOST_SLICES})
        facts.append(link(f"{n_earlier:,} saved earlier", page))
    if not facts:
        return []
    return [FactsSection(tuple(facts))]


def _unread_runs(trained: TrainedSlices) -> list[Section]:
    """Return what the column of trainings lacks."""
    sections: list[Section] = []
    if trained.n_unread:
        n = count_text(trained.n_unread, "earlier run")
        sections.append(NoticeSection(f"trainings: {n} not looked at", "quiet"))
    if trained.problem:
        sections.append(NoticeSection(f"trainings: {trained.problem}", "bad"))
    return sections


def _row(one_slice: SliceRecord, record: SlicesRecord) -> tuple[Text, ...]:
    newest = record.newest.get(one_slice.dataset)
    runs = record.trained.runs.get(one_slice.full_name, ())
    trainings: list[str | Piece] = [link(clean(run, 40), address("r", run)) for run in runs[:MOST_RUNS_SHOWN]]
    if len(runs) > MOST_RUNS_SHOWN:
        trainings.append(f"and {len(runs) - MOST_RUNS_SHOWN:,} more")
    rule: Text = ""
    if one_slice.where:
        rule = code(clean(one_slice.where, 120))
    n = f"{one_slice.n_samples:,}"
    samples: Text = n
    # A dataset may have no version that is not retired.
    if newest is not None:
        samples = link(n, address("v", one_slice.dataset, newest, **{"in": one_slice.name}))
    return (
        link(one_slice.full_name, _slice_address(one_slice), "strong"),
        f"{one_slice.n}",
        one_slice.kind,
        samples,
        tuple(trainings),
        link(one_slice.version, version_address(one_slice.version)),
        clean(one_slice.by, 40),
        minute(one_slice.at_us),
        clean(one_slice.why, 200),
        rule,
    )


def _slice_address(one_slice: SliceRecord) -> str:
    return address(HOME, one_slice.dataset, one_slice.name)


def slice_sections(record: SlicePageRecord) -> SectionPage:
    """Return the page of one slice."""
    one_slice = record.slice
    sections: list[Section] = [_state(record)]
    facts: list[tuple[Text, Text]] = []
    if one_slice.where:
        facts.append(("rule", code(clean(one_slice.where, 2000))))
    else:
        facts.append(("list", count_text(one_slice.n_samples, "sample")))
    facts += [
        ("chosen in", link(one_slice.version, version_address(one_slice.version))),
        ("by", clean(one_slice.by, 200)),
        ("why", clean(one_slice.why, 2000)),
        ("at (UTC)", minute(one_slice.at_us)),
    ]
    if not one_slice.removed:
        name = one_slice.name
        use = f'version.slice("{name}"), or all others: version.without("{name}")'
        facts.append(("train on it", code(use)))
    if one_slice.page:
        # The person's browser wrote it: a text, not a link.
        facts.append(("page", code(clean(one_slice.page, 400))))
    sections.append(TableSection(rows=tuple(facts)))
    if not one_slice.removed:
        sections.append(slice_actions(record.version, one_slice.name))
    if record.missing:
        sections.append(_missing(record))
    if record.samples:
        sections.append(_samples(record))
    return SectionPage(
        title=one_slice.full_name,
        facts=(tag(one_slice.kind), f"number {one_slice.n} of {record.numbers[-1]}"),
        caption=f"slice {one_slice.full_name}: {one_slice.kind}, number {one_slice.n}",
        location=(link("slices", HOME), link(one_slice.full_name, _slice_address(one_slice), "strong")),
        sections=tuple(sections),
        parent=HOME,
        command=("slice", "show", one_slice.full_name),
    )


def slice_actions(version: str, name: str) -> ActionsSection:
    """Return the changes of a slice that a person may make on a page. version: such as `photos@8`."""
    dataset, _, _ = version.partition("@")
    full_name = f"{dataset}/{name}"
    exclude = SliceAction(
        label=f"Exclude slice {name}…",
        path="slice/exclude",
        version=version,
        name=name,
        text=f"The next version of {dataset} lacks the samples of {full_name}, and later builds lack them, too.",
        command=("exclude", version, "--slice", name, "--reason", "R", "--by", "WHO"),
    )
    remove = SliceAction(
        label=f"Remove slice {name}…",
        path="slice/remove",
        version=version,
        name=name,
        text=f"{full_name} ends. Its samples stay, and plans with its numbers stay as they are.",
        command=("slice", "rm", full_name, "--by", "WHO", "--why", "W"),
    )
    return ActionsSection(actions=(exclude, remove))


SAVED_OF_RANKING = 60
"""Samples of a ranking that a page offers to save."""


def save_command(root: str, version: str, sql: str, asked: VersionFilter) -> str:
    """Return the command that saves what a version's page finds. sql: `where` and all terms of its filter."""
    words: list[object] = ["slice", "save", "--by", "WHO", "--why", "W"]
    if sql:
        words += ["--where", sql]
    for name in asked.within:
        words += ["--in", name]
    for name in asked.without:
        words += ["--not", name]
    if asked.lasso:
        words += ["--lasso", asked.lasso]
    if asked.like:
        words += ["--k", SAVED_OF_RANKING, f"--like={asked.like}"]
    names = [version, "NAME"]
    if asked.words:
        names.append(asked.words)
    return shell_command(root, *words, names=names)


def _state(record: SlicePageRecord) -> Section:
    one_slice = record.slice
    if one_slice.removed:
        return NoticeSection(
            "Removed; plans with its numbers stay as they are. The facts below name who removed it.", "bad"
        )
    page = version_address(record.version, **{"in": one_slice.name})
    n = count_text(record.n_samples, "sample")
    facts: list[Text] = [link(f"open the {n} of {record.version}", page)]
    if record.n_missing:
        facts.append(f"{record.n_missing:,} no longer in {record.version}")
    without = version_address(record.version, **{"not": one_slice.name})
    facts.append(link("open the other samples", without))
    return FactsSection(tuple(facts))


def _missing(record: SlicePageRecord) -> Section:
    keys = [clean(key, 200) for key in record.missing]
    rows = [(code(key),) for key in keys]
    table = TableSection(
        rows=tuple(rows),
        n_more=record.n_missing - len(rows),
    )
    return BoxSection(
        title=(f"Missing in {record.version}", quiet(f"{record.n_missing:,}")),
        sections=(table,),
    )


def _samples(record: SlicePageRecord) -> Section:
    rows = []
    for ordinal, key in record.samples:
        page = version_address(record.version, "s", ordinal)
        rows.append((f"{ordinal:,}", link(clean(key, 120), page)))
    table = TableSection(
        columns=columns("ordinal", "sample", numbers=("ordinal",)),
        rows=tuple(rows),
        n_more=record.n_samples - len(rows),
        is_walked=True,
    )
    return BoxSection(
        title=(f"Samples of {record.version}", quiet(f"{record.n_samples:,}")),
        sections=(table,),
    )
