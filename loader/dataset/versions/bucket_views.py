"""Split a view into buckets: one view per value of an expression, or per numeric range."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ...errors import InvalidPlan
from ...order.interleave import MAX_BUCKETS
from ...order.sources.bucket import edge_ranges
from ..shards.bitmap import Bools
from .expression import parse_expression
from .samples_table import import_polars, live_values

if TYPE_CHECKING:
    import polars

    from .view_samples import ViewSamples

_View = TypeVar("_View", bound="ViewSamples")
_SHOWN = 5

Comparisons = tuple[str, ...]
"""Comparisons of a bucket's values, in SQL: ">= 0", "< 12.5". All must hold."""


def split(
    view: _View,
    by: str,
    edges: Sequence[str] | None,
) -> dict[str, _View]:
    """Return label -> bucket view, labels ascending. Every sample is in one bucket, and no bucket is empty.

    by: an SQL expression on the samples table. edges: None labels buckets by value; ascending decimal numbers (the last
    may be "inf") give ranges such as `0..12.5`, low <= value < high. Keeps len(version) / 8 bytes per bucket.

    Raises: InvalidPlan if a sample fits no bucket, or values cannot form buckets; FieldNotFound.
    """
    members = view.members()  # bool [len(version)], as all masks below
    values = live_values(view.version, [by], f"bucket({by!r})").to_series()
    if edges is None:
        comparisons = _by_value(values, by, members)
    else:
        comparisons = _by_edge(values, by, edges)

    has_value = members & _is_known(values)
    without = members.copy()
    members_of_label: dict[str, Bools] = {}
    for label, is_in_bucket in _holds(values, comparisons).items():
        members_of_label[label] = has_value & is_in_bucket
        without &= ~members_of_label[label]
    if without.any():
        accepted = "a value"
        if edges is not None:
            accepted = f"{edges[0]} to {edges[-1]}"
        raise InvalidPlan(
            _without_bucket(view, by, edges, values, without),
            what=f"bucket({by!r})",
            given=int(without.sum()),
            accepted=accepted,
        )

    buckets = {}
    for label, bucket_members in sorted(members_of_label.items()):
        if bucket_members.any():
            predicate = _predicate(f"({by})", comparisons[label])
            buckets[label] = view.narrowed(predicate, bucket_members)
    return buckets


def whole_predicate(
    bucket: "ViewSamples",
    by: str,
    edges: Sequence[str] | None,
    label: str,
) -> str | None:
    """Return the predicate of the view that a bucket was split from, None if it had none. Raises: InvalidPlan."""
    for comparisons in _label_comparisons(edges, label):
        own_predicate = _predicate(f"({by})", comparisons)
        if bucket.predicate == own_predicate:
            return None
        ending = f") AND ({own_predicate})"
        if bucket.predicate is not None and bucket.predicate.endswith(ending):
            return bucket.predicate.removesuffix(ending).removeprefix("(")
    raise InvalidPlan(
        f"the view where {bucket.predicate!r} is not the bucket {label!r} of {by!r}",
        what="bucket",
        where=f"bucket({by!r})",
        given=label,
    )


def _label_comparisons(edges: Sequence[str] | None, label: str) -> list[Comparisons]:
    """Return what the comparisons of a label's bucket may be."""
    if edges is not None:
        return [comparisons for name, comparisons in _ranges(edges).items() if name == label]
    # A label does not say its value's type: "1" is a string or a number, "True" a string or a truth value.
    literals = {_literal(label)}
    if re.fullmatch("-?[0-9]+", label):
        literals.add(label)
    for truth in (True, False):
        if str(truth) == label:
            literals.add(_literal(truth))
    return [(f"= {literal}",) for literal in sorted(literals)]


def _predicate(value: str, comparisons: Comparisons) -> str:
    return " AND ".join(f"{value} {comparison}" for comparison in comparisons)


def _holds(values: "polars.Series", comparisons: Mapping[str, Comparisons]) -> dict[str, Bools]:
    """Return label -> bool [n]: whether each value meets the label's comparisons; null does not."""
    pl = import_polars()
    truths: list[polars.Expr] = []
    for label, comparisons_of_label in comparisons.items():
        predicate = _predicate('"value"', comparisons_of_label)
        expression = parse_expression(pl, predicate, f"bucket {label!r}")
        truth = expression.cast(pl.Boolean).fill_null(False)
        truths.append(truth.alias(str(len(truths))))
    frame = values.alias("value").to_frame().select(truths)
    holds = {}
    for label, column in zip(comparisons, frame.get_columns(), strict=True):
        holds[label] = column.to_numpy().astype(bool)
    return holds


def _by_value(
    values: "polars.Series",
    by: str,
    members: Bools,
) -> dict[str, Comparisons]:
    pl = import_polars()
    is_label = values.dtype in (pl.String, pl.Boolean, pl.Null) or values.dtype.is_integer()
    if not is_label:
        raise InvalidPlan(
            f"bucket({by!r}): its values are {values.dtype}; strings, whole numbers and booleans are labels as "
            "they are, of other numbers pass edges=, such as bucket('duration_s', edges=[0, 2, 5, 10])",
            what=f"bucket({by!r})",
            given=str(values.dtype),
        )
    member_values = values.filter(pl.Series(members)).drop_nulls()
    distinct = member_values.unique().sort().to_list()
    if len(distinct) > MAX_BUCKETS:
        raise InvalidPlan(
            f"bucket({by!r}): {len(distinct)} different values, such as {distinct[:_SHOWN]}; at most "
            f"{MAX_BUCKETS} are accepted. For numbers pass edges=",
            what=f"bucket({by!r})",
            given=len(distinct),
            accepted=MAX_BUCKETS,
        )
    return {str(value): (f"= {_literal(value)}",) for value in distinct}


def _by_edge(
    values: "polars.Series",
    by: str,
    edges: Sequence[str],
) -> dict[str, Comparisons]:
    if not values.dtype.is_numeric():
        raise InvalidPlan(
            f"bucket({by!r}, edges=): its values are {values.dtype}, and edges need numbers; without edges= every "
            "value is a bucket",
            what=f"bucket({by!r}, edges=)",
            given=str(values.dtype),
        )
    return _ranges(edges)


def _ranges(edges: Sequence[str]) -> dict[str, Comparisons]:
    ranges: dict[str, Comparisons] = {}
    for label, (low, high) in edge_ranges(edges).items():
        if high == "inf":
            ranges[label] = (f">= {low}",)
        else:
            ranges[label] = (f">= {low}", f"< {high}")
    return ranges


def _literal(value: str | int | bool) -> str:
    if isinstance(value, bool):  # before int, of which it is a subclass
        return str(value).upper()
    if isinstance(value, int):
        return str(value)
    escaped = value.replace("'", "''")
    return f"'{escaped}'"


def _is_known(values: "polars.Series") -> Bools:
    """Return bool per value: neither null nor NaN, which polars ranks above every number."""
    if values.dtype.is_float():
        is_known = values.is_not_nan().fill_null(False)
    else:
        is_known = values.is_not_null()
    known: Bools = is_known.to_numpy().astype(bool)
    return known


def _without_bucket(
    view: "ViewSamples",
    by: str,
    edges: Sequence[str] | None,
    values: "polars.Series",
    without: Bools,
) -> str:
    """Return the message for samples without a bucket."""
    ordinals = np.flatnonzero(without)
    first = ordinals[:_SHOWN]
    examples = []
    for key, ordinal in zip(view.version.keys(first), first.tolist(), strict=True):
        examples.append(f"{key!r} ({values[ordinal]!r})")
    shown = ", ".join(examples)
    if len(ordinals) > _SHOWN:
        shown += ", ..."
    if edges is None:
        ranges = ""
        remedy = f'Leave them out with where("{by} IS NOT NULL")'
    else:
        ranges = f" in {edges[0]} to {edges[-1]}"
        remedy = f'Leave them out with where("{by} >= {edges[0]} AND ..."), or widen the edges'
    return f"{len(ordinals)} of {len(view)} samples have no bucket: {by} has no value{ranges} for {shown}. {remedy}"
