"""Compute statistics of a run of samples, one row per column, which merge without a rescan.

Counts, sums and histogram bins add up; minima, maxima and bottom-k sketches merge. If an annotation changes an existing
column, its row covers the whole column and replaces earlier rows.
"""

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..names import hashes_of

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]
Counts = Mapping[Any, int]
"""Value or bin -> number of rows."""
Categories = dict[str, int] | None
"""Value -> number of rows; None if there are too many values."""
Statistics = Mapping[str, Any]
"""Statistics of one column: a row of the table."""
ByColumn = dict[str, dict[str, Any]]
"""Column -> statistics."""

BINS_PER_DECADE = 8
BOTTOM_K = 256
"""Key hashes in a sketch."""
MAX_CATEGORIES = 1000

STATS_SCHEMA = pa.schema(
    [
        ("column", pa.string()),
        ("type", pa.string()),
        ("n", pa.int64()),
        ("nulls", pa.int64()),
        ("nans", pa.int64()),
        ("zeros", pa.int64()),
        ("min", pa.float64()),
        ("max", pa.float64()),
        ("sum", pa.float64()),
        ("sum_squares", pa.float64()),
        ("histogram", pa.map_(pa.int64(), pa.int64())),
        ("categories", pa.map_(pa.string(), pa.int64())),
        ("categories_complete", pa.bool_()),
        ("bottom_k", pa.list_(pa.int64())),
    ]
)

WHOLE = "whole"
WHOLE_SCHEMA = STATS_SCHEMA.append(pa.field(WHOLE, pa.bool_()))
"""Schema for an annotation: a `whole` row covers all cells of its column."""


LOCATION = frozenset(("part", "row"))
"""Columns with a row's location, which need no statistics."""


def column_stats(table: pa.Table, skip: frozenset[str] = LOCATION) -> pa.Table:
    """Return one row per column of `table` except `skip`."""
    sketch: list[int] = []
    if "key" in table.column_names:
        keys = table["key"]
        hashes = hashes_of(keys)
        sketch = smallest(hashes)

    names = [name for name in table.column_names if name not in skip]
    columns = table.select(names)

    stats = RunStats(sketch)
    stats.add(columns)
    return stats.table()


class RunStats:
    """Statistics of a run, from tables with the same columns. bottom_k: number of smallest key hashes to keep."""

    def __init__(self, bottom_k: list[int]) -> None:
        self._bottom_k = bottom_k
        self._columns: dict[str, _ColumnStats] = {}

    def add(self, table: pa.Table) -> None:
        for name in table.column_names:
            values = table[name]
            column = self._columns.get(name)
            if column is None:
                kind = str(values.type)
                column = _ColumnStats(kind)
                self._columns[name] = column
            column.add(name, values)

    def table(self) -> pa.Table:
        rows = []
        for name, column in self._columns.items():
            row = {
                "column": name,
                **column.row(),
            }
            if name == "key":
                row["bottom_k"] = self._bottom_k
            rows.append(row)
        return pa.Table.from_pylist(rows, schema=STATS_SCHEMA)


@dataclass(slots=True)
class _ColumnStats:
    """A column's statistics so far."""

    type: str
    n: int = 0
    nulls: int = 0
    numbers: list[Float64s] | None = None
    """Numbers of each table; None for a column of another type."""
    categorical: bool = False
    """True for texts and booleans, except keys."""
    counts: Categories = None
    """Value -> count of a categorical column; None if it has too many values."""

    def add(self, name: str, values: pa.ChunkedArray) -> None:
        kind = values.type
        is_number = pa.types.is_floating(kind) or pa.types.is_integer(kind)
        is_categorical = pa.types.is_string(kind) or pa.types.is_boolean(kind)
        is_first = self.n == 0
        # All tables of a run have the same types, so the first one decides. Keys are all different: they have a sketch
        # in place of counts.
        if is_first and is_categorical and name != "key":
            self.categorical = True
            self.counts = {}
        self.n += len(values)
        self.nulls += values.null_count

        if is_number:
            if self.numbers is None:
                self.numbers = []
            numbers = values.drop_null().to_numpy()
            as_floats = numbers.astype(np.float64)
            self.numbers.append(as_floats)
        elif self.counts is not None:
            self.counts = _counts(values, self.counts)

    def row(self) -> dict[str, Any]:
        row: dict[str, Any] = {
            "type": self.type,
            "n": self.n,
            "nulls": self.nulls,
        }
        if self.numbers is not None:
            numbers = np.concatenate(self.numbers)
            row |= _numeric(numbers)
        elif self.categorical:
            counts = self.counts or {}
            ascending = sorted(counts.items())
            row["categories"] = ascending
            row["categories_complete"] = self.counts is not None
        return row


def _counts(values: pa.ChunkedArray, earlier: dict[str, int]) -> Categories:
    """Return value -> count, with earlier counts added; None if there are more than `MAX_CATEGORIES` values."""
    counts = dict(earlier)
    present = values.drop_null()
    value_counts = pc.value_counts(present)
    # One more than accepted shows that they are too many: the others of a million need no Python objects.
    first_counts = value_counts[: MAX_CATEGORIES + 1]
    for item in first_counts.to_pylist():
        value = str(item["values"])
        earlier_count = counts.get(value, 0)
        counts[value] = earlier_count + item["counts"]
    if len(counts) > MAX_CATEGORIES:
        return None
    return counts


def _numeric(numbers: Float64s) -> dict[str, Any]:
    """Return the statistics of numbers: counts of NaN and 0, and the others over all finite numbers."""
    # NaN and infinity would make every later sum, mean and histogram useless.
    is_finite = np.isfinite(numbers)
    finite = numbers[is_finite]
    n_nans = np.isnan(numbers).sum()
    n_zeros = (numbers == 0).sum()

    number_bins = log_bins(finite)
    bins, counts = np.unique(number_bins, return_counts=True)
    histogram = zip(bins.tolist(), counts.tolist(), strict=True)

    # A column of NaN has neither a least nor a greatest number.
    least = None
    greatest = None
    if len(finite):
        least = float(finite.min())
        greatest = float(finite.max())

    # Sums are stored: numpy adds pairwise, and another order of adding would give other last digits.
    with np.errstate(over="ignore", invalid="ignore"):  # beyond a float64, a sum is infinite or NaN
        total = finite.sum()
        sum_squares = np.square(finite).sum()
    return {
        "nans": int(n_nans),
        "zeros": int(n_zeros),
        "min": least,
        "max": greatest,
        "sum": float(total),
        "sum_squares": float(sum_squares),
        "histogram": list(histogram),
    }


def log_bins(values: Float64s) -> Int64s:
    """Return each finite value's bin: 0 for 0, else sign * (1000 + floor(8 * log10|x|)), clipped to +-1..4000.

    Logarithmic bins need no agreed range, so histograms of different runs add up.
    """
    is_nonzero = values != 0
    size = values[is_nonzero]
    size = np.abs(size)
    exponent = np.log10(size) * BINS_PER_DECADE
    bins = np.floor(exponent) + 1000
    # At least 1, so that no number falls into the bin of 0.
    bins = np.clip(bins, 1, 4000)

    magnitude = np.zeros(len(values), np.int64)  # a 0 has no logarithm, and bin 0
    magnitude[is_nonzero] = bins.astype(np.int64)
    sign = np.sign(values).astype(np.int64)
    signed_bins: Int64s = magnitude * sign
    return signed_bins


def bottom_k(keys: list[str], k: int = BOTTOM_K) -> list[int]:
    """Return the k smallest 63-bit key hashes: a uniform sample whose unions estimate overlap."""
    hashes = hashes_of(keys)
    return smallest(hashes, k)


def smallest(hashes: Int64s, k: int = BOTTOM_K) -> list[int]:
    """Return the k smallest distinct hashes, ascending."""
    ascending = np.sort(hashes)
    step = np.diff(ascending, prepend=-1)  # hashes are 0 or more, so that the first is always new
    is_new = step != 0
    different = ascending[is_new]
    least = different[:k]
    sketch: list[int] = least.tolist()
    return sketch


def merge(rows: Iterable[Statistics]) -> ByColumn:
    """Return column -> statistics of all runs, as plain Python, with `mean` if there is a sum.

    Categories that overflowed in any run are None. rows: in manifest order; a whole column's row replaces earlier ones.
    """
    merged: ByColumn = {}  # of the runs so far
    for row in rows:
        name = row["column"]
        statistics = _plain_row(row)
        is_whole = row.get(WHOLE)  # tables of earlier releases have no such column
        earlier = merged.get(name)
        if earlier is not None and not is_whole:
            statistics = _merge_two(earlier, statistics)
        merged[name] = statistics
    for statistics in merged.values():
        statistics["mean"] = _mean(statistics)
    return merged


def _mean(statistics: Statistics) -> float | None:
    total: float | None = statistics["sum"]
    n_finite = finite_count(statistics)
    if total is None or not n_finite:
        return None
    mean: float = total / n_finite
    return mean


def finite_count(statistics: Statistics) -> int:
    """Return how many numbers the sums of a merged column cover: nulls, NaN and infinities are left out."""
    # No count of infinities is stored, but the histogram of every release has a bin for each finite number.
    histogram: Counts = statistics["histogram"]
    return sum(histogram.values())


def merge_to_rows(rows: Iterable[Statistics]) -> list[dict[str, Any]]:
    """Return the result of `merge` as rows of a stored table."""
    out = []
    for column in merge(rows).values():
        row = {}
        for name in STATS_SCHEMA.names:
            row[name] = column[name]
        row["histogram"] = _pairs(column["histogram"])
        row["categories"] = _pairs(column["categories"])
        out.append(row)
    return out


def _pairs(counts: Counts | None) -> list[tuple[Any, int]] | None:
    """Return counts as Arrow's maps have them; None if there are none."""
    if not counts:
        return None
    return list(counts.items())


def _plain_row(row: Statistics) -> dict[str, Any]:
    """Return a stored row with mappings in place of Arrow's lists of pairs."""
    out = dict(row)
    out.pop(WHOLE, None)
    histogram = row["histogram"] or ()
    out["histogram"] = dict(histogram)
    out["categories"] = None
    # Categories that overflowed are stored as an empty map, which would pass for a column without values.
    if row["categories_complete"]:
        categories = row["categories"] or ()
        out["categories"] = dict(categories)
    return out


def _merge_two(a: Statistics, b: Statistics) -> dict[str, Any]:
    """Return the statistics of one column in two runs together. a: of the earlier run."""
    out = dict(a)
    if a["type"] == "null":  # a run without a value does not decide the type
        out["type"] = b["type"]
    out["categories"] = _merge_categories(a, b)
    for name, combine in _COMBINE.items():
        out[name] = _combine(combine, a[name], b[name])
    return out


def _merge_categories(a: Statistics, b: Statistics) -> Categories:
    counts_a: Categories = a["categories"]
    counts_b: Categories = b["categories"]
    # A run in which every value is null has no categories, and adds none.
    if a["type"] == "null":
        return counts_b
    if b["type"] == "null":
        return counts_a
    if counts_a is None or counts_b is None:
        return None
    return _add_counts(counts_a, counts_b)


def _combine(
    combine: Callable[[Any, Any], Any],
    a: Any,
    b: Any,
) -> Any:
    # None: the run has no such statistic, as texts have no sum.
    if a is None:
        return b
    if b is None:
        return a
    return combine(a, b)


def _add_counts(a: Counts, b: Counts) -> dict[Any, int]:
    counts = Counter(a)
    counts.update(b)  # adds, where a dict would replace
    # Ascending: merged statistics are stored, and the same counts give the same bytes.
    ascending = sorted(counts.items())
    return dict(ascending)


def _union(a: list[int], b: list[int]) -> list[int] | None:
    # The smallest hashes of a union are among the smallest of its parts.
    hashes = set(a)
    hashes.update(b)
    ascending = sorted(hashes)
    return ascending[:BOTTOM_K] or None


_COMBINE: Mapping[str, Callable[[Any, Any], Any]] = {
    "n": operator.add,
    "nulls": operator.add,
    "nans": operator.add,
    "zeros": operator.add,
    "sum": operator.add,
    "sum_squares": operator.add,
    "min": min,
    "max": max,
    "categories_complete": operator.and_,
    "histogram": _add_counts,
    "bottom_k": _union,
}
"""Statistic -> function of its values in two runs."""
