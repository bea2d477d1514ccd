"""Compute statistics of a run of samples, one row per column, which merge without a rescan.

Counts, sums and histogram bins add up; minima, maxima and bottom-k sketches merge. If an annotation changes an existing
column, its row covers the whole column and replaces earlier rows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..names import hashes_of

Float64s = np.ndarray[Any, np.dtype[np.float64]]

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
    stats = RunStats(smallest(hashes_of(table["key"])) if "key" in table.column_names else [])
    stats.add(table.select([name for name in table.column_names if name not in skip]))
    return stats.table()


class RunStats:
    """Statistics of a run, from tables with the same columns. bottom_k: number of smallest key hashes to keep."""

    def __init__(self, bottom_k: list[int]) -> None:
        self._bottom_k = bottom_k
        self._columns: dict[str, _ColumnStats] = {}

    def add(self, table: pa.Table) -> None:
        for name in table.column_names:
            self._columns.setdefault(name, _ColumnStats(str(table[name].type))).add(name, table[name])

    def table(self) -> pa.Table:
        rows = [
            {"column": name, **one.row(), **({"bottom_k": self._bottom_k} if name == "key" else {})}
            for name, one in self._columns.items()
        ]
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
        if not self.n and (pa.types.is_string(kind) or pa.types.is_boolean(kind)) and name != "key":
            self.categorical, self.counts = True, {}
        self.n += len(values)
        self.nulls += values.null_count
        if pa.types.is_floating(kind) or pa.types.is_integer(kind):
            numbers = values.drop_null().to_numpy().astype(np.float64)
            self.numbers = [*(self.numbers or ()), numbers]
        elif self.counts is not None:
            counted = pc.value_counts(values.drop_null())
            for item in counted[: MAX_CATEGORIES + 1]:
                value = str(item["values"].as_py())
                self.counts[value] = self.counts.get(value, 0) + item["counts"].as_py()
            self.counts = None if len(self.counts) > MAX_CATEGORIES else self.counts

    def row(self) -> dict[str, Any]:
        row: dict[str, Any] = {"type": self.type, "n": self.n, "nulls": self.nulls}
        if self.numbers is not None:
            return row | _numeric(np.concatenate(self.numbers))
        if self.categorical:
            complete = self.counts is not None
            return row | {"categories": sorted((self.counts or {}).items()), "categories_complete": complete}
        return row


def _numeric(numbers: Float64s) -> dict[str, Any]:
    finite = numbers[np.isfinite(numbers)]
    bins, counts = np.unique(log_bins(finite), return_counts=True)
    return {
        "nans": int(np.isnan(numbers).sum()),
        "zeros": int((numbers == 0).sum()),
        "min": float(finite.min()) if len(finite) else None,
        "max": float(finite.max()) if len(finite) else None,
        "sum": float(finite.sum()),
        "sum_squares": float(np.square(finite).sum()),
        "histogram": list(zip(bins.tolist(), counts.tolist(), strict=True)),
    }


def log_bins(values: Float64s) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return each finite value's bin: 0 for 0, else sign * (1000 + floor(8 * log10|x|)), clipped to +-1..4000.

    Logarithmic bins need no agreed range, so histograms of different runs add up.
    """
    magnitude = np.zeros(len(values), np.int64)
    nonzero = values != 0
    exponent = np.floor(np.log10(np.abs(values[nonzero])) * BINS_PER_DECADE)
    magnitude[nonzero] = np.clip(exponent + 1000, 1, 4000).astype(np.int64)
    signed: np.ndarray[Any, np.dtype[np.int64]] = magnitude * np.sign(values).astype(np.int64)
    return signed


def bottom_k(keys: list[str], k: int = BOTTOM_K) -> list[int]:
    """Return the k smallest 63-bit key hashes: a uniform sample whose unions estimate overlap."""
    return smallest(hashes_of(keys), k)


def smallest(hashes: np.ndarray[Any, np.dtype[np.int64]], k: int = BOTTOM_K) -> list[int]:
    ascending = np.sort(hashes)
    sketch: list[int] = ascending[np.diff(ascending, prepend=-1) != 0][:k].tolist()
    return sketch


def merge(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return column -> statistics of all runs, as plain Python, with `mean` if there is a sum.

    Categories that overflowed in any run are None. rows: in manifest order; a whole column's row replaces earlier ones.
    """
    merged: dict[str, dict[str, Any]] = {}
    for row in rows:
        name, adds = row["column"], not row.get(WHOLE)
        merged[name] = _merged(merged[name], row) if adds and name in merged else _plain_row(row)
    for row in merged.values():
        numbers = row["n"] - row["nulls"] - (row["nans"] or 0)
        row["mean"] = row["sum"] / numbers if row["sum"] is not None and numbers else None
    return merged


def merge_to_rows(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    out = []
    for row in merge(rows).values():
        pairs = {name: list(row[name].items()) if row[name] else None for name in ("histogram", "categories")}
        out.append({**{name: row[name] for name in STATS_SCHEMA.names}, **pairs})
    return out


def _plain_row(row: Mapping[str, Any]) -> dict[str, Any]:
    out = {name: value for name, value in row.items() if name != WHOLE}
    out["histogram"] = dict(row["histogram"] or ())
    complete = row["categories_complete"]
    out["categories"] = dict(row["categories"] or ()) if complete else None
    return out


def _merged(a: dict[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    b = _plain_row(row)
    out = {**a, "type": b["type"] if a["type"] == "null" else a["type"]}
    for name in ("n", "nulls", "nans", "zeros", "sum", "sum_squares"):
        out[name] = a[name] if b[name] is None else b[name] if a[name] is None else a[name] + b[name]
    for name, better in (("min", min), ("max", max)):
        known = [value for value in (a[name], b[name]) if value is not None]
        out[name] = better(known) if known else None
    complete = [known for known in (a["categories_complete"], b["categories_complete"]) if known is not None]
    out["categories_complete"] = all(complete) if complete else None
    out["histogram"] = _added(a["histogram"], b["histogram"])
    if "null" in (a["type"], row["type"]):
        out["categories"] = b["categories"] if a["type"] == "null" else a["categories"]
    else:
        both = a["categories"] is not None and b["categories"] is not None
        out["categories"] = _added(a["categories"], b["categories"]) if both else None
    out["bottom_k"] = sorted({*(a["bottom_k"] or ()), *(b["bottom_k"] or ())})[:BOTTOM_K] or None
    return out


def _added(a: Mapping[Any, int], b: Mapping[Any, int]) -> dict[Any, int]:
    return {key: a.get(key, 0) + b.get(key, 0) for key in sorted({*a, *b})}
