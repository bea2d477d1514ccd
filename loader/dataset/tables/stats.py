"""Compute statistics of a run of samples, one row per column, which merge without a rescan.

Counts, sums and histogram bins add up; minima, maxima and bottom-k sketches merge. If an annotation changes an existing
column, its row covers the whole column and replaces earlier rows.
"""

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

BINS_PER_DECADE = 8
BOTTOM_K = 256
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


def column_stats(table: pa.Table, skip: frozenset[str] = frozenset({"part", "row"})) -> pa.Table:
    """Return one row per column of `table` except `skip`."""
    sketch: list[int] = []
    if "key" in table.column_names:
        hashes = hashes_of(table["key"])
        sketch = smallest(hashes)
    stats = RunStats(sketch)
    names = [name for name in table.column_names if name not in skip]
    stats.add(table.select(names))
    return stats.table()


class RunStats:
    """Statistics of a run, from tables with the same columns. bottom_k: number of smallest key hashes to keep."""

    def __init__(self, bottom_k: list[int]) -> None:
        self._bottom_k = bottom_k
        self._columns: dict[str, _ColumnStats] = {}

    def add(self, table: pa.Table) -> None:
        for name in table.column_names:
            values = table[name]
            if name not in self._columns:
                self._columns[name] = _ColumnStats(str(values.type))
            self._columns[name].add(name, values)

    def table(self) -> pa.Table:
        rows = []
        for name, column in self._columns.items():
            row = {"column": name, **column.row()}
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
    """Numbers per table, or None."""
    counts: dict[str, int] | None = None
    """Value -> count, for texts or booleans with few distinct values."""
    categorical: bool = False

    def add(self, name: str, values: pa.ChunkedArray) -> None:
        kind = values.type
        # Keys are all different: they have a sketch in place of counts.
        is_categorical = pa.types.is_string(kind) or pa.types.is_boolean(kind)
        if self.n == 0 and is_categorical and name != "key":
            self.categorical = True
            self.counts = {}
        self.n += len(values)
        self.nulls += values.null_count

        if pa.types.is_floating(kind) or pa.types.is_integer(kind):
            if self.numbers is None:
                self.numbers = []
            numbers = values.drop_null().to_numpy()
            self.numbers.append(numbers.astype(np.float64))
        elif self.counts is not None:
            self.counts = _counts(values, self.counts)

    def row(self) -> dict[str, Any]:
        row: dict[str, Any] = {
            "type": self.type,
            "n": self.n,
            "nulls": self.nulls,
        }
        if self.numbers is not None:
            row |= _numeric(np.concatenate(self.numbers))
        elif self.categorical:
            counts = self.counts or {}
            row["categories"] = sorted(counts.items())
            row["categories_complete"] = self.counts is not None
        return row


def _counts(values: pa.ChunkedArray, earlier: dict[str, int]) -> dict[str, int] | None:
    """Return value -> count, with earlier counts added; None if there are more than `MAX_CATEGORIES` values."""
    counts = dict(earlier)
    value_counts = pc.value_counts(values.drop_null())
    for item in value_counts[: MAX_CATEGORIES + 1]:  # one more than accepted shows that they are too many
        value = str(item["values"].as_py())
        n = item["counts"].as_py()
        counts[value] = counts.get(value, 0) + n
    if len(counts) > MAX_CATEGORIES:
        return None
    return counts


def _numeric(numbers: Float64s) -> dict[str, Any]:
    # NaN and infinity would make every later sum, mean and histogram useless.
    finite = numbers[np.isfinite(numbers)]
    bins, counts = np.unique(log_bins(finite), return_counts=True)
    # A column of NaN has neither a least nor a greatest number.
    least = None
    greatest = None
    if len(finite):
        least = float(finite.min())
        greatest = float(finite.max())
    # Sums are stored: numpy adds pairwise, and another order of adding would give other last digits.
    return {
        "nans": int(np.isnan(numbers).sum()),
        "zeros": int((numbers == 0).sum()),
        "min": least,
        "max": greatest,
        "sum": float(finite.sum()),
        "sum_squares": float(np.square(finite).sum()),
        "histogram": list(zip(bins.tolist(), counts.tolist(), strict=True)),
    }


def log_bins(values: Float64s) -> Int64s:
    """Return each finite value's bin: 0 for 0, else sign * (1000 + floor(8 * log10|x|)), clipped to +-1..4000.

    Logarithmic bins need no agreed range, so histograms of different runs add up.
    """
    is_nonzero = values != 0
    size = np.abs(values[is_nonzero])
    exponent = np.log10(size) * BINS_PER_DECADE
    bins = np.floor(exponent) + 1000
    magnitude = np.zeros(len(values), np.int64)  # a 0 has no logarithm, and bin 0
    magnitude[is_nonzero] = np.clip(bins, 1, 4000).astype(np.int64)
    sign = np.sign(values).astype(np.int64)
    signed: Int64s = magnitude * sign
    return signed


def bottom_k(keys: list[str], k: int = BOTTOM_K) -> list[int]:
    """Return the k smallest 63-bit key hashes: a uniform sample whose unions estimate overlap."""
    hashes = hashes_of(keys)
    return smallest(hashes, k)


def smallest(hashes: Int64s, k: int = BOTTOM_K) -> list[int]:
    ascending = np.sort(hashes)
    step = np.diff(ascending, prepend=-1)  # hashes are 0 or more, so that the first is always new
    different = ascending[step != 0]
    sketch: list[int] = different[:k].tolist()
    return sketch


def merge(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return column -> statistics of all runs, as plain Python, with `mean` if there is a sum.

    Categories that overflowed in any run are None. rows: in manifest order; a whole column's row replaces earlier ones.
    """
    merged: dict[str, dict[str, Any]] = {}  # column -> statistics of the runs so far
    for row in rows:
        name = row["column"]
        if name in merged and not row.get(WHOLE):  # tables of earlier releases have no such column
            merged[name] = _merged(merged[name], row)
        else:
            merged[name] = _plain_row(row)
    for column in merged.values():
        nans = column["nans"] or 0
        n_numbers = column["n"] - column["nulls"] - nans
        total = column["sum"]
        column["mean"] = None
        if total is not None and n_numbers:
            column["mean"] = total / n_numbers
    return merged


def merge_to_rows(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    out = []
    for column in merge(rows).values():
        row = {name: column[name] for name in STATS_SCHEMA.names}
        for name in ("histogram", "categories"):
            # Arrow's maps are lists of pairs.
            row[name] = None
            if column[name]:
                row[name] = list(column[name].items())
        out.append(row)
    return out


def _plain_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored row with mappings in place of Arrow's lists of pairs."""
    out = dict(row)
    out.pop(WHOLE, None)
    out["histogram"] = dict(row["histogram"] or ())
    out["categories"] = None
    if row["categories_complete"]:
        out["categories"] = dict(row["categories"] or ())
    return out


def _merged(a: dict[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    b = _plain_row(row)
    out = dict(a)
    if a["type"] == "null":  # a run without a value does not decide the type
        out["type"] = b["type"]
    for name in ("n", "nulls", "nans", "zeros", "sum", "sum_squares"):
        out[name] = _sum(a[name], b[name])
    out["min"] = _best(min, a["min"], b["min"])
    out["max"] = _best(max, a["max"], b["max"])
    out["categories_complete"] = _both(a["categories_complete"], b["categories_complete"])
    out["histogram"] = _added(a["histogram"], b["histogram"])
    out["categories"] = _merged_categories(a, b)
    # The smallest hashes of a union are among the smallest of its parts.
    sketch = set(a["bottom_k"] or ())
    sketch.update(b["bottom_k"] or ())
    out["bottom_k"] = sorted(sketch)[:BOTTOM_K] or None
    return out


def _merged_categories(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, int] | None:
    counts_a: dict[str, int] | None = a["categories"]
    counts_b: dict[str, int] | None = b["categories"]
    # A run in which every value is null has no categories, and adds none.
    if a["type"] == "null":
        return counts_b
    if b["type"] == "null":
        return counts_a
    if counts_a is None or counts_b is None:
        return None
    return _added(counts_a, counts_b)


def _sum(a: Any, b: Any) -> Any:
    if a is None:
        return b
    if b is None:
        return a
    return a + b


def _best(
    choose: Callable[[Any, Any], Any],
    a: Any,
    b: Any,
) -> Any:
    if a is None:
        return b
    if b is None:
        return a
    return choose(a, b)


def _both(a: bool | None, b: bool | None) -> bool | None:
    if a is None:
        return b
    if b is None:
        return a
    return a and b


def _added(a: Mapping[Any, int], b: Mapping[Any, int]) -> dict[Any, int]:
    out = {}
    for key in sorted({*a, *b}):
        n_a = a.get(key, 0)
        n_b = b.get(key, 0)
        out[key] = n_a + n_b
    return out
