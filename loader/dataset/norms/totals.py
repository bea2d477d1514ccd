"""Gather values of a field, and add them up many together: short episodes would pay a fixed price each."""

from math import prod

import numpy as np
from numpy.typing import NDArray

from .norm import FieldNorm
from .quantiles import ValueCounts, added
from .sums import ExactSums, exact_sums

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
            self.add_up()
        self._values.append(values)
        self._weights.append(weights)
        self._n_values += values.size
        if self._n_values >= TOGETHER:
            self.add_up()

    def add_norm(self, norm: FieldNorm) -> None:
        """Add the values behind a norm of the same shape."""
        self._sums = [one + other for one, other in zip(self._sums, norm.sums, strict=True)]
        self._count(norm.counts)

    def norm(self) -> FieldNorm:
        """Return the statistics of all values."""
        self.add_up()
        return FieldNorm(shape=self.shape, sums=tuple(self._sums), counts=added(self._counts))

    def add_up(self) -> None:
        """Add the values that wait up, which frees them."""
        if not self._values:
            return
        values = self._values[0] if len(self._values) == 1 else np.concatenate(self._values)
        weights = None
        if any(one is not None for one in self._weights):
            pairs = zip(self._values, self._weights, strict=True)
            weights = np.concatenate([np.ones(len(v), np.int64) if w is None else w for v, w in pairs])
        self._values, self._weights, self._n_values = [], [], 0
        step = max(1, TOGETHER // max(1, values.shape[1]))
        for start in range(0, len(values), step):
            rows = values[start : start + step]
            often = None if weights is None else weights[start : start + step]
            self._sums = [one + other for one, other in zip(self._sums, exact_sums(rows, often), strict=True)]
            self._count(ValueCounts.of(rows, often))

    def _count(self, counts: ValueCounts) -> None:
        """Add counts; join them when they have twice the bins of the first, so that a bin is joined log n times."""
        self._counts.append(counts)
        self._n_bins += len(counts.bins)
        if self._n_bins > 2 * len(self._counts[0].bins) + 2**20:
            self._counts = [added(self._counts)]
            self._n_bins = len(self._counts[0].bins)
