"""Run a model in batches that give every row the same bits, whatever the batch.

A kernel's order of additions depends on its input's shape, so a row's last bits may differ between batches of 1 and 32.
The smallest batch always has the same number of rows, filled with repeats. A larger size is used once its first batch,
computed both ways, agrees in every bit.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from loader.errors import ModelFailed
from loader.storage.threads import DaemonPool

from ...media.unit import Unusable, rejected
from ..decoding import STAGE
from ..featurizer import Features
from .devices import free_memory, is_out_of_memory, measure_bytes

if TYPE_CHECKING:
    import torch

Array = np.ndarray[Any, np.dtype[Any]]
Row = Mapping[str, Array]
"""Name -> array of one row, without the batch axis."""

Shape = tuple[tuple[str, tuple[int, ...], str], ...]
"""Name, shape and dtype of every array of a row."""


def row_shape(row: Row) -> Shape:
    """Return the row's `Shape`, sorted by name: rows of one shape can share a batch."""
    return tuple(sorted((name, value.shape, value.dtype.str) for name, value in row.items()))


@dataclass(slots=True, kw_only=True)
class Fit:
    """Batch sizes for one row shape: sizes that were tried, and the largest to try."""

    same: set[int]
    """Sizes with the smallest batch's bits."""
    other: set[int] = field(default_factory=set)
    """Sizes with other bits."""
    ceiling: int
    """Largest size to try."""
    row_bytes: int = 0
    """Measured bytes per row; 0 if unknown."""

    def size(self, n_rows: int) -> int:
        """Return the largest batch size up to `n_rows` that is untried or gives the same bits."""
        size = self.ceiling
        while size > min(self.same) and (size > n_rows or size in self.other):
            size //= 2
        return size

    def known(self, n_rows: int) -> int:
        """Return the largest batch size up to `n_rows` known to give the same bits."""
        return max((size for size in self.same if size <= min(n_rows, self.ceiling)), default=min(self.same))


class ModelBatches:
    """Runs a model over rows of equal shape, inside `repeatable`.

    run: takes and returns name -> tensor [rows, ...] on the device.
    place: "cpu" or "cuda:<number>".
    batch_size: rows in the smallest batch.
    max_batch_size: rows in the largest, rounded down to batch_size x 2^k.
    memory_bytes: most bytes per batch.
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
        self._place = place
        self._dtype = dtype
        self._least = batch_size
        self._memory_bytes = memory_bytes
        # The largest batch_size * 2^k that is not above max_batch_size.
        self._most = batch_size << max(0, (max_batch_size // batch_size).bit_length() - 1)
        self.fits: dict[Shape, Fit] = {}

    def best_size(self, shape: Shape) -> int:
        """Return how many rows of this shape to collect per batch."""
        fit = self.fits.get(shape)
        if fit:
            return fit.size(fit.ceiling)
        return self._most

    def results(self, rows: Sequence[Row]) -> list[Row]:
        """Return each row's result, with floats as float32. Raises: ModelFailed."""
        if not rows:
            return []
        shape = row_shape(rows[0])
        done: list[Row] = []
        if shape not in self.fits:
            done += self._first(shape, rows[: self._least])
        while len(done) < len(rows):
            done += self._next(self.fits[shape], rows[len(done) :])
        return done

    def _first(self, shape: Shape, rows: Sequence[Row]) -> list[Row]:
        """Run the first batch of a shape, of the smallest size, and store the `Fit` that later ones use."""
        ceiling = self._most
        if ceiling > self._least:  # only larger batches need the measured bytes
            results, nbytes = measure_bytes(self._place, lambda: self._smallest(rows))
        else:
            results = self._smallest(rows)
            nbytes = 0
        # One row in all places: a model that mixes the rows of a batch gives them other bits.
        if self._least > 1:
            alone = self._smallest([rows[0]] * self._least)
            if any(not _same(row, results[0]) for row in alone):
                raise ModelFailed(
                    f"the model gives a row other bits beside other rows, or at another position, in "
                    f"batches of {self._least} on {self._place}: set batch_size=1, or find the layer that mixes "
                    "the rows of a batch",
                    what="batch_size",
                    where=self._place,
                    given=self._least,
                    accepted=1,
                )
        row_bytes = -(-nbytes // self._least)  # rounded up
        while ceiling > self._least and row_bytes * ceiling > self._memory_bytes:
            ceiling //= 2
        self.fits[shape] = Fit(same={self._least}, ceiling=ceiling, row_bytes=row_bytes)
        return results

    def _next(self, fit: Fit, rows: Sequence[Row]) -> list[Row]:
        """Return results for the first rows, or [] if a batch was too large."""
        size = fit.size(len(rows))
        if size not in fit.same:
            return self._compare(fit, rows[:size])
        return self._run_known(fit, rows[:size]) or []

    def _compare(self, fit: Fit, rows: Sequence[Row]) -> list[Row]:
        """Return results of known sizes, and find out whether one batch of all rows gives the same bits."""
        results: list[Row] = []
        while len(results) < len(rows):
            rest = rows[len(results) :]
            results += self._run_known(fit, rest[: fit.known(len(rest))]) or []
        # Only to compare: the results of known sizes are returned.
        at_once = self._try_batch(rows)
        if at_once is None:
            fit.ceiling = min(fit.ceiling, len(rows) // 2)
        elif all(map(_same, at_once, results)):
            fit.same.add(len(rows))
        else:
            fit.other.add(len(rows))
        return results

    def _run_known(self, fit: Fit, rows: Sequence[Row]) -> list[Row] | None:
        """Return results for a known batch size; None if memory ran out."""
        if len(rows) <= self._least:
            return self._smallest(rows)
        results = self._try_batch(rows)
        if results is None:
            fit.ceiling = len(rows) // 2
        return results

    def _smallest(self, rows: Sequence[Row]) -> list[Row]:
        """Run rows in a batch of the smallest size; the last row fills it up. Raises: ModelFailed."""
        filled = [*rows, *[rows[-1]] * (self._least - len(rows))]
        results = self._try_batch(filled)
        if results is None:
            inputs = ", ".join(f"{name} {shape}" for name, shape, _ in row_shape(rows[0]))
            raise ModelFailed(
                f"a batch of {self._least} rows of {inputs} does not fit into the memory of {self._place}; set a "
                "smaller batch_size (the bits change, so all features are computed again), or smaller inputs",
                what="batch_size",
                where=self._place,
                given=inputs,
            )
        return results[: len(rows)]

    def _try_batch(self, rows: Sequence[Row]) -> list[Row] | None:
        """Return the results of one batch; None if memory ran out."""
        try:
            return self._forward(rows)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        # Outside of the handler, whose exception keeps tensors alive.
        free_memory(self._place)
        return None

    def _forward(self, rows: Sequence[Row]) -> list[Row]:
        import torch

        batch = {name: self._tensor([row[name] for row in rows]) for name in rows[0]}
        rng_state = torch.get_rng_state()
        results = {name: _array(value) for name, value in self._run(batch).items()}
        if not torch.equal(rng_state, torch.get_rng_state()):
            raise ModelFailed(
                "the model draws random numbers, so the same bytes give other results; put it into eval() and "
                "let it decode greedily",
                what="random draws",
                where=self._place,
            )
        odd = [name for name, value in results.items() if value.shape[:1] != (len(rows),)]
        if odd:
            raise ModelFailed(
                f"the model returned {odd[0]!r} of shape {results[odd[0]].shape} for a batch of {len(rows)} rows; "
                "every result needs one row per row of the batch",
                what=odd[0],
                where=self._place,
                given=results[odd[0]].shape,
                accepted=len(rows),
            )
        return [{name: value[place] for name, value in results.items()} for place in range(len(rows))]

    def _tensor(self, values: Sequence[Array]) -> "torch.Tensor":
        import torch

        tensor = torch.from_numpy(np.stack(values)).to(self._place)
        if tensor.is_floating_point():
            return tensor.to(self._dtype)
        return tensor


def _array(tensor: "torch.Tensor") -> Array:
    # numpy has no bfloat16.
    array: Array = (tensor.float() if tensor.is_floating_point() else tensor).cpu().numpy()
    return array


def _same(first: Row, second: Row) -> bool:
    # By bytes: NaN equals itself, and -0 differs from 0.
    return all(value.tobytes() == second[name].tobytes() for name, value in first.items())


Sample = Mapping[str, bytes]
Prepare = Callable[[Sample], Sequence[Row]]
"""Returns a sample's rows. Raises: Unusable."""

Finish = Callable[[Sequence[Row]], Features]
"""Returns a sample's features from its rows' results. Raises: Unusable."""

WAITING_BYTES = 256 << 20
"""Above these bytes of waiting rows, the shape that takes up most is computed."""


def gather_features(
    samples: Iterable[Sample],
    prepare: Prepare,
    batches: ModelBatches,
    finish: Finish,
    readers: int,
) -> list[Features | Unusable]:
    """Return each sample's features or refusal, in order. Raises: ModelFailed."""
    work = _Gathering(batches=batches, finish=finish)
    for prepared in _prepare_samples(samples, prepare, readers):
        work.take(prepared)
    work.compute_all()
    return work.features


def _prepare_samples(
    samples: Iterable[Sample], prepare: Prepare, readers: int
) -> Iterator[Sequence[Row] | Unusable]:
    def prepare_rows(sample: Sample) -> Sequence[Row] | Unusable:
        try:
            return prepare(sample)
        except Unusable as unusable:
            return unusable

    if readers == 1:
        yield from map(prepare_rows, samples)
        return
    rest = iter(samples)
    with DaemonPool(readers, "prepare") as pool:
        # In groups, since the rows of all samples may not fit in memory.
        while group := list(islice(rest, 2 * readers)):
            yield from pool.map(prepare_rows, group)


@dataclass(slots=True, kw_only=True)
class _Gathering:
    """Samples in progress, numbered as they come."""

    batches: ModelBatches
    finish: Finish
    features: list[Any] = field(default_factory=list)
    """By sample number: its features, an Unusable, or None until all of its rows are computed."""
    parts: dict[int, dict[int, Row]] = field(default_factory=dict)
    """Number of an unfinished sample -> place of a row in it -> its result."""
    n_rows: dict[int, int] = field(default_factory=dict)
    """Sample number -> number of its rows."""
    waiting: dict[Shape, list[tuple[int, int, Row]]] = field(default_factory=dict)
    """Shape -> (sample number, place in the sample, row) of rows that wait for a full batch."""
    waiting_bytes: int = 0

    def take(self, prepared: Sequence[Row] | Unusable) -> None:
        number = len(self.features)
        if isinstance(prepared, Unusable):
            self.features.append(prepared)
            return
        self.features.append(None)
        self.parts[number] = {}
        self.n_rows[number] = len(prepared)
        for place, row in enumerate(prepared):
            shape = row_shape(row)
            alike = self.waiting.setdefault(shape, [])
            alike.append((number, place, row))
            self.waiting_bytes += _nbytes(row)
            if len(alike) >= self.batches.best_size(shape):
                self._compute(shape)
            elif self.waiting_bytes > WAITING_BYTES:
                largest = max(self.waiting, key=lambda other: len(self.waiting[other]) * _shape_nbytes(other))
                self._compute(largest)
        # A sample without rows is in no batch.
        self._finish(number)

    def compute_all(self) -> None:
        for shape in list(self.waiting):
            self._compute(shape)

    def _compute(self, shape: Shape) -> None:
        items = self.waiting.pop(shape)
        self.waiting_bytes -= sum(_nbytes(row) for _, _, row in items)
        results = self.batches.results([row for _, _, row in items])
        for (number, place, _), result in zip(items, results, strict=True):
            self.parts[number][place] = result
        for number in dict.fromkeys(number for number, _, _ in items):
            self._finish(number)

    def _finish(self, number: int) -> None:
        parts = self.parts.get(number)
        if parts is None or len(parts) < self.n_rows[number]:
            return
        del self.parts[number]
        try:
            rows = [parts[place] for place in range(len(parts))]
            _check_finite(rows)
            self.features[number] = self.finish(rows)
        except Unusable as unusable:
            self.features[number] = unusable


def _check_finite(rows: Sequence[Row]) -> None:
    for row in rows:
        for name, value in row.items():
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                raise rejected(
                    STAGE, "not_finite", f"the model's {name!r} of it is NaN or infinite", where=name
                )


def _nbytes(row: Row) -> int:
    return sum(value.nbytes for value in row.values())


def _shape_nbytes(shape: Shape) -> int:
    return sum(int(np.prod(size, dtype=np.int64)) * np.dtype(dtype).itemsize for _, size, dtype in shape)
