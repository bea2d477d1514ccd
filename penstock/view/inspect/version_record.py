"""A version of a dataset: its columns' statistics, and a page of its samples, filtered and sorted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import loader
from loader.dataset.tables.columns import SOURCE_COLUMNS
from loader.dataset.versions.samples_table import live_columns
from loader.errors import InvalidRuntime

from ...text import clean
from ...upkeep.diff import column_statistics
from ..json_record import Record
from .filter_limit import check_limit

PAGE = 60
"""Samples of a page of the grid."""
MOST_CATEGORIES = 12
"""Values of a column that are listed."""
TOLD = ("label", "kind", "split", "language", "licence", "raw_key")
"""Columns that a sample in the grid is told with, where they are there."""
_IDENTITY = frozenset((*SOURCE_COLUMNS, "key"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Facet(Record):
    """Statistics of a column."""

    column: str
    """Name of the column."""
    type: str
    """Arrow type."""
    n: int
    """Samples with a value."""
    nulls: int
    """Samples without one."""
    low: float | None = None
    """Least value; None for text."""
    high: float | None = None
    """Greatest value; None for text."""
    mean: float | None = None
    """Mean; None for text."""
    values: tuple[tuple[str, int], ...] = ()
    """(value, samples) of the most frequent values; none for numbers, or too many values."""
    n_values: int = 0
    """Different values; 0 where they were not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridRow(Record):
    """A sample in the grid."""

    ordinal: int
    """Number of the sample in the version."""
    key: str
    """Key of the sample."""
    fields: tuple[str, ...]
    """Its fields."""
    told: Mapping[str, str]
    """Column -> value, of a few columns that tell samples apart; empty without a filter or a small table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRecord(Record):
    """A version, and a page of its samples."""

    dataset: str
    """Name of the dataset."""
    number: int
    """Number of the version."""
    version_id: str
    """Id of the version."""
    n_samples: int
    """Live samples."""
    n_excluded: int
    """Excluded rows."""
    fields: tuple[str, ...]
    """Fields."""
    created_us: int
    """Time of the publish in UTC microseconds."""
    producer: Mapping[str, str]
    """Maker of the version."""
    facets: tuple[Facet, ...]
    """Statistics of its columns; excluded samples still count."""
    where: str
    """SQL expression of the filter; "" for none."""
    sort: str
    """SQL expression of the order, with `-` before it for descending; "" for the version's order."""
    n_found: int
    """Samples that the filter keeps."""
    first: int
    """Place of the first row among those found."""
    rows: tuple[GridRow, ...]
    """Samples of this page."""


def version_record(
    version: "loader.Version", *, where: str = "", sort: str = "", first: int = 0
) -> VersionRecord:
    """Return a version's record.

    Without filter and order it costs the manifest, the statistics and the indexes of one page: no samples table.

    Raises: FieldNotFound for an expression that is refused; InvalidRuntime for a bad place.
    """
    if first < 0:
        raise InvalidRuntime(f"from = {first}; a place from 0 is needed")
    ordinals, n_found, told = _found(version, where, sort, first)
    manifest = version.manifest
    dataset, _, number = version.name.partition("@")
    return VersionRecord(
        dataset=dataset,
        number=int(number),
        version_id=version.id,
        n_samples=len(version),
        n_excluded=manifest["n_rows"] - len(version),
        fields=version.fields,
        created_us=manifest["created_us"],
        producer={
            key: clean(value, 200)
            for key, value in manifest["producer"].items()
            if isinstance(value, str | int)
        },
        facets=_facets(version),
        where=where,
        sort=sort,
        n_found=n_found,
        first=first,
        rows=_rows(version, ordinals, told),
    )


def fields_of(version: "loader.Version", ordinals: Sequence[int]) -> list[tuple[str, ...]]:
    """Return the fields of each sample: those of the groups that its part has."""
    part, _ = version.parts.locate(np.asarray(ordinals, np.int64))
    groups = {name: version.parts.has_group(name) for name in version.manifest["groups"]}
    fields = {name: tuple(body["field_nbytes"]) for name, body in version.manifest["groups"].items()}
    return [
        tuple(field for name, has in groups.items() if has[position] for field in fields[name])
        for position in part.tolist()
    ]


def _found(
    version: "loader.Version", where: str, sort: str, first: int
) -> tuple[list[int], int, list[dict[str, Any]]]:
    """Return the ordinals of one page, the number of all that the filter keeps, and columns that the page is told with.

    Without filter and order these are none: no table is read for them.
    """
    for what, text in (("where", where), ("sort", sort)):
        check_limit(text, what)
    if not where and not sort:
        whole = list(range(min(first, len(version)), min(first + PAGE, len(version))))
        return whole, len(version), [{} for _ in whole]
    columns = [name for name in TOLD if name in version.manifest["columns"]]
    frame = live_columns(
        version,
        [
            (where or "TRUE", f"where({where!r})"),
            *((f'"{name}"', "the grid") for name in columns),
            *([(sort.removeprefix("-"), f"sort={sort!r}")] if sort else ()),
        ],
        truths=1,
    )
    kept = frame["0"].arg_true()
    if sort:
        descending = sort.startswith("-")
        ranked = frame[kept, -1].to_frame().with_row_index("at")
        name = ranked.columns[-1]
        kept = kept[ranked.sort(name, descending=descending, nulls_last=True, maintain_order=True)["at"]]
    page = kept[first : first + PAGE]
    told = [frame[str(i + 1)][page].to_list() for i in range(len(columns))]
    # A version without any of these columns has an empty row for each sample.
    rows = zip(*told, strict=True) if told else (() for _ in page)
    return page.to_list(), len(kept), [dict(zip(columns, row, strict=True)) for row in rows]


def _facets(version: "loader.Version") -> tuple[Facet, ...]:
    found = []
    for name, one in column_statistics(version).items():
        if name in _IDENTITY and name not in ("split", "subject"):
            continue
        categories = dict(one.get("categories") or ())
        top = sorted(categories.items(), key=lambda item: (-item[1], item[0]))
        found.append(
            Facet(
                column=name,
                type=one["type"],
                n=one["n"] - one["nulls"],
                nulls=one["nulls"],
                low=one.get("min"),
                high=one.get("max"),
                mean=one.get("mean"),
                values=tuple(top[:MOST_CATEGORIES]),
                n_values=len(categories),
            )
        )
    return tuple(sorted(found, key=lambda one: one.column))


def _rows(version: "loader.Version", ordinals: list[int], told: list[dict[str, Any]]) -> tuple[GridRow, ...]:
    if not ordinals:
        return ()
    keys = version.keys(np.array(ordinals, np.int64))
    return tuple(
        GridRow(
            ordinal=ordinal,
            key=key,
            fields=fields,
            told={name: clean(value, 80) for name, value in row.items() if value is not None},
        )
        for ordinal, key, fields, row in zip(ordinals, keys, fields_of(version, ordinals), told, strict=True)
    )
