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
            n=self.n + other.n,
            total=self.total + other.total,
            squares=self.squares + other.squares,
            # -0.0 equals 0.0, so either would stay by the order of values: adding 0.0 makes both 0.0.
            low=min(self.low, other.low) + 0.0,
            high=max(self.high, other.high) + 0.0,
        )

    @property
    def mean(self) -> float:
        """The float64 nearest to the mean; NaN without values."""
        if not self.n:
            return float("nan")
        return self.total / (self.n << UNIT)  # Python rounds a quotient of integers once, to the nearest

    @property
    def std(self) -> float:
        """The float64 nearest to the deviation of the population; NaN without values."""
        if not self.n:
            return float("nan")
        # variance = squares / n - (total / n)^2, over the common denominator n^2
        numerator = self.n * self.squares - self.total * self.total
        denominator = self.n * self.n << 2 * UNIT
        return nearest_root(Fraction(numerator, denominator))


def nearest_root(value: Fraction) -> float:
    """Return the float64 nearest to the square root of a fraction >= 0."""
    if value <= 0:
        return 0.0
    # First guess: the root of an integer of about 140 bits, so of 70 correct bits, rounded to the 53 of a float64.
    missing_bits = 140 + value.denominator.bit_length() - value.numerator.bit_length()
    shift = max(0, missing_bits) // 2 + 1
    scaled = (value.numerator << 2 * shift) // value.denominator
    root = isqrt(scaled) / (1 << shift)

    # Correct it by the exact middle between neighbours.
    above = nextafter(root, float("inf"))
    while value > _middle_squared(root, above):
        root = above
        above = nextafter(above, float("inf"))
    below = nextafter(root, 0.0)
    while root and value < _middle_squared(root, below):
        root = below
        below = nextafter(below, 0.0)
    return root


def _middle_squared(first: float, second: float) -> Fraction:
    return ((Fraction(first) + Fraction(second)) / 2) ** 2


def exact_sums(values: NDArray[np.floating], weights: I64 | None = None) -> list[ExactSums]:
    """Return the sums of each column.

    values: float32 or float64 [n, dims], finite. weights: int64 [n], how often each row counts, up to 32,768; None:
    once.
    """
    n_rows, dims = values.shape
    weight_max = _layout(values.dtype).weight_max
    if weights is None:
        weight_ends = np.arange(1, n_rows + 1)
    else:
        weight_ends = np.cumsum(weights)  # [rows]: weight of the rows up to and with each

    sums = [ExactSums() for _ in range(dims)]
    chunks: list[_Chunk] = []
    start = 0
    while start < n_rows:
        stop = _chunk_stop(weight_ends, start, weight_max)
        row_weights = None
        if weights is not None:
            row_weights = weights[start:stop]
        chunks.append(_chunk(values[start:stop], row_weights))
        start = stop
        # Shifted into Python's integers once for many chunks: until then int64 holds their sums.
        if start == n_rows or len(chunks) == _CHUNKS_MAX:
            chunk_sums = _sum_chunks(chunks, values.dtype)
            sums = [own + other for own, other in zip(sums, chunk_sums, strict=True)]
            chunks = []
    return sums


def _chunk_stop(weight_ends: I64, start: int, weight_max: int) -> int:
    """Return the end of the chunk that begins at row `start`: its rows weigh at most `weight_max` together.

    weight_ends: int64 [rows], ascending: the weight of all rows up to and with each.
    """
    weight_before = 0
    if start:
        weight_before = int(weight_ends[start - 1])
    most_weight = weight_before + weight_max
    stop = int(np.searchsorted(weight_ends, most_weight, side="right"))
    stop = max(stop, start + 1)  # at least one row, or `exact_sums` would not end
    return min(stop, start + WEIGHT_MAX)


class _Layout(NamedTuple):
    """Bits of a float type, and the limbs that its mantissas are cut into."""

    unsigned: type[np.unsignedinteger]
    mantissa_bits: int
    n_exponents: int
    bias: int
    """The least exponent's unit is 2^(1 - bias)."""
    limb_bits: int
    n_limbs: int
    weight_max: int
    """Most weight of a chunk's rows: products of limbs, added that often, stay below 2^53."""


_FLOAT32 = _Layout(
    unsigned=np.uint32,
    mantissa_bits=23,
    n_exponents=256,
    bias=150,
    limb_bits=12,
    n_limbs=2,
    weight_max=2**28,  # 25 bits of a product and 28 are 53
)
_FLOAT64 = _Layout(
    unsigned=np.uint64,
    mantissa_bits=52,
    n_exponents=2048,
    bias=1075,
    limb_bits=18,
    n_limbs=3,
    weight_max=WEIGHT_MAX,
)


def _layout(dtype: np.dtype[Any]) -> _Layout:
    if dtype == np.float32:
        return _FLOAT32
    return _FLOAT64


class _BinSums(NamedTuple):
    """Sums of limbs by exponent: each stands for `sums * 2^shift`, in units of the exponent's mantissas."""

    sums: I64
    """int64 [dims, exponents]."""
    shift: int


class _Chunk(NamedTuple):
    """Sums of some rows, as whole numbers per exponent."""

    n: int
    totals: list[_BinSums]
    squares: list[_BinSums]
    low: F64
    high: F64


def _chunk(values: NDArray[np.floating], weights: I64 | None) -> _Chunk:
    n_rows, dims = values.shape
    layout = _layout(values.dtype)
    n_exponents = layout.n_exponents
    mantissa_bits = layout.mantissa_bits
    limb_bits = layout.limb_bits

    # Two arrays for all steps: a named one for each took a third longer, in memory pages that are new each time.
    raw = np.ascontiguousarray(values).view(layout.unsigned).astype(np.int64)  # [rows, dims]
    sign_bit = mantissa_bits + n_exponents.bit_length() - 1
    sign = np.where(raw >> sign_bit & 1, -1, 1)
    exponent = (raw >> mantissa_bits) & (n_exponents - 1)
    mantissa = raw
    mantissa &= (1 << mantissa_bits) - 1
    mantissa |= (exponent > 0).astype(
        np.int64
    ) << mantissa_bits  # the leading one, which subnormal numbers lack
    # Bin of each value: its column and its exponent. Subnormal numbers have the unit of exponent 1.
    bins = (np.maximum(exponent, 1) + n_exponents * np.arange(dims)).ravel()

    def add(numbers: I64, shift: int) -> _BinSums:
        if weights is not None:
            numbers = numbers * weights[:, None]
        # `bincount` adds in float64: exact, because all partial sums stay below 2^53.
        bin_sums = np.bincount(bins, numbers.ravel(), minlength=dims * n_exponents)
        sums = bin_sums.astype(np.int64).reshape(dims, n_exponents)
        return _BinSums(sums, shift)

    totals: list[_BinSums] = []
    squares: list[_BinSums] = []
    limbs = _limbs(mantissa, layout)
    for i, limb in enumerate(limbs):
        totals.append(add(sign * limb, limb_bits * i))
        # (a + b + c)^2: the square of each limb, and each mixed product twice.
        squares.append(add(limb * limb, limb_bits * 2 * i))
        for j in range(i + 1, len(limbs)):
            mixed = 2 * limb * limbs[j]
            squares.append(add(mixed, limb_bits * (i + j)))

    n = n_rows
    if weights is not None:
        n = int(weights.sum())
    return _Chunk(
        n=n,
        totals=totals,
        squares=squares,
        low=values.min(axis=0),
        high=values.max(axis=0),
    )


def _sum_chunks(chunks: Sequence[_Chunk], dtype: np.dtype[Any]) -> list[ExactSums]:
    """Return the sums of all chunks, per column."""
    unit = UNIT - _layout(dtype).bias
    totals = _add_chunks([chunk.totals for chunk in chunks])
    squares = _add_chunks([chunk.squares for chunk in chunks])
    low = np.min([chunk.low for chunk in chunks], axis=0)
    high = np.max([chunk.high for chunk in chunks], axis=0)
    n = sum(chunk.n for chunk in chunks)
    sums: list[ExactSums] = []
    for dim in range(len(low)):
        column = ExactSums(
            n=n,
            total=_whole_sum(totals, dim, unit, power=1),
            squares=_whole_sum(squares, dim, 2 * unit, power=2),
            low=float(low[dim]),
            high=float(high[dim]),
        )
        sums.append(column)
    return sums


def _add_chunks(chunks: Sequence[list[_BinSums]]) -> list[_BinSums]:
    """Return the sums over chunks of each limb, or product of limbs."""
    added_limbs: list[_BinSums] = []
    for same_limb in zip(*chunks, strict=True):
        sums = np.sum([part.sums for part in same_limb], axis=0)
        added_limbs.append(_BinSums(sums, same_limb[0].shift))
    return added_limbs


def _limbs(mantissa: I64, layout: _Layout) -> list[I64]:
    """Return the mantissa's parts of `limb_bits` bits, the lowest first."""
    mask = (1 << layout.limb_bits) - 1
    shifts = [layout.limb_bits * i for i in range(layout.n_limbs)]
    return [mantissa >> shift & mask for shift in shifts]


def _whole_sum(limbs: Sequence[_BinSums], dim: int, unit: int, power: int) -> int:
    """Return a column's sum as one whole number. power: 1 for values, 2 for squares, whose exponents count twice."""
    total = 0
    for binned, shift in limbs:
        column = binned[dim]  # int64 [exponents]
        for exponent in np.flatnonzero(column).tolist():
            total += int(column[exponent]) << (power * exponent + shift + unit)
    return total


DIMS_MAX = 2**12
"""Most dimensions of a field."""


def as_floats(values: NDArray[Any]) -> NDArray[np.floating]:
    """Return numbers [n, ...] as [n, dims]: float32 if it holds their dtype's values, else float64."""
    dtype: type[np.floating] = np.float64
    if values.dtype.itemsize <= 2 or values.dtype == np.float32:
        dtype = np.float32
    dims = prod(values.shape[1:])
    flat = values.reshape(len(values), dims)  # not -1, which no row leaves open
    return flat.astype(dtype, copy=False)


_BITS = 20  # leading bits of a value in its bin
_LOW_BITS = 12  # bits of float32 below them
_SIGN_BIT = 31


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
        if weights is None:
            flat = np.sort(_bins(values).ravel())
            starts = _starts(flat)
            return ValueCounts(flat[starts], np.diff(starts, append=len(flat)))

        # Most windows weigh their rows alike: count these without weights, and only the others with them.
        common = 0
        if len(weights):
            common = int(np.bincount(weights).argmax())
        has_common = weights == common
        if has_common.all():
            once = ValueCounts.of(values)
            return ValueCounts(once.bins, once.counts * common)
        if has_common.sum() > len(weights) // 2:
            alike = ValueCounts.of(values[has_common], weights[has_common])
            others = ValueCounts.of(values[~has_common], weights[~has_common])
            return alike + others

        # A bin with its weight in one number, to sort once: five times as fast as np.unique.
        # (Sums and shifts without a name are computed in place; with names, this takes a fifth longer.)
        bins = _bins(values).astype(np.uint64) << np.uint64(32)
        weighted = np.sort((bins | weights.astype(np.uint64)[:, None]).ravel())
        sorted_bins = (weighted >> np.uint64(32)).astype(np.uint32)
        sorted_weights = (weighted & np.uint64(2**32 - 1)).astype(np.int64)
        return _add_equal_bins(sorted_bins, sorted_weights)

    def __add__(self, other: "ValueCounts") -> "ValueCounts":
        return add_counts([self, other])

    def quantile(self, dim: int, q: float) -> float:
        """Return the value of rank floor(q * (n - 1)) of a dimension; NaN without values."""
        below, _, _ = self.neighbours(dim, q)
        return below

    def neighbours(self, dim: int, q: float) -> tuple[float, float, float]:
        """Return the values of the ranks around q * (n - 1) of a dimension, and the share of the second."""
        first, stop = np.searchsorted(self.bins, [dim << _BITS, (dim + 1) << _BITS])
        if first == stop:
            return float("nan"), float("nan"), 0.0
        ends = np.cumsum(self.counts[first:stop])
        n = int(ends[-1])
        position = q * (n - 1)
        rank = int(position)
        next_rank = min(rank + 1, n - 1)
        # The first bin that ends after a rank has its value.
        lower, upper = first + np.searchsorted(ends, [rank, next_rank], side="right")
        below = _middle(int(self.bins[lower]))
        above = _middle(int(self.bins[upper]))
        return below, above, position - rank


def add_counts(counts: Iterable[ValueCounts]) -> ValueCounts:
    """Return the sum of counts. Costs one sort."""
    parts = list(counts)
    # An empty array first, because `concatenate` needs one.
    bins = np.concatenate([np.zeros(0, np.uint32), *(part.bins for part in parts)])
    numbers = np.concatenate([np.zeros(0, np.int64), *(part.counts for part in parts)])
    order = np.argsort(bins, kind="stable")
    return _add_equal_bins(bins[order], numbers[order])


def _add_equal_bins(bins: NDArray[np.uint32], counts: I64) -> ValueCounts:
    """Return the counts of ascending bins, with equal bins added."""
    starts = _starts(bins)
    if not len(starts):
        return ValueCounts(bins[starts], counts)  # `reduceat` takes no empty array
    return ValueCounts(bins[starts], np.add.reduceat(counts, starts))


def _bins(values: NDArray[np.floating]) -> NDArray[np.uint32]:
    """Return uint32 [n, dims]: the bin of each value, with its dimension above the leading bits."""
    dims = np.arange(values.shape[1], dtype=np.uint32)
    bins = _order_bits(values)
    bins >>= np.uint32(_LOW_BITS)
    bins |= dims << np.uint32(_BITS)
    return bins


def _order_bits(values: NDArray[np.floating]) -> NDArray[np.uint32]:
    """Return uint32 numbers in the order of the values, rounded to float32."""
    float32 = np.ascontiguousarray(values, np.float32) + np.float32(0)  # makes -0.0 0.0
    bits = float32.view(np.uint32)
    sign_mask = np.uint32(1 << _SIGN_BIT)
    is_negative = bits >> np.uint32(_SIGN_BIT)
    # Positive floats are in the order of their bits, negative ones in the opposite order.
    return np.where(is_negative, ~bits, bits | sign_mask)


def _middle(bin_number: int) -> float:
    """Return the value in the middle of a bin, whatever its dimension."""
    leading = bin_number & (2**_BITS - 1)
    ordered = np.uint32(leading << _LOW_BITS | 1 << (_LOW_BITS - 1))
    if ordered >> np.uint32(_SIGN_BIT):
        bits = ordered ^ np.uint32(1 << _SIGN_BIT)
    else:
        bits = ~ordered
    return float(np.array([bits], np.uint32).view(np.float32)[0])


def _starts(values: NDArray[np.uint32]) -> I64:
    """Return the indices at which a new value begins in ascending values."""
    if not len(values):
        return np.zeros(0, np.int64)
    changes = np.flatnonzero(values[1:] != values[:-1]) + 1
    return np.concatenate([[0], changes]).astype(np.int64)
