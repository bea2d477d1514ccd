"""Exact sums of floats: every grouping and order of values gives the same mean and deviation, bit for bit.

A float is a whole mantissa times a power of two. Mantissas are summed per exponent, as whole numbers in float64 (below
2^53), and then as Python's integers in units of 2^-1074. The results are the float64 nearest to the true values.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import isqrt, nextafter
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
        """Return the sums of the values of both."""
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
    """Return the sums of all chunks, part by part."""
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
