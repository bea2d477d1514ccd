"""Exact sums and quantiles of floats: the same for every grouping and order of values, bit for bit.

A float is a whole mantissa times a power of two. Mantissas are summed per exponent, as whole numbers in float64 (below
2^53), and then as Python's integers in units of 2^-1074. For quantiles, values are counted in bins by the leading 20
bits of float32. A quantile is the middle of the bin with its exact rank, within a relative error of 2^-12.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import isqrt, nextafter, prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
UNIT = 1074
"""A sum counts units of 2^-1074, the least float64; a sum of squares units of 2^-2148."""
WEIGHT_MAX = 2**15
"""Most weighted values whose float64 mantissas are added at once, and most rows."""
_CHUNKS_MAX = 2**9
"""Most chunks, each below 2^53, whose whole numbers are added in int64."""


@dataclass(slots=True, eq=True)
class ExactSums:
    """Sums of one dimension."""

    n: int = 0
    """Number of values."""
    total: int = 0
    """Sum, in units of 2^-1074."""
    squares: int = 0
    """Sum of squares, in units of 2^-2148."""
    low: float = field(default=float("inf"))
    """Least value."""
    high: float = field(default=float("-inf"))
    """Greatest value."""

    def __add__(self, other: "ExactSums") -> "ExactSums":
        return ExactSums(
            self.n + other.n,
            self.total + other.total,
            self.squares + other.squares,
            min(self.low, other.low) + 0.0,  # -0.0 equals 0.0, so either would stay by the order of values
            max(self.high, other.high) + 0.0,
        )

    @property
    def mean(self) -> float:
        """The float64 nearest to the mean; NaN without values."""
        return self.total / (self.n << UNIT) if self.n else float("nan")

    @property
    def std(self) -> float:
        """The float64 nearest to the deviation of the population; NaN without values."""
        if not self.n:
            return float("nan")
        return nearest_root(
            Fraction(self.n * self.squares - self.total * self.total, self.n * self.n << 2 * UNIT)
        )


def nearest_root(value: Fraction) -> float:
    """Return the float64 nearest to the square root of a fraction >= 0."""
    if value <= 0:
        return 0.0
    shift = max(0, 140 + value.denominator.bit_length() - value.numerator.bit_length()) // 2 + 1
    root = isqrt((value.numerator << 2 * shift) // value.denominator) / (1 << shift)
    above = nextafter(root, float("inf"))
    while value > ((Fraction(root) + Fraction(above)) / 2) ** 2:
        root, above = above, nextafter(above, float("inf"))
    below = nextafter(root, 0.0)
    while root and value < ((Fraction(root) + Fraction(below)) / 2) ** 2:
        root, below = below, nextafter(below, 0.0)
    return root


def exact_sums(values: NDArray[np.floating], weights: I64 | None = None) -> list[ExactSums]:
    """Return the sums of each column.

    values: float32 or float64 [n, dims], finite. weights: int64 [n], how often each row counts, up to 32,768; None:
    once.
    """
    n_rows, dims = values.shape
    weight_max = WEIGHT_MAX if values.dtype == np.float64 else 2**28  # 25 bits of a product and 28 are 53
    sums = [ExactSums() for _ in range(dims)]
    ends = np.arange(1, n_rows + 1) if weights is None else np.cumsum(weights)
    start, chunks = 0, list[_Chunk]()
    while start < n_rows:
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + weight_max, side="right")))
        stop = min(stop, start + WEIGHT_MAX)
        chunks.append(_chunk(values[start:stop], None if weights is None else weights[start:stop]))
        start = stop
        if start == n_rows or len(chunks) == _CHUNKS_MAX:
            sums = [one + other for one, other in zip(sums, _sums_of(chunks, values.dtype), strict=True)]
            chunks = []
    return sums


class _Chunk(NamedTuple):
    """Sums of some rows, as whole numbers per exponent."""

    n: int
    totals: list[tuple[I64, int]]
    squares: list[tuple[I64, int]]
    low: F64
    high: F64


def _bias(dtype: np.dtype[Any]) -> int:
    return 150 if dtype == np.float32 else 1075


def _chunk(values: NDArray[np.floating], weights: I64 | None) -> _Chunk:
    n_rows, dims = values.shape
    bits, n_exponents = (23, 256) if values.dtype == np.float32 else (52, 2048)
    raw = np.ascontiguousarray(values).view(np.uint32 if bits == 23 else np.uint64).astype(np.int64)
    exponent = (raw >> bits) & (n_exponents - 1)
    mantissa = (raw & ((1 << bits) - 1)) | ((exponent > 0).astype(np.int64) << bits)
    place = (np.maximum(exponent, 1) + n_exponents * np.arange(dims)).ravel()
    sign = np.where(raw < 0 if bits == 52 else raw >> 31 & 1, -1, 1)
    base = 18 if bits == 52 else 12
    limbs = _limbs(mantissa, base)

    def binned(numbers: I64) -> I64:
        weighed = numbers if weights is None else numbers * weights[:, None]
        sums = np.bincount(place, weighed.ravel(), minlength=dims * n_exponents)
        return sums.astype(np.int64).reshape(dims, n_exponents)

    totals = [(binned(sign * limb), base * i) for i, limb in enumerate(limbs)]
    squares = [
        (binned(a * b * (1 if i == j else 2)), base * (i + j))
        for i, a in enumerate(limbs)
        for j, b in enumerate(limbs)
        if i <= j
    ]
    n = n_rows if weights is None else int(weights.sum())
    return _Chunk(n, totals, squares, values.min(axis=0), values.max(axis=0))


def _sums_of(chunks: Sequence[_Chunk], dtype: np.dtype[Any]) -> list[ExactSums]:
    unit = UNIT - _bias(dtype)
    totals, squares = (
        _together(parts) for parts in zip(*((one.totals, one.squares) for one in chunks), strict=True)
    )
    low, high = np.min([one.low for one in chunks], axis=0), np.max([one.high for one in chunks], axis=0)
    n = sum(one.n for one in chunks)
    return [
        ExactSums(
            n,
            _shifted(totals, dim, unit, 1),
            _shifted(squares, dim, 2 * unit, 2),
            float(low[dim]),
            float(high[dim]),
        )
        for dim in range(len(low))
    ]


def _together(chunks: Sequence[list[tuple[I64, int]]]) -> list[tuple[I64, int]]:
    return [
        (np.sum([binned for binned, _ in part], axis=0), part[0][1]) for part in zip(*chunks, strict=True)
    ]


def _limbs(mantissa: I64, base: int) -> list[I64]:
    """Return the mantissa's parts of `base` bits, the lowest first."""
    n = 3 if base == 18 else 2
    return [mantissa >> (base * i) & ((1 << base) - 1) for i in range(n)]


def _shifted(parts: Sequence[tuple[I64, int]], dim: int, unit: int, times: int) -> int:
    out = 0
    for binned, shift in parts:
        for exponent in np.flatnonzero(binned[dim]).tolist():
            out += int(binned[dim, exponent]) << (times * exponent + shift + unit)
    return out


DIMS_MAX = 2**12
"""Most dimensions of a field."""


def as_floats(values: NDArray[Any]) -> NDArray[np.floating]:
    """Return numbers [n, ...] as [n, dims]: float32 if it holds their dtype's values, else float64."""
    is_small = values.dtype.itemsize <= 2 or values.dtype == np.float32
    dtype = np.float32 if is_small else np.float64
    flat: NDArray[np.floating] = values.reshape(len(values), prod(values.shape[1:])).astype(dtype, copy=False)
    return flat


_BITS, _LOW = 20, 12


@dataclass(frozen=True, slots=True, eq=False)
class ValueCounts:
    """Counts of a field's values, for all dimensions."""

    bins: NDArray[np.uint32]
    """uint32, ascending: dimension, then the leading 20 bits of the value, in the order of values."""
    counts: I64
    """int64: values in each bin."""

    @staticmethod
    def of(values: NDArray[np.floating], weights: I64 | None = None) -> "ValueCounts":
        """Return the counts of float values [n, dims].

        weights: int64 [n], up to 32,768, how often each row counts; None: once.
        """
        dims = np.arange(values.shape[1], dtype=np.uint32) << np.uint32(_BITS)
        if weights is None:
            bins = (_ordered(values) >> np.uint32(_LOW)) | dims
            flat = np.sort(bins.ravel())
            starts = _starts(flat)
            return ValueCounts(flat[starts], np.diff(starts, append=len(flat)))
        common = int(np.bincount(weights).argmax()) if len(weights) else 0
        if (alike := weights == common).sum() > len(weights) // 2 and not alike.all():
            return ValueCounts.of(values[alike], weights[alike]) + ValueCounts.of(
                values[~alike], weights[~alike]
            )
        if alike.all():
            once = ValueCounts.of(values)
            return ValueCounts(once.bins, once.counts * common)
        bins = (_ordered(values) >> np.uint32(_LOW)) | dims
        weighed = (bins.astype(np.uint64) << np.uint64(32)) | weights.astype(np.uint64)[:, None]
        flat = np.sort(
            weighed.ravel()
        )  # a bin with its weight in one number: five times as fast as np.unique
        return _joined(
            (flat >> np.uint64(32)).astype(np.uint32), (flat & np.uint64(2**32 - 1)).astype(np.int64)
        )

    def __add__(self, other: "ValueCounts") -> "ValueCounts":
        return added([self, other])

    def quantile(self, dim: int, q: float) -> float:
        """Return the value of rank floor(q * (n - 1)) of a dimension; NaN without values."""
        return self.neighbours(dim, q)[0]

    def neighbours(self, dim: int, q: float) -> tuple[float, float, float]:
        """Return the values of the ranks around q * (n - 1) of a dimension, and the share of the second."""
        first, stop = np.searchsorted(self.bins, [dim << _BITS, (dim + 1) << _BITS])
        if first == stop:
            return float("nan"), float("nan"), 0.0
        ends = np.cumsum(self.counts[first:stop])
        n = int(ends[-1])
        position = q * (n - 1)
        rank = int(position)
        places = np.searchsorted(ends, [rank, min(rank + 1, n - 1)], side="right")
        below, above = (_middle(int(self.bins[first + place]) & (2**_BITS - 1)) for place in places.tolist())
        return below, above, position - rank


def added(counts: Iterable[ValueCounts]) -> ValueCounts:
    """Return the sum of counts. Costs one sort."""
    parts = list(counts)
    bins = np.concatenate([np.zeros(0, np.uint32), *(part.bins for part in parts)])
    order = np.argsort(bins, kind="stable")
    return _joined(
        bins[order], np.concatenate([np.zeros(0, np.int64), *(part.counts for part in parts)])[order]
    )


def _joined(bins: NDArray[np.uint32], counts: I64) -> ValueCounts:
    starts = _starts(bins)
    return ValueCounts(bins[starts], np.add.reduceat(counts, starts) if len(starts) else counts)


def _ordered(values: NDArray[np.floating]) -> NDArray[np.uint32]:
    bits = (np.ascontiguousarray(values, np.float32) + np.float32(0)).view(np.uint32)  # -0.0 is 0.0
    return np.where(bits >> np.uint32(31), ~bits, bits | np.uint32(1 << 31))


def _middle(bin_number: int) -> float:
    ordered = np.uint32(bin_number << _LOW | 1 << (_LOW - 1))
    bits = ordered ^ np.uint32(1 << 31) if ordered >> np.uint32(31) else ~ordered
    return float(np.array([bits], np.uint32).view(np.float32)[0])


def _starts(values: NDArray[np.uint32]) -> I64:
    if not len(values):
        return np.zeros(0, np.int64)
    return np.concatenate([[0], np.flatnonzero(values[1:] != values[:-1]) + 1]).astype(np.int64)
