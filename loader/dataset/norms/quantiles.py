"""Quantiles of exact rank: counts over the leading 20 bits of float32 values, in their order.

A quantile's value has its bin's middle, within 2^-12 of the true one. Counts of parts add up to the whole's.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
DIMS_MAX = 2**12
"""Most dimensions of a field."""
_BITS, _LOW = 20, 12


@dataclass(frozen=True, slots=True, eq=False)
class ValueCounts:
    """Counts of a field's values, for all dimensions."""

    bins: NDArray[np.uint32]
    """uint32, ascending: dimension, then the leading 20 bits of the value in order."""
    counts: I64
    """int64: values in each bin."""

    @staticmethod
    def of(values: NDArray[np.floating], weights: I64 | None = None) -> "ValueCounts":
        """Return the counts of float values [n, dims]. weights: int64 [n], how often each row counts; None: once."""
        dims = np.arange(values.shape[1], dtype=np.uint32) << np.uint32(_BITS)
        bins = (_ordered(values) >> np.uint32(_LOW)) | dims
        if weights is None:
            flat = np.sort(bins.ravel())
            starts = _starts(flat)
            return ValueCounts(flat[starts], np.diff(starts, append=len(flat)))
        flat, number = np.unique(bins.ravel(), return_inverse=True)
        often = np.repeat(weights, values.shape[1])
        return ValueCounts(flat, np.bincount(number, often, minlength=len(flat)).astype(np.int64))

    def __add__(self, other: "ValueCounts") -> "ValueCounts":
        """Return the counts of the values of both."""
        bins = np.concatenate([self.bins, other.bins])
        order = np.argsort(bins, kind="stable")
        bins, counts = bins[order], np.concatenate([self.counts, other.counts])[order]
        starts = _starts(bins)
        return ValueCounts(bins[starts], np.add.reduceat(counts, starts) if len(starts) else counts)

    def quantile(self, dim: int, q: float) -> float:
        """Return the value of rank floor(q * (n - 1)) of a dimension; NaN without values."""
        first, stop = np.searchsorted(self.bins, [dim << _BITS, (dim + 1) << _BITS])
        if first == stop:
            return float("nan")
        ends = np.cumsum(self.counts[first:stop])
        rank = int(q * (int(ends[-1]) - 1))
        place = int(np.searchsorted(ends, rank, side="right"))
        return _middle(int(self.bins[first + place]) & (2**_BITS - 1))


def added(counts: Iterable[ValueCounts]) -> ValueCounts:
    """Return the sum of counts."""
    return reduce(ValueCounts.__add__, counts, ValueCounts(np.zeros(0, np.uint32), np.zeros(0, np.int64)))


def _ordered(values: NDArray[np.floating]) -> NDArray[np.uint32]:
    """Return float32 bits as uint32 that ascend with the values."""
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
