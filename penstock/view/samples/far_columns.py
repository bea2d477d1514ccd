"""Columns of a sample far from those of its version, by the statistics that were stored when samples were published."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import loader
from loader.dataset.shards.address import SampleAddress
from loader.dataset.tables.annotations import files_of
from loader.dataset.tables.parquet import TableFile, get_tables
from loader.dataset.tables.stats import merge
from loader.dataset.versions.samples_table import live_row, sample_rows
from loader.errors import PenstockError

from ...text import clean
from ...units import number
from .marks import SIGMAS, StepMark, counted, step_mark

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
            found.append((-far, step_mark("column_far", text, slots, name)))
    return [mark for _, mark in sorted(found, key=lambda one: one[0])]


def step_marks(version: loader.Version, at: Mapping[int, SampleAddress]) -> list[StepMark]:
    """Return a mark per column with samples of a step beyond 4 standard deviations, or one that says why there is none.

    at: slot -> its sample. Of large tables the row groups that hold the samples are read. Annotations would be read
    whole: columns that have any, and those of tables that lack rows, are marked on the pages of slots alone.
    """
    try:
        found = [mark for row, slot in _read_rows(version, at) for mark in far_marks(version, row, (slot,))]
    except PenstockError as error:
        return [_unreadable(error, tuple(at))]
    by_column: dict[str, list[StepMark]] = {}
    for mark in found:
        by_column.setdefault(mark.field, []).append(mark)
    out = []
    for marks in by_column.values():
        more = f" (and {counted(len(marks) - 1, 'more slot')})" if len(marks) > 1 else ""
        slots = tuple(slot for mark in marks for slot in mark.slots)
        out.append(replace(marks[0], text=marks[0].text + more, slots=slots))
    return out


def _read_rows(
    version: loader.Version, at: Mapping[int, SampleAddress]
) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield (column -> value, slot) of columns of numbers, as they were written."""
    entries = version.manifest["samples"]
    annotated = {name for entry in files_of(entries, None, annotations=True) for name in entry["columns"]}
    names = [name for name in column_spreads(version) if name not in annotated]
    files = files_of(entries, names, annotations=False)
    slots, addresses = list(at), list(at.values())
    for group in sorted({entry["group"] for entry in files}):
        of_group = [one for one in files_of(entries, None, annotations=False) if one["group"] == group]
        if sum(one["n_rows"] for one in of_group) == int(version.parts.n_rows.sum()):
            for place, row in sample_rows(version, addresses, group, names):
                yield row, slots[place]


def slot_marks(version: loader.Version, ordinal: int, slot: int) -> list[StepMark]:
    """Return the marks of a sample's columns, or one that says why they cannot be read."""
    try:
        return far_marks(version, live_row(version, ordinal), (slot,))
    except PenstockError as error:
        return [_unreadable(error, (slot,))]


def _unreadable(error: PenstockError, slots: tuple[int, ...]) -> StepMark:
    text = f"the samples table cannot be read: {clean(error, 300)}"
    return step_mark("columns_unreadable", text, slots)
