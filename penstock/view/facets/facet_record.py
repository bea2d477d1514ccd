"""A facet's record, from codes of its column or from stored statistics."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from ..json_record import JsonRecord
from .column_codes import (
    BOOL,
    CATEGORY,
    IDENTIFIER,
    MOST_VALUE_CHARACTERS,
    MOST_VALUES,
    NUMBER,
    TIME,
    Bools,
    CodedColumn,
    is_identifier,
    kind_of_type,
)
from .facet_terms import value_term


@dataclass(frozen=True, slots=True)
class FacetValue(JsonRecord):
    value: str | bool | float | None
    """None for samples without a value."""
    n: int
    """Samples that a click finds."""
    all: int
    """Samples without any filter."""
    where: str
    """SQL term that finds it."""


@dataclass(frozen=True, slots=True)
class FacetBin(JsonRecord):
    low: float | str
    """Smallest number or time of the bin."""
    high: float | str
    """Its end; only the last bin contains it."""
    n: int
    """Samples that a click finds."""
    all: int
    """Samples without any filter."""
    where: str
    """SQL term that finds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facet(JsonRecord):
    """A column's values or bins. Counts are of live samples that satisfy all of the filter but the column's terms."""

    column: str
    """Column name."""
    type: str
    """Type in the samples table."""
    kind: str
    """"category", "number", "bool", "time", "identifier" (searched, lists no values) or "other"."""
    is_counted: bool
    """False if the column was not read: then the facet has no values and bins, and `kind` follows the type."""
    n: int | None
    """Samples with a value; None if not counted."""
    nulls: int | None
    """Samples without a value; None if not counted."""
    n_values: int
    """Distinct values of all live samples, without null; 0 if not counted."""
    scale: str
    """Bins' scale, "linear" or "log"; "" without bins."""
    low: float | str | None
    """Smallest finite number or first time of all live samples."""
    high: float | str | None
    """Largest finite number or last time of all live samples."""
    mean: float | None
    """Mean of finite numbers of all live samples."""
    is_about: bool
    """True if the counts are estimates from evenly spread rows of a large version."""
    terms: tuple[str, ...]
    """The filter's terms over this column."""
    values: tuple[FacetValue, ...]
    """Values, most frequent first, at most 300; null, NaN and the infinities of a number."""
    bins: tuple[FacetBin, ...]
    """Bins of numbers or times, at most 32 or one for each of 32 whole numbers."""


def facet_from_codes(
    coded: CodedColumn,
    members: Bools | None,
    type_name: str,
    terms: tuple[str, ...],
    share: float,
) -> Facet:
    """Return a facet from a column's codes. members: bool [rows] to count, or None for all. share: of samples coded."""
    # Counts of the spread rows, scaled up to all samples.
    every = np.rint(coded.all / share).astype(int).tolist()
    counts = np.rint(coded.counts(members) / share).astype(int).tolist()
    n_values = len(coded.values)
    nulls = 0
    if coded.null_code >= 0:
        nulls = counts[coded.null_code]
    return Facet(
        column=coded.column,
        type=type_name,
        kind=coded.kind,
        is_counted=True,
        n=sum(counts) - nulls,
        nulls=nulls,
        n_values=coded.n_values,
        scale=coded.scale,
        low=coded.low,
        high=coded.high,
        mean=coded.mean,
        is_about=share < 1,
        terms=terms,
        values=tuple(
            FacetValue(
                one.value,
                counts[code],
                every[code],
                one.where,
            )
            for code, one in enumerate(coded.values)
        ),
        bins=tuple(
            FacetBin(
                one.low,
                one.high,
                counts[n_values + i],
                every[n_values + i],
                one.where,
            )
            for i, one in enumerate(coded.bins)
        ),
    )


def facet_from_statistics(name: str, statistics: Mapping[str, Any]) -> Facet:
    """Return a facet of all samples from stored statistics, which must include no excluded samples."""
    nulls = statistics["nulls"]
    n = statistics["n"] - nulls
    categories = statistics.get("categories")
    kind = kind_of_type(name, statistics["type"])
    if (
        kind == CATEGORY
        and _lists_all(categories)
        and is_identifier(
            name,
            len(categories),
            n,
        )
    ):
        kind = IDENTIFIER
    counts = _statistics_counts(
        kind,
        categories,
        nulls,
    )
    listed = counts or []
    return Facet(
        column=name,
        type=statistics["type"],
        kind=kind,
        is_counted=counts is not None,
        n=n,
        nulls=nulls,
        n_values=len(categories or ()),
        scale="",
        low=statistics.get("min"),
        high=statistics.get("max"),
        mean=statistics.get("mean"),
        is_about=False,
        terms=(),
        values=tuple(
            FacetValue(
                value,
                count,
                count,
                value_term(name, value),
            )
            for value, count in listed
        ),
        bins=(),
    )


def _statistics_counts(
    kind: str,
    categories: Mapping[str, int] | None,
    nulls: int,
) -> list[tuple[Any, int]] | None:
    """Return (value, samples) pairs as codes list them; None if they do not follow from the statistics."""
    counts: list[tuple[Any, int]] = []
    if kind == BOOL and categories is not None:
        counts = [(True, categories.get("True", 0)), (False, categories.get("False", 0))]
    elif kind == CATEGORY and _lists_all(categories):
        # The order of codes, so that a facet does not change when its column is read.
        counts = sorted(categories.items(), key=lambda item: (-item[1], item[0]))
    elif kind == IDENTIFIER and _lists_all(categories):
        return []
    else:
        return None
    if nulls:
        counts.append((None, nulls))
    return counts


def _lists_all(categories: Mapping[str, int] | None) -> TypeGuard[Mapping[str, int]]:
    if categories is None or len(categories) > MOST_VALUES:
        return False
    return all(len(value) <= MOST_VALUE_CHARACTERS for value in categories)


def tells_apart(facet: Facet) -> bool:
    """Return whether a facet has, or by its statistics will have, several values or bins."""
    if facet.is_counted:
        return facet.kind != IDENTIFIER and len(facet.values) + len(facet.bins) > 1
    if facet.kind not in (NUMBER, TIME):
        return False
    # NaN counts as a value, so a column without a smallest number may have several.
    return bool(facet.nulls) or facet.low is None or facet.low != facet.high


def plain_facet(name: str, type_name: str) -> Facet:
    """Return a facet without counts."""
    return Facet(
        column=name,
        type=type_name,
        kind=kind_of_type(name, type_name),
        is_counted=False,
        n=None,
        nulls=None,
        n_values=0,
        scale="",
        low=None,
        high=None,
        mean=None,
        is_about=False,
        terms=(),
        values=(),
        bins=(),
    )
