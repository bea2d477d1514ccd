"""Batches of a model that give every row the same bits, whatever the batch it is in.

A kernel adds up in an order that depends on the shape of its input. So a row in a batch of 1 and in a batch of 32 may
differ in its last bits. The smallest batch has always the same number of rows, filled up with repeats of its last one.
That number is part of the featurizer's version. Larger batches are only a way to be faster: a batch of a new size is
computed both ways. The size is used from then on if every bit is the same. The order of additions follows from shapes
and never from values, so that a size that is right for one batch of dense numbers is right for the next.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from loader.errors import ModelFailed

from .devices import free_memory, is_out_of_memory, measured_bytes

if TYPE_CHECKING:
    import torch

Array = np.ndarray[Any, np.dtype[Any]]
Row = Mapping[str, Array]
"""One row of a batch, before or after the model: name -> array, without the axis of the batch."""

Shape = tuple[tuple[str, tuple[int, ...], str], ...]
"""Name, shape and dtype of every array of a row: the same for all rows of a batch."""


def shape_of(row: Row) -> Shape:
    return tuple(sorted((name, value.shape, value.dtype.str) for name, value in row.items()))


@dataclass(slots=True, kw_only=True)
class Fit:
    """Sizes of batches of one shape that were tried, and may be."""

    same: set[int]
    """Sizes of batches whose rows have the bits of the smallest one."""
    other: set[int] = field(default_factory=set)
    """Sizes of batches whose rows have other bits."""
    ceiling: int
    """Largest size that may be tried."""
    row_bytes: int = 0
    """Measured bytes of memory per row; 0 when they were not measured."""

    def size(self, n_rows: int) -> int:
        """Return the largest batch of so many rows that is known to have the same bits, or may have."""
        size = self.ceiling
        while size > min(self.same) and (size > n_rows or size in self.other):
            size //= 2
        return size

    def known(self, n_rows: int) -> int:
        """Return the largest batch of so many rows that is known to have the same bits."""
        return max((size for size in self.same if size <= min(n_rows, self.ceiling)), default=min(self.same))


class Batches:
    """Computation of rows of equal shape by a model; use it inside `repeatable`.

    It remembers, by shape, which sizes fit and which give the same bits.

    run: name -> tensor [rows, ...] on the device to the same, of results.
    place: "cpu" or "cuda:<number>".
    batch_size: rows of the smallest batch.
    max_batch_size: rows of the largest, rounded down to batch_size x 2^k.
    memory_bytes: most bytes that a batch may take.
    """

    def __init__(
        self,
        run: Callable[[Mapping[str, "torch.Tensor"]], Mapping[str, "torch.Tensor"]],
        *,
        place: str,
        dtype: "torch.dtype",
        batch_size: int,
        max_batch_size: int,
        memory_bytes: int,
    ) -> None:
        self._run = run
        self._place, self._dtype = place, dtype
        self._least, self._memory_bytes = batch_size, memory_bytes
        self._most = batch_size << max(0, (max_batch_size // batch_size).bit_length() - 1)
        self.fits: dict[Shape, Fit] = {}

    def wanted(self, shape: Shape) -> int:
        """Return how many rows of that shape are best brought together."""
        fit = self.fits.get(shape)
        return fit.size(fit.ceiling) if fit else self._most

    def results(self, rows: Sequence[Row]) -> list[Row]:
        """Return the result of every row, floats as float32; all rows have the same shape. Raises: ModelFailed."""
        if not rows:
            return []
        shape = shape_of(rows[0])
        done: list[Row] = []
        if shape not in self.fits:
            done += self._first(shape, rows[: self._least])
        while len(done) < len(rows):
            done += self._next(self.fits[shape], rows[len(done) :])
        return done

    def _first(self, shape: Shape, rows: Sequence[Row]) -> list[Row]:
        """Compute the first batch of a shape; its rows must not depend on one another, or on their place."""
        ceiling = self._most
        if ceiling > self._least:
            results, taken = measured_bytes(self._place, lambda: self._smallest(rows))
        else:
            results, taken = self._smallest(rows), 0
        if self._least > 1:
            alone = self._smallest([rows[0]] * self._least)
            if any(not _same(row, results[0]) for row in alone):
                raise ModelFailed(
                    f"the model gives a row other bits beside other rows, or in another place, in batches of "
                    f"{self._least} on {self._place}: set batch_size=1, or look for what mixes the rows of a batch"
                )
        row_bytes = -(-taken // self._least)
        while ceiling > self._least and row_bytes * ceiling > self._memory_bytes:
            ceiling //= 2
        self.fits[shape] = Fit(same={self._least}, ceiling=ceiling, row_bytes=row_bytes)
        return results

    def _next(self, fit: Fit, rows: Sequence[Row]) -> list[Row]:
        """Return the results of some of the rows, from the first on; none when a batch turned out to be too large."""
        size = fit.size(len(rows))
        if size not in fit.same:
            return self._compared(fit, rows[:size])
        return self._known(fit, rows[:size]) or []

    def _compared(self, fit: Fit, rows: Sequence[Row]) -> list[Row]:
        """Return the results of all these rows by batches that are known to have the same bits.

        The batch's size is remembered as one of the same bits, of other bits, or too large.
        """
        results: list[Row] = []
        while len(results) < len(rows):
            left = rows[len(results) :]
            results += self._known(fit, left[: fit.known(len(left))]) or []
        at_once = self._tried(rows)
        if at_once is None:
            fit.ceiling = min(fit.ceiling, len(rows) // 2)
        elif all(map(_same, at_once, results)):
            fit.same.add(len(rows))
        else:
            fit.other.add(len(rows))
        return results

    def _known(self, fit: Fit, rows: Sequence[Row]) -> list[Row] | None:
        """Return the results of a batch of a known size; None when memory ran out, as others may have taken it."""
        if len(rows) <= self._least:
            return self._smallest(rows)
        results = self._tried(rows)
        if results is None:
            fit.ceiling = len(rows) // 2
        return results

    def _smallest(self, rows: Sequence[Row]) -> list[Row]:
        """Compute up to `batch_size` rows as a batch of exactly that many. Raises: ModelFailed when memory runs out."""
        filled = [*rows, *[rows[-1]] * (self._least - len(rows))]
        results = self._tried(filled)
        if results is None:
            inputs = ", ".join(f"{name} {shape}" for name, shape, _ in shape_of(rows[0]))
            raise ModelFailed(
                f"a batch of {self._least} rows of {inputs} does not fit into the memory of {self._place}; set a "
                "smaller batch_size (that makes other bits, so everything is computed again), or smaller inputs"
            )
        return results[: len(rows)]

    def _tried(self, rows: Sequence[Row]) -> list[Row] | None:
        """Return the results of one batch of all these rows; None when memory ran out."""
        try:
            return self._forward(rows)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        free_memory(self._place)
        return None

    def _forward(self, rows: Sequence[Row]) -> list[Row]:
        import torch

        batch = {name: self._tensor([row[name] for row in rows]) for name in rows[0]}
        drawn = torch.get_rng_state()
        results = {name: _array(value) for name, value in self._run(batch).items()}
        if not torch.equal(drawn, torch.get_rng_state()):
            raise ModelFailed(
                "the model draws random numbers, so that the same bytes give other results; put it into eval() and "
                "let it decode greedily"
            )
        odd = [name for name, value in results.items() if value.shape[:1] != (len(rows),)]
        if odd:
            raise ModelFailed(
                f"the model returned {odd[0]!r} of shape {results[odd[0]].shape} for a batch of {len(rows)} rows; "
                "every result has one row per row of the batch"
            )
        return [{name: value[place] for name, value in results.items()} for place in range(len(rows))]

    def _tensor(self, values: Sequence[Array]) -> "torch.Tensor":
        """Stack floats in the model's dtype, integers as they are."""
        import torch

        tensor = torch.from_numpy(np.stack(values)).to(self._place)
        return tensor.to(self._dtype) if tensor.is_floating_point() else tensor


def _array(tensor: "torch.Tensor") -> Array:
    """Return an array on the CPU; every float is float32, which holds float16 and bfloat16 exactly."""
    array: Array = (tensor.float() if tensor.is_floating_point() else tensor).cpu().numpy()
    return array


def _same(one: Row, other: Row) -> bool:
    return all(value.tobytes() == other[name].tobytes() for name, value in one.items())
