"""Pages of a version beside its samples: its columns, and its lineage."""

from collections.abc import Sequence

from loader.dataset.tables.annotations import Annotation

from ...card.value import History
from ...text import clean
from ...units import minute, number, share, size
from ..inspect.version_contents import ColumnSummary, GroupSummary, VersionContents
from ..inspect.version_lineage import VersionLineage, VersionOrigin
from ..marks import count_text
from ..page_address import address, version_address
from .section import BoxSection, NoticeSection, Section, SectionPage, TableSection, columns
from .texts import (
    Text,
    TextPiece,
    code,
    link,
    outside,
    quiet,
    tag,
)


def version_tabs(dataset: str, number: int, current: str) -> tuple[TextPiece, ...]:
    """Return links to the pages of a version. current: name of the one that is shown."""
    name = f"{dataset}@{number}"
    pages = {
        "Samples": version_address(name),
        "Columns": version_address(name, "columns"),
        "Map": version_address(name, "map"),
        "Groups": version_address(name, "groups"),
    }
    if number > 1:
        before = f"{dataset}@{number - 1}"
        pages[f"Changes since @{number - 1}"] = version_address(before, "diff", number)
    pages["Lineage"] = version_address(name, "lineage")
    pages["Slices"] = address("slices")
    tabs = []
    for title, page in pages.items():
        tab = link(title, page)
        if title == current:
            tab = link(title, page, "strong")
        tabs.append(tab)
    return tuple(tabs)


def contents_sections(record: VersionContents) -> SectionPage:
    """Return the page of a version's columns, groups and annotations."""
    name = f"{record.dataset}@{record.number}"
    version_page = version_address(name)
    sections = [
        _columns(record),
        _groups(record.groups),
    ]
    if record.annotations:
        sections.append(_annotations(record.annotations))
    n_columns = count_text(len(record.columns), "column")
    n_excluded = record.n_rows - record.n_samples
    rows = f"over {count_text(record.n_rows, 'row')}, {n_excluded:,} of them excluded"
    return SectionPage(
        title=("Columns of", link(name, version_page)),
        facts=(n_columns, rows),
        tabs=version_tabs(record.dataset, record.number, "Columns"),
        caption=f"{name}: {n_columns}",
        location=(link(name, version_page, "strong"), TextPiece("columns")),
        sections=tuple(sections),
        parent=version_page,
        command=("show", name),
    )


def _columns(record: VersionContents) -> Section:
    name = f"{record.dataset}@{record.number}"
    header = columns(
        "column",
        "type",
        "present",
        "distinct",
        "least",
        "mean",
        "largest",
        "commonest values",
        "group",
        numbers=("present", "distinct", "least", "mean", "largest"),
    )
    rows = []
    for column in record.columns:
        page = version_address(name, facet=column.name)
        row = _column_row(column, record.n_rows, page)
        rows.append(row)
    return TableSection(
        columns=header,
        rows=tuple(rows),
        is_walked=True,
    )


def _column_row(column: ColumnSummary, n_rows: int, page: str) -> tuple[Text, ...]:
    distinct = ""
    if column.n_values is not None:
        distinct = f"{column.n_values:,}"
    values = [f"{value or repr(value)} ({n:,})" for value, n in column.commonest]
    if column.nans:
        values.append(f"NaN ({column.nans:,})")
    commonest = ", ".join(values)
    return (
        link(clean(column.name, 80), page),
        column.type,
        share(column.n_rows, n_rows),
        distinct,
        _number(column.low),
        _number(column.mean),
        _number(column.high),
        clean(commonest, 160),
        clean(column.group, 40),
    )


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return number(value)


def _groups(groups: Sequence[GroupSummary]) -> Section:
    header = columns(
        "group",
        "samples",
        "parts",
        "bytes",
        "fields",
        numbers=("samples", "parts", "bytes"),
    )
    rows = []
    for group in groups:
        fields = [f"{name} {size(nbytes)}" for name, nbytes in group.fields.items()]
        row = (
            clean(group.name, 80),
            f"{group.n_samples:,}",
            f"{group.n_parts:,}",
            size(group.nbytes),
            clean(", ".join(fields), 400),
        )
        rows.append(row)
    table = TableSection(columns=header, rows=tuple(rows))
    return BoxSection(title="Groups of fields", sections=(table,))


def _annotations(annotations: Sequence[Annotation]) -> Section:
    header = columns(
        "annotation",
        "samples",
        "at (UTC)",
        "columns",
        "by",
        numbers=("samples",),
    )
    rows = []
    for annotation in annotations:
        names = ", ".join(annotation.columns)
        row = (
            clean(annotation.name, 80),
            f"{annotation.n_samples:,}",
            minute(annotation.at_us),
            clean(names, 200),
            clean(annotation.author, 80),
        )
        rows.append(row)
    table = TableSection(columns=header, rows=tuple(rows))
    return BoxSection(title="Annotations", sections=(table,))


def lineage_sections(record: VersionLineage, ui: str = "") -> SectionPage:
    """Return the page of a version's lineage. ui: Dagster's webserver, for links to its runs, or ""."""
    name = f"{record.dataset}@{record.number}"
    version_page = version_address(name)
    n_versions = count_text(record.n_versions, "version")
    sections = [
        _versions(record, ui),
        _gate(record),
        *_making(record.made_by),
    ]
    if record.producer:
        rows = tuple((key, code(value)) for key, value in sorted(record.producer.items()))
        table = TableSection(rows=rows)
        sections.append(BoxSection(title="Producer", sections=(table,)))
    return SectionPage(
        title=("Lineage of", link(name, version_page)),
        facts=(code(record.version_id), n_versions),
        tabs=version_tabs(record.dataset, record.number, "Lineage"),
        caption=f"{name}: lineage of {n_versions}",
        location=(link(name, version_page, "strong"), TextPiece("lineage")),
        sections=tuple(sections),
        parent=version_page,
        command=("show", name),
    )


def _versions(record: VersionLineage, ui: str) -> Section:
    header = columns(
        "version",
        "samples",
        "published (UTC)",
        "batch",
        "run",
        "gate",
        numbers=("samples",),
    )
    rows = []
    for origin in record.versions:
        name = f"{record.dataset}@{origin.number}"
        row = _version_row(name, origin, ui)
        rows.append(row)
    table = TableSection(
        columns=header,
        rows=tuple(rows),
        n_more=record.n_versions - len(rows),
        is_walked=True,
    )
    return BoxSection(title="Versions", sections=(table,))


def _version_row(name: str, origin: VersionOrigin, ui: str) -> tuple[Text, ...]:
    if origin.n_samples is None:
        return (name, "", quiet("its manifest is deleted"), "", "", "")
    short = origin.run_id[:12]
    run: Text = code(short)
    if ui and origin.run_id:
        run = outside(short, f"{ui.rstrip('/')}/runs/{origin.run_id}")
    gate: Text = ""
    if origin.gate == "passed":
        gate = tag("passed", "good")
    elif origin.gate:
        gate = tag(origin.gate, "odd")
    return (
        link(name, version_address(name)),
        f"{origin.n_samples:,}",
        minute(origin.created_us),
        origin.batch,
        run,
        gate,
    )


def _gate(record: VersionLineage) -> Section:
    if not record.checks:
        return NoticeSection("No record of a gate: the pipeline did not publish this version.", "quiet")
    rows = []
    for check in record.checks:
        result = tag("passed", "good")
        if not check.passed:
            result = tag("failed", "bad")
        rows.append((check.name, result, check.explanation, check.approved_by))
    header = columns("check", "result", "explanation", "approved by")
    sections: list[Section] = [TableSection(columns=header, rows=tuple(rows))]
    if record.report:
        report = NoticeSection(("report:", code(record.report)), "quiet")
        sections.append(report)
    return BoxSection(title="Gate", sections=tuple(sections))


def _making(made_by: History) -> list[Section]:
    """Return what the pipeline did with the raw objects of the versions above."""
    boxes: list[Section] = []
    for title, table in (
        ("Raw objects", _raw_objects(made_by)),
        ("Refused or left out", _refusal_table(made_by)),
        ("Settings", _settings(made_by)),
    ):
        if table.rows:
            box = BoxSection(title=title, sections=(table,))
            boxes.append(box)
    return boxes


def _raw_objects(made_by: History) -> TableSection:
    rows = []
    for outcome, n in made_by.counts.items():
        name = outcome.replace("_", " ")
        rows.append((name, f"{n:,}"))
    return TableSection(rows=tuple(rows))


def _refusal_table(made_by: History) -> TableSection:
    rows = []
    for outcome, stage, reason, n in made_by.refused:
        row = (
            clean(outcome, 40),
            clean(stage, 40),
            clean(reason, 80),
            f"{n:,}",
        )
        rows.append(row)
    header = columns("outcome", "stage", "reason", "raw objects", numbers=("raw objects",))
    return TableSection(columns=header, rows=tuple(rows))


def _settings(made_by: History) -> TableSection:
    settings = list(made_by.policies)
    for condition, n in made_by.filters:
        settings.append((f"filter: {condition}", n))
    for name, version, parameters, n in made_by.featurizers:
        settings.append((f"featurizer: {name} {version} {parameters}", n))
    rows = []
    for setting, n in settings:
        used = count_text(n, "batch", "batches")
        rows.append((clean(setting, 600), used))
    return TableSection(
        columns=columns("setting", "used by"),
        rows=tuple(rows),
    )
