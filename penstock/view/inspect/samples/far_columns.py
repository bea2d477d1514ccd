"""Columns of a sample far from those of its version, by the statistics that were stored when samples were published."""

import math
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import loader
from loader.dataset.tables.parquet import TableFile, get_tables
from loader.dataset.tables.stats import merge
from loader.dataset.versions.samples_table import live_row
from loader.errors import PenstockError
from penstock.card.rendering.escape import clean
from penstock.units import number

from ..marks import SIGMAS, StepMark

MIN_SAMPLES = 32
"""Samples with a value, below which nothing is said of a column."""
_LEAST_SHARE = 1e-9
"""Variance by mean square, below which the difference of the stored sums is rounding."""

Spread = tuple[float, float]
_KNOWN: WeakKeyDictionary[loader.Version, dict[str, Spread]] = WeakKeyDictionary()


def column_spreads(version: loader.Version) -> Mapping[str, Spread]:
    """Return column of numbers -> (mean, standard deviation) over its version; excluded samples still count.

    Costs the tables of statistics, once for each opened version. A constant column has none. Raises: Corrupt.
    """
    if version not in _KNOWN:
        files = [TableFile.from_json(entry) for entry in version.manifest["stats"]]
        rows = merge(row for table in get_tables(version.store, files) for row in table.to_pylist())
        _KNOWN[version] = {name: found for name, row in rows.items() if (found := _spread(row)) is not None}
    return _KNOWN[version]


def _spread(row: Mapping[str, Any]) -> Spread | None:
    n = row["n"] - row["nulls"] - (row["nans"] or 0)
    if row["sum_squares"] is None or n < MIN_SAMPLES:
        return None
    mean, square = row["sum"] / n, row["sum_squares"] / n
    variance = square - mean * mean
    return (mean, math.sqrt(variance)) if variance > _LEAST_SHARE * square else None


def far_marks(version: loader.Version, row: Mapping[str, Any], slots: tuple[int, ...] = ()) -> list[StepMark]:
    """Return a mark per column of a sample beyond 4 standard deviations of its version's mean, the farthest first.

    row: column -> value, as `live_row` has it. Costs as `column_spreads`.
    """
    found = []
    for name, (mean, sigma) in column_spreads(version).items():
        value = row.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            continue
        far = abs(value - mean) / sigma
        if far > SIGMAS:
            text = f"column {clean(name, 80)} = {number(value)}, {far:.0f} sigma from the version's mean {number(mean)}"
            found.append((-far, StepMark(name="column_far", text=text, weight=25, slots=slots, field=name)))
    return [mark for _, mark in sorted(found, key=lambda one: one[0])]


def slot_marks(version: loader.Version, ordinal: int, slot: int) -> list[StepMark]:
    """Return the marks of a sample's columns, or one that says why they cannot be read."""
    try:
        return far_marks(version, live_row(version, ordinal), (slot,))
    except PenstockError as error:
        text = f"the samples table cannot be read: {clean(error, 300)}"
        return [StepMark(name="columns_unreadable", text=text, weight=25, slots=(slot,))]
