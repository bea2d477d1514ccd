"""Small lines of array fields, for the rows of a page."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import loader
from loader.dataset.versions.decoded_samples import decoded
from loader.errors import PenstockError

from ...units import number
from ..polyline import polyline_points
from .array_values import Array, as_array

EXTENSION = ".npy"
MOST_BYTES = 64 * 2**10
"""Stored bytes of a field from which on no line is drawn: a page reads 60 of them."""
MOST_POINTS = 60
Int64s = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class FieldSpark:
    """A field's values as a small line."""

    points: str
    """Points of an SVG polyline, "x,y x,y"."""
    text: str
    """Description for a reader who does not see it."""


def has_spark(field: str) -> bool:
    """Return whether a field's values may be drawn as a line."""
    return field.endswith(EXTENSION)


def field_sparks(
    version: "loader.Version",
    ordinals: Int64s,
    fields_of_rows: Sequence[Sequence[str]],
    field: str,
) -> list[FieldSpark | None]:
    """Return the line of each sample; None without the field, and for bytes that are many or do not decode."""
    with_field = [row for row, names in enumerate(fields_of_rows) if field in names]
    sparks: list[FieldSpark | None] = [None] * len(ordinals)
    if not with_field:
        return sparks
    addresses = version.address(ordinals[with_field], [field])
    small = []
    for row, address in zip(
        with_field,
        addresses,
        strict=True,
    ):
        nbytes = address.fields[field].nbytes
        if nbytes <= MOST_BYTES:
            small.append(row)
    values = _values(
        version,
        ordinals[small],
        field,
    )
    for row, value in zip(
        small,
        values,
        strict=True,
    ):
        array = as_array(value)
        if array is not None:
            sparks[row] = _spark(field, array)
    return sparks


def _values(version: "loader.Version", ordinals: Int64s, field: str) -> list[Any]:
    """Return the decoded values, None for one that cannot be read."""
    try:
        samples = decoded(
            version,
            [field],
            ordinals,
        )
        return [sample[field] for sample in samples]
    except PenstockError:
        # One of them is damaged: read each by itself.
        if len(ordinals) == 1:
            return [None]
    values = []
    for ordinal in ordinals:
        values += _values(version, np.array([ordinal]), field)
    return values


def _spark(field: str, array: Array) -> FieldSpark | None:
    """Return a line along the first axis, of the means over the others."""
    is_complex = array.dtype.kind == "c"
    if array.ndim == 0 or array.size == 0 or is_complex:
        return None
    # [length, values of a row]. float64: the mean of booleans and bytes must not overflow.
    rows = array.reshape(len(array), -1).astype(np.float64)
    line = rows.mean(axis=1)  # [length of the first axis]
    spread = np.linspace(0, len(line) - 1, MOST_POINTS)
    chosen = np.unique(spread.astype(int))
    is_finite = np.isfinite(line[chosen])
    positions = chosen[is_finite]
    values = line[positions]
    points = polyline_points(positions.tolist(), values.tolist())
    if not points:
        return None
    low = float(values.min())
    high = float(values.max())
    ends = f"{number(low)} to {number(high)}"
    return FieldSpark(
        points=points,
        text=f"{field}: {len(line):,} values, {ends}",
    )
