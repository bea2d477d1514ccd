"""Exact sums of floats: every grouping and order of values gives the same mean and deviation, bit for bit.

A float is a whole mantissa times a power of two. Mantissas are summed per exponent, as whole numbers in float64 (below
2^53), and then as Python's integers in units of 2^-1074. The results are the float64 nearest to the true values.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import isqrt, nextafter

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
UNIT = 1074
"""A sum counts units of 2^-1074, the least float64; a sum of squares units of 2^-2148."""
WEIGHT_MAX = 2**15
"""Most weighted values whose mantissas are added at once."""


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
            min(self.low, other.low),
            max(self.high, other.high),
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
    sums = [ExactSums() for _ in range(dims)]
    ones = np.ones(n_rows, np.int64) if weights is None else weights
    start = 0
    ends = np.cumsum(ones)
    while start < n_rows:
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + WEIGHT_MAX, side="right")))
        rows = slice(start, stop)
        sums = [a + b for a, b in zip(sums, _chunk(values[rows], ones[rows]), strict=True)]
        start = stop
    return sums


def _chunk(values: NDArray[np.floating], weights: I64) -> list[ExactSums]:
    dims = values.shape[1]
    bits, bias, n_exponents = (23, 150, 256) if values.dtype == np.float32 else (52, 1075, 2048)
    raw = np.ascontiguousarray(values).view(np.uint32 if bits == 23 else np.uint64).astype(np.int64)
    exponent = (raw >> bits) & (n_exponents - 1)
    mantissa = (raw & ((1 << bits) - 1)) | ((exponent > 0).astype(np.int64) << bits)
    place = np.maximum(exponent, 1) + n_exponents * np.arange(dims)
    sign = np.where(raw < 0 if bits == 52 else raw >> 31 & 1, -1, 1)
    limbs = _limbs(mantissa, 18 if bits == 52 else 12)
    base = 18 if bits == 52 else 12

    def binned(numbers: I64) -> I64:
        weighed = (numbers * weights[:, None]).ravel()
        added = np.bincount(place.ravel(), weighed, minlength=dims * n_exponents)
        return added.astype(np.int64).reshape(dims, n_exponents)

    totals = [(binned(sign * limb), base * i) for i, limb in enumerate(limbs)]
    squares = [
        (binned(a * b * (1 if i == j else 2)), base * (i + j))
        for i, a in enumerate(limbs)
        for j, b in enumerate(limbs)
        if i <= j
    ]
    out = []
    for dim in range(dims):
        total = _shifted(totals, dim, UNIT - bias, 1)
        square = _shifted(squares, dim, 2 * (UNIT - bias), 2)
        column = values[:, dim]
        out.append(ExactSums(int(weights.sum()), total, square, float(column.min()), float(column.max())))
    return out


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
