"""Split a view into buckets: one view per value of an expression, or per numeric range."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...errors import InvalidPlan
from ...order.interleave import MAX_BUCKETS
from ...order.sources.bucket import edge_ranges
from ..shards.bitmap import Bools
from .expression import parse_expression
from .samples_table import import_polars, live_values

if TYPE_CHECKING:
    import polars

    from .view import View

_SHOWN = 5

Comparisons = tuple[str, ...]
"""Comparisons of a bucket's values, in SQL: ">= 0", "< 12.5". All must hold."""


def split(view: "View", by: str, edges: Sequence[str] | None) -> "dict[str, View]":
    """Return label -> bucket view, labels ascending. Every sample is in one bucket, and no bucket is empty.

    by: an SQL expression on the samples table. edges: None labels buckets by value; ascending decimal numbers (the last
    may be "inf") give ranges such as `0..12.5`, low <= value < high. Keeps len(version) / 8 bytes per bucket.

    Raises: InvalidPlan if a sample fits no bucket, or values cannot form buckets; FieldNotFound.
    """
    what = f"bucket({by!r})"
    members = view.members()
    values = live_values(view.version, [by], what).to_series()
    members_of = _by_value(values, by, members) if edges is None else _by_edge(values, by, edges)
    known = members & _is_known(values)
    parts = {label: known & held for label, held in _holds(values, members_of).items()}
    without = members & ~np.logical_or.reduce([np.zeros_like(members), *parts.values()])
    if without.any():
        raise InvalidPlan(_without_bucket(view, by, edges, values, without))
    return {
        label: view.narrowed(_predicate(f"({by})", members_of[label]), part)
        for label, part in sorted(parts.items())
        if part.any()
    }


def whole_predicate(part: "View", by: str, edges: Sequence[str] | None, label: str) -> str | None:
    if edges is None:
        literals = {_literal(label), *([label] if re.fullmatch("-?[0-9]+", label) else [])}
        literals |= {_literal(truth) for truth in (True, False) if str(truth) == label}
        asked = [_predicate(f"({by})", (f"= {bucket}",)) for bucket in sorted(literals)]
    else:
        asked = [_predicate(f"({by})", bucket) for at, bucket in _ranges(edges).items() if at == label]
    for bucket in asked:
        if part.predicate == bucket:
            return None
        if part.predicate is not None and part.predicate.endswith(f") AND ({bucket})"):
            return part.predicate.removesuffix(f") AND ({bucket})").removeprefix("(")
    raise InvalidPlan(f"the view where {part.predicate!r} is not the bucket {label!r} of {by!r}")


def _predicate(value: str, comparisons: Comparisons) -> str:
    return " AND ".join(f"{value} {one}" for one in comparisons)


def _holds(values: "polars.Series", comparisons: Mapping[str, Comparisons]) -> dict[str, Bools]:
    pl = import_polars()
    truths = [
        parse_expression(pl, _predicate('"value"', one), f"bucket {label!r}")
        .cast(pl.Boolean)
        .fill_null(False)
        for label, one in comparisons.items()
    ]
    truth_values = values.alias("value").to_frame().select(one.alias(str(i)) for i, one in enumerate(truths))
    return {
        label: column.to_numpy().astype(bool)
        for label, column in zip(comparisons, truth_values.get_columns(), strict=True)
    }


def _by_value(values: "polars.Series", by: str, members: Bools) -> dict[str, Comparisons]:
    pl = import_polars()
    if not (values.dtype in (pl.String, pl.Boolean, pl.Null) or values.dtype.is_integer()):
        raise InvalidPlan(
            f"bucket({by!r}): its values are {values.dtype}; strings, whole numbers and booleans are labels as "
            "they are, of other numbers pass edges=, such as bucket('duration_s', edges=[0, 2, 5, 10])"
        )
    values_seen = values.filter(pl.Series(members)).drop_nulls().unique().sort().to_list()
    if len(values_seen) > MAX_BUCKETS:
        raise InvalidPlan(
            f"bucket({by!r}): {len(values_seen)} different values, such as {values_seen[:_SHOWN]}; at most "
            f"{MAX_BUCKETS} are accepted. For numbers pass edges="
        )
    return {str(value): (f"= {_literal(value)}",) for value in values_seen}


def _by_edge(values: "polars.Series", by: str, edges: Sequence[str]) -> dict[str, Comparisons]:
    if not values.dtype.is_numeric():
        raise InvalidPlan(
            f"bucket({by!r}, edges=): its values are {values.dtype}, and edges need numbers; without edges= every "
            "value is a bucket"
        )
    return _ranges(edges)


def _ranges(edges: Sequence[str]) -> dict[str, Comparisons]:
    return {
        label: (f">= {low}",) if high == "inf" else (f">= {low}", f"< {high}")
        for label, (low, high) in edge_ranges(edges).items()
    }


def _literal(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


def _is_known(values: "polars.Series") -> Bools:
    """Return bool per value: neither null nor NaN, which polars ranks above every number."""
    known = values.is_not_nan().fill_null(False) if values.dtype.is_float() else values.is_not_null()
    out: Bools = known.to_numpy().astype(bool)
    return out


def _without_bucket(
    view: "View", by: str, edges: Sequence[str] | None, values: "polars.Series", without: Bools
) -> str:
    ordinals = np.flatnonzero(without)
    first = ordinals[:_SHOWN]
    shown = ", ".join(
        f"{key!r} ({values[int(at)]!r})" for key, at in zip(view.version.keys(first), first, strict=True)
    )
    more = ", ..." if len(ordinals) > _SHOWN else ""
    ranges = "" if edges is None else f" in {edges[0]} to {edges[-1]}"
    keep = f"{by} IS NOT NULL" if edges is None else f"{by} >= {edges[0]} AND ..."
    return (
        f"{len(ordinals)} of {len(view)} samples have no bucket: {by} has no value{ranges} for {shown}{more}. "
        f'Leave them out with where("{keep}")' + (", or widen the edges" if edges is not None else "")
    )
