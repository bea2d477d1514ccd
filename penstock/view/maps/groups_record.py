"""The groups of a version's samples: near-duplicates, and the clusters of its map told by label and words."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import loader
from loader.dataset.search.index_record import similarity_field, text_fields
from loader.dataset.search.text_reads import TextReader
from loader.dataset.search.vectors import field_ordinals
from loader.errors import Corrupt, FieldNotFound, FormatTooNew, NotIndexed

from ...search.map.clusters import MapCluster, clusters
from ...search.map.version_map import VersionMap
from ...text import clean
from ..facets.column_codes import Int64s
from ..facets.facet_terms import literal
from ..facets.map_columns import CLUSTER
from ..facets.spread_rows import is_spread
from ..facets.version_columns import VersionColumns
from ..facets.version_filter import address_bytes
from ..json_record import JsonRecord
from ..page_address import WrongParameter
from .duplicates import COPY_COLUMN, Duplicates, duplicates

LEAST_COSINE = 0.95
"""Least cosine of near-duplicates, if an address names none."""
SHOWN = 60
"""Groups of near-duplicates on a page."""
SHOWN_SAMPLES = 12
"""Samples of a group that the page names."""
MOST_TEXTS = 4_096
"""Texts that are read for the words of clusters: 16 of each of 256."""
MOST_TERM_BYTES = 3_000
"""Bytes of a group's filter in an address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateGroup(JsonRecord):
    """Samples that are nearly equal."""

    n: int
    ordinals: tuple[int, ...]
    """First samples in version order."""
    keys: tuple[str, ...]
    """In the order of `ordinals`."""
    where: str
    """SQL that finds the group, or its first samples."""
    n_where: int
    """Samples that `where` finds: fewer than `n` if an address cannot name them all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterGroup(JsonRecord):
    """Samples of one region of the map."""

    cluster: int
    n: int
    label: str
    """Most frequent label, or ""."""
    label_share: float
    """Share of the samples that have it."""
    words: tuple[str, ...]
    """Words that are more frequent than in other clusters."""
    cosine: float
    """Mean cosine between a sample and the cluster's mean."""
    x: int
    y: int
    ordinal: int
    """Sample nearest to the mean."""
    key: str
    where: str
    """Term (`t=`) that finds the cluster on the version's page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsRecord(JsonRecord):
    """Groups of a version."""

    dataset: str
    number: int
    n_samples: int
    """Live samples."""
    column: str
    """Column that names the originals of copies; "" if vectors were compared."""
    field: str
    """Field of the vectors, or ""."""
    least_cosine: float
    """Least cosine of near-duplicates."""
    n_left_out: int
    """Copies that the column names beyond the first ones: they are in no group."""
    n_compared: int
    """Samples of which near-duplicates were looked for."""
    n_groups: int
    """Groups of near-duplicates."""
    n_duplicates: int
    """Samples in them."""
    duplicates: tuple[DuplicateGroup, ...]
    """The largest groups, up to 60."""
    clusters: tuple[ClusterGroup, ...]
    """Clusters of the map, the largest first."""
    n_texts: int
    """Texts of which `words` were counted."""
    errors: tuple[str, ...]
    """Why a part is missing."""


def groups_record(
    version: "loader.Version",
    columns: VersionColumns,
    least_cosine: float = LEAST_COSINE,
) -> GroupsRecord:
    """Return the groups of a version. A part that cannot be made is an error of the record."""
    errors = []
    field = ""
    try:
        field = similarity_field(version, None)
    except FieldNotFound as error:
        if COPY_COLUMN not in version.manifest["columns"]:
            errors.append(str(error))
    copies = Duplicates(column="", n_compared=0, groups=())
    try:
        copies = duplicates(
            version,
            field,
            least_cosine,
            columns,
        )
    except (NotIndexed, Corrupt) as error:
        errors.append(str(error))
    cluster_groups: tuple[ClusterGroup, ...] = ()
    n_texts = 0
    if field:
        try:
            places = columns.places(version)
            texts = _some_texts(version, places)
            n_texts = len(texts)
            cluster_groups = _clusters(
                version,
                places,
                texts,
                columns,
            )
        except (NotIndexed, Corrupt, FormatTooNew) as error:
            errors.append(str(error))
    return GroupsRecord(
        dataset=version.dataset,
        number=version.number,
        n_samples=len(version),
        column=copies.column,
        field=field,
        least_cosine=least_cosine,
        n_compared=copies.n_compared,
        n_left_out=copies.n_left_out,
        n_groups=len(copies.groups),
        n_duplicates=sum(map(len, copies.groups)),
        duplicates=_show_groups(version, copies.groups[:SHOWN]),
        clusters=cluster_groups,
        n_texts=n_texts,
        # Both parts may fail for one reason, such as the missing map.
        errors=tuple(dict.fromkeys(errors)),
    )


def parse_cosine(text: str) -> float:
    """Return the bound of an address, such as "0.9". Raises: WrongParameter."""
    if not text:
        return LEAST_COSINE
    try:
        cosine = float(text[:20])
    except ValueError:
        cosine = 0.0
    # Below, most samples of many datasets are one group.
    if not 0.5 <= cosine <= 1:
        raise WrongParameter(f"cosine = {text[:40]!r}; pass a number from 0.5 to 1, such as 0.95")
    return cosine


def _show_groups(version: "loader.Version", groups: Sequence[Int64s]) -> tuple[DuplicateGroup, ...]:
    shown = []
    for ordinals in groups:
        first = ordinals[:SHOWN_SAMPLES]
        keys = version.keys(first)
        where, n_where = _where(version, ordinals)
        group = DuplicateGroup(
            n=len(ordinals),
            ordinals=tuple(first.tolist()),
            keys=tuple(keys),
            where=where,
            n_where=n_where,
        )
        shown.append(group)
    return tuple(shown)


def _where(version: "loader.Version", ordinals: Int64s) -> tuple[str, int]:
    """Return (SQL that finds the first of these samples, how many it finds), as many as an address takes."""
    literals: list[str] = []
    n_bytes = 0
    # A literal and its comma take four bytes or more, so further keys cannot fit.
    for key in version.keys(ordinals[: MOST_TERM_BYTES // 4]):
        text = literal(key)
        n_bytes += address_bytes(f"{text}, ")
        # The first key always counts: a filter of no key would find nothing.
        if literals and n_bytes > MOST_TERM_BYTES:
            break
        literals.append(text)
    return f"key IN ({', '.join(literals)})", len(literals)


def _some_texts(version: "loader.Version", places: VersionMap) -> dict[int, str]:
    """Return ordinal -> text of evenly spread samples of each cluster; {} without a text field."""
    try:
        field = text_fields(version, None)[0]
    except FieldNotFound:
        return {}
    ordinals = field_ordinals(version, field)
    ordinals = ordinals[places.has_place[ordinals]]
    n = min(MOST_TEXTS, len(ordinals))
    # Evenly along the samples sorted by cluster: each cluster gets its share of the texts.
    by_cluster = np.argsort(places.cluster[ordinals], kind="stable")
    spread = np.linspace(0, len(ordinals) - 1, n)
    chosen = ordinals[by_cluster[spread.round().astype(np.int64)]]
    # Ascending, so that texts of one shard are read together.
    chosen.sort()
    reader = TextReader(version, field)
    try:
        texts = reader.samples(chosen).to_pylist()
    finally:
        reader.close()
    return {ordinal: text for ordinal, text in zip(chosen.tolist(), texts, strict=True) if text}


def _clusters(
    version: "loader.Version",
    places: VersionMap,
    texts: dict[int, str],
    columns: VersionColumns,
) -> tuple[ClusterGroup, ...]:
    labels = None
    if not is_spread(version):
        labels = columns.label_codes(version)
    codes = None
    if labels is not None:
        codes = labels.codes
    listed = clusters(
        places,
        codes,
        texts,
    )
    listed.sort(key=_by_size)
    examples = np.array([one.example for one in listed], np.int64)
    groups = []
    for cluster, key in zip(listed, version.keys(examples), strict=True):
        label = ""
        if labels is not None and cluster.label >= 0:
            label = clean(labels.names[cluster.label], 80)
        group = ClusterGroup(
            cluster=cluster.number,
            n=cluster.n,
            label=label,
            label_share=cluster.label_share,
            words=cluster.words,
            cosine=cluster.cosine,
            x=cluster.x,
            y=cluster.y,
            ordinal=cluster.example,
            key=key,
            where=f'"{CLUSTER}" = {cluster.number}',
        )
        groups.append(group)
    return tuple(groups)


def _by_size(cluster: MapCluster) -> tuple[int, int]:
    return -cluster.n, cluster.number
