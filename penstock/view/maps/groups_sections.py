"""The page of a version's groups: near-duplicates, and clusters of its map."""

from ...text import clean
from ...units import number, share
from ..marks import count_text
from ..page_address import version_address
from ..sections.section import (
    AskField,
    AskSection,
    BoxSection,
    NoticeSection,
    Section,
    SectionPage,
    TableSection,
    columns,
)
from ..sections.texts import Text, TextPiece, link, quiet
from ..sections.version_tabs import version_tabs
from .groups_record import ClusterGroup, DuplicateGroup, GroupsRecord

NAMED = 4
"""Keys of a group in its row."""


def groups_sections(record: GroupsRecord) -> SectionPage:
    """Return the page of a version's groups."""
    name = f"{record.dataset}@{record.number}"
    page = version_address(name)
    n_groups = count_text(record.n_groups, "group")
    facts = [f"{n_groups} of near-duplicates", count_text(len(record.clusters), "cluster")]
    notices = [NoticeSection(clean(error, 600), "bad") for error in record.errors]
    sections: list[Section] = [_duplicates(record)]
    if record.clusters:
        sections.append(_clusters(record))
    return SectionPage(
        title=("Groups of", link(name, page)),
        facts=tuple(facts),
        tabs=version_tabs(record.dataset, record.number, "Groups"),
        caption=f"{name}: {', '.join(facts)}",
        location=(link(name, page, "strong"), TextPiece("groups")),
        notices=tuple(notices),
        sections=tuple(sections),
        parent=page,
        command=("show", name),
    )


def _duplicates(record: GroupsRecord) -> Section:
    name = f"{record.dataset}@{record.number}"
    sections: list[Section] = [NoticeSection(_how(record), "quiet")]
    if not record.column and record.field:
        bound = AskField(
            name="cosine",
            label="least cosine",
            value=f"{record.least_cosine:g}",
            size=6,
        )
        sections.append(
            AskSection(
                fields=(bound,),
                button="Compare",
                hint="",
                page=version_address(name, "groups"),
            )
        )
    rows = [_duplicate_row(name, group) for group in record.duplicates]
    if rows:
        table = TableSection(
            columns=columns("samples", "first keys", numbers=("samples",), links=("first keys",)),
            rows=tuple(rows),
            n_more=record.n_groups - len(rows),
            is_walked=True,
        )
        sections.append(table)
    return BoxSection(title="Near-duplicates", sections=tuple(sections))


def _how(record: GroupsRecord) -> str:
    """Return how near-duplicates were found, in one sentence."""
    n = count_text(record.n_duplicates, "sample")
    if record.column:
        text = f"{n} in groups that the column {record.column} names."
        if record.n_left_out:
            text = f"{text} {count_text(record.n_left_out, 'further copy', 'further copies')} not searched."
        return text
    if not record.n_compared:
        return "No sample was compared."
    groups = f"{n} in groups of a cosine of at least {record.least_cosine:g}"
    compared = count_text(record.n_compared, "sample")
    if record.n_compared < record.n_samples:
        # A sample without a usable vector is compared with none.
        return f"{groups}, of {compared} that were compared out of {number(record.n_samples)}."
    return f"{groups}, of all {compared}."


def _duplicate_row(name: str, group: DuplicateGroup) -> tuple[Text, ...]:
    page = version_address(name, where=group.where)
    count = number(group.n)
    if group.n_where < group.n:
        count = f"{count}, first {number(group.n_where)}"
    pairs = zip(group.ordinals[:NAMED], group.keys, strict=False)
    keys: list[str | TextPiece] = [
        link(clean(key, 60), version_address(name, "s", ordinal), "code") for ordinal, key in pairs
    ]
    if group.n > NAMED:
        keys.append(quiet(f"and {number(group.n - NAMED)} more"))
    return link(count, page), tuple(keys)


def _clusters(record: GroupsRecord) -> Section:
    name = f"{record.dataset}@{record.number}"
    header = columns(
        "cluster",
        "samples",
        "label",
        "share",
        "words",
        "mean cosine",
        "nearest to its middle",
        numbers=("cluster", "samples", "share", "mean cosine"),
    )
    rows = [_cluster_row(name, cluster) for cluster in record.clusters]
    sections: list[Section] = []
    if record.n_texts:
        sections.append(NoticeSection(f"Words of {count_text(record.n_texts, 'text')}.", "quiet"))
    sections.append(
        TableSection(
            columns=header,
            rows=tuple(rows),
            is_walked=True,
        )
    )
    return BoxSection(title="Clusters of the map", sections=tuple(sections))


def _cluster_row(name: str, cluster: ClusterGroup) -> tuple[Text, ...]:
    page = version_address(name, t=cluster.where)
    label_share = ""
    if cluster.label:
        label_share = share(cluster.label_share, 1)
    return (
        link(str(cluster.cluster), page),
        number(cluster.n),
        clean(cluster.label, 60),
        label_share,
        clean(", ".join(cluster.words), 120),
        f"{cluster.cosine:.2f}",
        link(clean(cluster.key, 60), version_address(name, "s", cluster.ordinal), "code"),
    )
