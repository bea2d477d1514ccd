"""A norm: statistics of fields per dimension, and how they are stored.

    norms/<hash>.parquet        field, dim, n, total, squares, low, high, bins, counts; a row per dimension

`total` and `squares` are whole numbers in hexadecimal, in units of 2^-1074 and 2^-2148. `bins` (uint32) and `counts`
(int64) are little-endian. A norm by a column has one more column first, `value`, as text; the metadata names the
column, and has shapes for each value.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...errors import Corrupt, FieldMismatch
from ...json_text import DamagedJson, parse_json
from ..tables.parquet import parse_stored, table_bytes, table_facts
from .exact_statistics import ExactSums, ValueCounts, add_counts, exact_sums

F64 = NDArray[np.float64]
_BITS = 20
MODES = ("std", "minmax", "quantile")
"""(x - mean) / std; from the least to the greatest value, or from q01 to q99, as -1 to 1."""
LOW_Q = 0.01
"""Quantile that the mode "quantile" maps to -1."""
HIGH_Q = 0.99
"""Quantile that the mode "quantile" maps to 1."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FieldNorm:
    """Statistics of one field, per dimension."""

    shape: tuple[int, ...]
    """Shape of one value of the field."""
    sums: tuple[ExactSums, ...]
    """Exact sums of each dimension, in C order."""
    counts: ValueCounts
    """Counts of the values of all dimensions."""

    def __add__(self, other: "FieldNorm") -> "FieldNorm":
        """Return the statistics of the values of both. Raises: FieldMismatch for another shape."""
        if self.shape != other.shape:
            raise FieldMismatch(
                f"values of the shapes {list(self.shape)} and {list(other.shape)} have no common norm"
            )
        sums = tuple(a + b for a, b in zip(self.sums, other.sums, strict=True))
        return FieldNorm(shape=self.shape, sums=sums, counts=self.counts + other.counts)

    @property
    def n(self) -> int:
        return self.sums[0].n if self.sums else 0

    @property
    def mean(self) -> F64:
        """float64, shaped as a value: the nearest to the true mean."""
        return self._shape_values([one.mean for one in self.sums])

    @property
    def std(self) -> F64:
        """float64, shaped as a value: the nearest to the true deviation of all values."""
        return self._shape_values([one.std for one in self.sums])

    @property
    def min(self) -> F64:
        """float64, shaped as a value."""
        return self._shape_values([one.low for one in self.sums])

    @property
    def max(self) -> F64:
        """float64, shaped as a value."""
        return self._shape_values([one.high for one in self.sums])

    def quantile(self, q: float) -> F64:
        """Return float64, shaped as a value: of rank floor(q * (n - 1)), within 2^-11 of its magnitude."""
        values = [self.counts.quantile(dim, q) for dim in range(len(self.sums))]
        # The middle of the first or last bin may lie beyond all values.
        return np.clip(self._shape_values(values), self.min, self.max)

    def interpolated_quantile(self, q: float) -> F64:
        """Return float64, shaped as a value: between the ranks around q * (n - 1), as numpy's default does.

        Each of both values is within 2^-12 of its magnitude.
        """
        values = []
        for dim, sums in enumerate(self.sums):
            below, above, share = self.counts.neighbours(dim, q)
            # Clip before interpolating: the middle of an outer bin may lie beyond all values.
            below = min(max(below, sums.low), sums.high)
            above = min(max(above, sums.low), sums.high)
            values.append(below + (above - below) * share)
        return self._shape_values(values)

    @property
    def narrow_dims(self) -> list[int]:
        """Dimensions, in C order, of several values whose q01 and q99 are one value within their resolution."""
        has_one_quantile = self.quantile(LOW_Q) == self.quantile(HIGH_Q)
        has_several_values = self.min < self.max
        dims: list[int] = np.flatnonzero(has_one_quantile & has_several_values).tolist()
        return dims

    def scale(self, mode: str) -> tuple[F64, F64]:
        """Return (offset, factor) of a mode: (x - offset) * factor is the normalised value; 0 where all are equal.

        "quantile" scales `narrow_dims` from the least to the greatest value: q01 to q99 has no width there.
        """
        if mode not in MODES:
            accepted = ", ".join(map(repr, MODES))
            raise ValueError(f"mode = {mode!r}; accepted: {accepted}")
        if mode == "std":
            offset = self.mean
            width = self.std
        else:
            low, high = self._range(mode)
            offset = (low + high) / 2
            width = (high - low) / 2
        factor = np.zeros_like(width)
        np.divide(1.0, width, out=factor, where=width > 0)
        return offset, factor

    def _range(self, mode: str) -> tuple[F64, F64]:
        """Return (low, high): the values that the mode maps to -1 and 1."""
        low = self.min
        high = self.max
        if mode == "quantile":
            low_quantile = self.quantile(LOW_Q)
            high_quantile = self.quantile(HIGH_Q)
            has_width = low_quantile < high_quantile
            low = np.where(has_width, low_quantile, low)
            high = np.where(has_width, high_quantile, high)
        return low, high

    def _shape_values(self, values: list[float]) -> F64:
        return np.array(values, np.float64).reshape(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Norm:
    """Statistics of what windows deliver, in the space of their transform."""

    fields: Mapping[str, FieldNorm]
    """Field -> its statistics."""
    transform: str
    """Name and version of the transform applied first, or ""."""
    version: str
    """Id of the version whose windows it is of."""
    path: str
    """Place in the root."""
    function: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None
    """The transform; None for none."""

    def __getitem__(self, field: str) -> FieldNorm:
        """Return a field's statistics. Raises: FieldMismatch for a field that the norm lacks."""
        if field not in self.fields:
            names = ", ".join(self.fields)
            message = f"the norm {self.path} has {names}, not {field!r}"
            raise FieldMismatch(message, what=field, where=self.path, accepted=list(self.fields))
        return self.fields[field]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupedNorm:
    """A norm for each value of a column, such as each robot."""

    by: str
    """The column."""
    norms: Mapping[str, Norm]
    """Value of the column, as text -> its norm."""

    def __getitem__(self, value: object) -> Norm:
        """Return the norm of a value. Raises: FieldMismatch for a value that no episode had."""
        text = str(value)
        if text not in self.norms:
            values = ", ".join(map(repr, self.norms))
            message = f"the norm {self.path} has no {self.by} {text!r}; it has {values}"
            raise FieldMismatch(message, what=self.by, where=self.path, given=text, accepted=list(self.norms))
        return self.norms[text]

    @property
    def path(self) -> str:
        return next(iter(self.norms.values())).path


def norm_bytes(norm: Norm | GroupedNorm) -> bytes:
    """Return a norm as it is stored."""
    # Without groups, the norm stands under the value "", which is not stored.
    norms: Mapping[str, Norm]
    if isinstance(norm, GroupedNorm):
        norms = norm.norms
        schema = _BY_VALUE
    else:
        norms = {"": norm}
        schema = _COLUMNS

    columns: dict[str, list[object]] = {name: [] for name in schema.names}
    shapes: dict[str, dict[str, list[int]]] = {}
    for value, value_norm in norms.items():
        shapes[value] = {}
        for name, field_norm in value_norm.fields.items():
            shapes[value][name] = list(field_norm.shape)
            for row in _rows(name, field_norm):
                for column, statistic in row.items():
                    columns[column].append(statistic)
                if isinstance(norm, GroupedNorm):
                    columns["value"].append(value)
    table = pa.table(columns, schema=schema)

    first = next(iter(norms.values()))
    stored_shapes: Mapping[str, object] = shapes
    if isinstance(norm, Norm):
        stored_shapes = shapes[""]
    facts = {
        "path": norm.path,
        "shapes": json.dumps(stored_shapes),
        "transform": first.transform,
        "version": first.version,
        "content_sha256": _sha256(table),
    }
    if isinstance(norm, GroupedNorm):
        facts["by"] = norm.by
    return table_bytes(table, "norm", facts=facts)


def _rows(name: str, norm: FieldNorm) -> Iterator[dict[str, object]]:
    """Yield the row of each dimension: column -> value."""
    for dim, sums in enumerate(norm.sums):
        # A bin's upper bits are its dimension (`ValueCounts.bins`).
        first, stop = np.searchsorted(norm.counts.bins, [dim << _BITS, (dim + 1) << _BITS])
        bins = norm.counts.bins[first:stop].astype("<u4")
        counts = norm.counts.counts[first:stop].astype("<i8")
        yield {
            "field": name,
            "dim": dim,
            "n": sums.n,
            "total": f"{sums.total:x}",
            "squares": f"{sums.squares:x}",
            "low": sums.low,
            "high": sums.high,
            "bins": bins.tobytes(),
            "counts": counts.tobytes(),
        }


def parse_norm(data: bytes, path: str, where: str) -> Norm | GroupedNorm:
    """Return a stored norm. Raises: Corrupt."""
    table = parse_stored(data, path, where)
    facts = table_facts(table)
    try:
        return _parse(table, facts, path)
    except (KeyError, ValueError, TypeError, AttributeError, DamagedJson) as error:
        message = f"{where} is not a norm: {error}; delete it to rebuild it"
        raise Corrupt(message, what="norm", where=where, given=str(error)) from error


def _parse(table: pa.Table, facts: Mapping[str, str], path: str) -> Norm | GroupedNorm:
    """Return the norm in a stored table. Raises: ValueError, KeyError, TypeError, AttributeError for a damaged one."""
    # 1. Check the table's schema and checksum.
    is_grouped = "by" in facts
    schema = _COLUMNS
    if is_grouped:
        schema = _BY_VALUE
    has_schema = table.schema.equals(schema, check_metadata=False)
    if not has_schema or _sha256(table) != facts["content_sha256"]:
        raise ValueError("its content differs from its checksum")

    # 2. Collect the rows of each field; without groups, under the value "".
    shapes = parse_json(facts["shapes"])
    if not is_grouped:
        shapes = {"": shapes}
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in table.to_pylist():
        field_rows = rows.setdefault((row.get("value", ""), row["field"]), [])
        field_rows.append(row)

    # 3. Build the norms by the shapes. Each takes its rows away, so that no row may remain.
    norms: dict[str, Norm] = {}
    for value, field_shapes in shapes.items():
        fields: dict[str, FieldNorm] = {}
        for name, shape in field_shapes.items():
            fields[name] = _field_norm(shape, rows.pop((value, name), []))
        norms[value] = Norm(
            fields=fields,
            transform=facts["transform"],
            version=facts["version"],
            path=path,
        )
    if rows or not norms:
        raise ValueError("it has rows of other fields than its shapes")
    if is_grouped:
        return GroupedNorm(by=facts["by"], norms=norms)
    return norms[""]


def _field_norm(shape: Sequence[int], rows: Sequence[Mapping[str, Any]]) -> FieldNorm:
    """Return a field's statistics from its stored rows, one per dimension. Raises: ValueError."""
    if min(shape, default=1) < 0 or prod(shape) != len(rows):
        raise ValueError(f"it has {len(rows)} dimensions of values {list(shape)}")
    sums: list[ExactSums] = []
    counts: list[ValueCounts] = []
    for dim, row in enumerate(rows):
        row_sums = ExactSums(
            n=row["n"],
            total=int(row["total"], 16),
            squares=int(row["squares"], 16),
            low=row["low"],
            high=row["high"],
        )
        bins = np.frombuffer(row["bins"], "<u4")
        bin_counts = np.frombuffer(row["counts"], "<i8")
        if row["dim"] != dim or len(bins) != len(bin_counts) or not _is_in_order(bins, dim):
            raise ValueError(f"its bins of dimension {dim} are not in order")
        if (bin_counts < 1).any() or bin_counts.sum() != row["n"]:
            raise ValueError(f"its counts of dimension {dim} do not add up to {row['n']} values")
        sums.append(row_sums)
        counts.append(ValueCounts(bins, bin_counts))
    return FieldNorm(
        shape=tuple(shape),
        sums=tuple(sums),
        counts=add_counts(counts),
    )


def _is_in_order(bins: NDArray[np.uint32], dim: int) -> bool:
    """Return whether the bins are all of this dimension, and ascending."""
    is_of_dim = bins >> _BITS == dim
    is_ascending = bins[1:] > bins[:-1]
    return bool(is_of_dim.all() and is_ascending.all())


_COLUMNS = pa.schema(
    [
        pa.field("field", pa.string(), nullable=False),
        pa.field("dim", pa.int32(), nullable=False),
        pa.field("n", pa.int64(), nullable=False),
        pa.field("total", pa.string(), nullable=False),
        pa.field("squares", pa.string(), nullable=False),
        pa.field("low", pa.float64(), nullable=False),
        pa.field("high", pa.float64(), nullable=False),
        pa.field("bins", pa.binary(), nullable=False),
        pa.field("counts", pa.binary(), nullable=False),
    ]
)


_BY_VALUE = pa.schema([pa.field("value", pa.string(), nullable=False), *_COLUMNS])


def _sha256(table: pa.Table) -> str:
    # Of the values, not of the file's bytes: those change with the version of Arrow that writes it.
    digest = hashlib.sha256()
    for row in table.to_pylist():
        values = tuple(row.values())
        digest.update(repr(values).encode())
    return digest.hexdigest()


TOGETHER = 2**19
"""Values that are added up at once."""


class FieldTotals:
    """Statistics of one field, while values come."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self._sums = [ExactSums() for _ in range(prod(shape))]
        self._counts: list[ValueCounts] = []
        self._n_bins = 0
        self._values: list[NDArray[np.floating]] = []
        self._weights: list[NDArray[np.int64] | None] = []
        self._n_values = 0

    def add(self, values: NDArray[np.floating], weights: NDArray[np.int64] | None) -> None:
        """Add finite float32 or float64 values [n, dims]. weights: int64 [n], up to 32,768; None: once each."""
        if self._values and self._values[0].dtype != values.dtype:
            self.flush()  # `concatenate` would copy all as float64, at twice the memory
        self._values.append(values)
        self._weights.append(weights)
        self._n_values += values.size
        if self._n_values >= TOGETHER:
            self.flush()

    def add_norm(self, norm: FieldNorm) -> None:
        """Add the values of another norm."""
        self._add_sums(norm.sums)
        self._count(norm.counts)

    def norm(self) -> FieldNorm:
        """Return the statistics of all values so far."""
        self.flush()
        return FieldNorm(shape=self.shape, sums=tuple(self._sums), counts=add_counts(self._counts))

    def flush(self) -> None:
        """Add the values that came since the last time."""
        if not self._values:
            return
        values = self._values[0]
        if len(self._values) > 1:
            values = np.concatenate(self._values)
        weights = self._join_weights()
        self._values = []
        self._weights = []
        self._n_values = 0

        # In steps of `TOGETHER` values, because `exact_sums` needs several int64 arrays of their size.
        dims = values.shape[1]
        step = max(1, TOGETHER // max(1, dims))
        for start in range(0, len(values), step):
            rows = values[start : start + step]
            row_weights = None
            if weights is not None:
                row_weights = weights[start : start + step]
            self._add_sums(exact_sums(rows, row_weights))
            self._count(ValueCounts.of(rows, row_weights))

    def _join_weights(self) -> NDArray[np.int64] | None:
        """Return int64 [rows of all values]; None if all count once."""
        if all(weights is None for weights in self._weights):
            return None
        parts: list[NDArray[np.int64]] = []
        for values, weights in zip(self._values, self._weights, strict=True):
            if weights is None:
                weights = np.ones(len(values), np.int64)
            parts.append(weights)
        return np.concatenate(parts)

    def _add_sums(self, others: Iterable[ExactSums]) -> None:
        self._sums = [own + other for own, other in zip(self._sums, others, strict=True)]

    def _count(self, counts: ValueCounts) -> None:
        """Add counts; join them when they have twice the bins of the first, so that a bin is joined log n times."""
        self._counts.append(counts)
        self._n_bins += len(counts.bins)
        if self._n_bins > 2 * len(self._counts[0].bins) + 2**20:
            self._counts = [add_counts(self._counts)]
            self._n_bins = len(self._counts[0].bins)
