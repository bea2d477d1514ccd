"""The contents of a version: its columns with their statistics, its groups of fields, and its annotations."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import loader
from loader.dataset.tables.annotations import Annotation

from ...text import clean
from ...upkeep.diff import column_statistics
from ..json_record import JsonRecord

MOST_COMMONEST = 5
"""Commonest values of a column that the record has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSummary(JsonRecord):
    """A column over all rows of the samples table, excluded samples included."""

    name: str
    type: str
    """Arrow type."""
    group: str
    """Group of fields that wrote it, or the annotation's name."""
    n_rows: int
    """Rows with a value."""
    nulls: int
    """Rows of its parts without one."""
    nans: int
    n_values: int | None
    """Distinct values, if the statistics count them."""
    commonest: tuple[tuple[str, int], ...]
    """(value, rows) of the commonest values."""
    low: float | None
    """Least finite number, or None."""
    mean: float | None
    """Mean of the finite numbers, or None."""
    high: float | None
    """Largest finite number, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary(JsonRecord):
    """Fields that are stored together, excluded samples included."""

    name: str
    fields: Mapping[str, int]
    """Field -> bytes."""
    n_samples: int
    n_parts: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionContents(JsonRecord):
    dataset: str
    number: int
    n_samples: int
    """Live samples."""
    n_rows: int
    """Rows, excluded samples included."""
    columns: tuple[ColumnSummary, ...]
    """By name."""
    groups: tuple[GroupSummary, ...]
    """By name."""
    annotations: tuple[Annotation, ...]
    """Oldest first."""


def version_contents(version: "loader.Version") -> VersionContents:
    """Return a version's contents from its manifest and its stored statistics. Raises: Corrupt; StoreError."""
    manifest = version.manifest
    statistics = column_statistics(version)
    columns = [
        _column(name, column, statistics.get(name, {}))
        for name, column in sorted(manifest["columns"].items())
        if column["type"] != "null"
    ]
    groups = [_group(name, group) for name, group in sorted(manifest["groups"].items())]
    return VersionContents(
        dataset=version.dataset,
        number=version.number,
        n_samples=len(version),
        n_rows=manifest["n_rows"],
        columns=tuple(columns),
        groups=tuple(groups),
        annotations=tuple(version.annotations),
    )


def _column(name: str, column: Mapping[str, Any], statistics: Mapping[str, Any]) -> ColumnSummary:
    categories: Mapping[str, int] | None = statistics.get("categories")
    commonest: list[tuple[str, int]] = []
    n_values = None
    if categories:
        n_values = len(categories)
        ranked = sorted(categories.items(), key=lambda item: (-item[1], item[0]))
        commonest = [(clean(value, 40), n) for value, n in ranked[:MOST_COMMONEST]]
    nulls = statistics.get("nulls", 0)
    return ColumnSummary(
        name=name,
        type=column["type"],
        group=column["group"],
        n_rows=statistics.get("n", 0) - nulls,
        nulls=nulls,
        nans=statistics.get("nans", 0),
        n_values=n_values,
        commonest=tuple(commonest),
        low=statistics.get("min"),
        mean=statistics.get("mean"),
        high=statistics.get("max"),
    )


def _group(name: str, group: Mapping[str, Any]) -> GroupSummary:
    return GroupSummary(
        name=name,
        fields=dict(sorted(group["field_nbytes"].items())),
        n_samples=group["n_rows"],
        n_parts=group["n_parts"],
        nbytes=group["nbytes"],
    )
