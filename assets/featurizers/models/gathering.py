"""Samples in, features out: rows of equal shape brought together, and every sample's results put together again."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from ...media.unit import Unusable, rejected
from ..decoding import STAGE
from ..featurizer import Features
from .batching import Batches, Row, Shape, shape_of

if TYPE_CHECKING:
    from .model import ModelFeaturizer

WAITING_BYTES = 256 << 20
"""Bytes of rows that wait for others of their shape; beyond it the shape that takes most is computed as it is."""


def gathered(
    featurizer: "ModelFeaturizer",
    model: Any,
    batches: Batches,
    kind: str,
    samples: Iterable[Mapping[str, bytes]],
    readers: int,
) -> list[Features | Unusable]:
    """Return the features or refusal of every sample, in order, whatever rows share a batch.

    Raises: ModelFailed.
    """
    work = _Gathering(featurizer=featurizer, model=model, batches=batches, kind=kind)
    for prepared in _prepared(featurizer, model, kind, samples, readers):
        work.take(prepared)
    work.compute_all()
    return work.made


def _prepared(
    featurizer: "ModelFeaturizer",
    model: Any,
    kind: str,
    samples: Iterable[Mapping[str, bytes]],
    readers: int,
) -> Iterator[Sequence[Row] | Unusable]:
    """Yield the rows of each sample or its refusal, in order; by `readers` threads, twice as many samples ahead."""

    def prepare(sample: Mapping[str, bytes]) -> Sequence[Row] | Unusable:
        try:
            return featurizer.prepare(model, kind, sample)
        except Unusable as unusable:
            return unusable

    if readers == 1:
        yield from map(prepare, samples)
        return
    left = iter(samples)
    with ThreadPoolExecutor(readers, thread_name_prefix="prepare") as pool:
        while some := list(islice(left, 2 * readers)):
            yield from pool.map(prepare, some)


@dataclass(slots=True, kw_only=True)
class _Gathering:
    """Samples on their way.

    made: an entry per sample taken; parts: results of samples that wait for more, by number.
    """

    featurizer: "ModelFeaturizer"
    model: Any
    batches: Batches
    kind: str
    made: list[Any] = field(default_factory=list)
    parts: dict[int, dict[int, Row]] = field(default_factory=dict)
    n_rows: dict[int, int] = field(default_factory=dict)
    waiting: dict[Shape, list[tuple[int, int, Row]]] = field(default_factory=dict)
    waiting_bytes: int = 0

    def take(self, prepared: Sequence[Row] | Unusable) -> None:
        """Take the next sample, and compute the batches that are full."""
        number = len(self.made)
        self.made.append(prepared if isinstance(prepared, Unusable) else None)
        if isinstance(prepared, Unusable):
            return
        self.parts[number], self.n_rows[number] = {}, len(prepared)
        for place, row in enumerate(prepared):
            shape = shape_of(row)
            alike = self.waiting.setdefault(shape, [])
            alike.append((number, place, row))
            self.waiting_bytes += _nbytes(row)
            if len(alike) >= self.batches.wanted(shape):
                self._compute(shape)
            elif self.waiting_bytes > WAITING_BYTES:
                self._compute(max(self.waiting, key=lambda one: len(self.waiting[one]) * _nbytes_of(one)))
        self._finish(number)

    def compute_all(self) -> None:
        """Compute the rows that still wait."""
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
        """Make the sample's features once all its results are there."""
        parts = self.parts.get(number)
        if parts is None or len(parts) < self.n_rows[number]:
            return
        del self.parts[number]
        try:
            rows = [parts[place] for place in range(len(parts))]
            _check_finite(rows)
            self.made[number] = self.featurizer.finish(self.model, self.kind, rows)
        except Unusable as unusable:
            self.made[number] = unusable


def _check_finite(rows: Sequence[Row]) -> None:
    """Check that results are neither NaN nor infinite. Raises: Unusable."""
    for row in rows:
        for name, value in row.items():
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                raise rejected(STAGE, "not_finite", f"the model's {name!r} of it is NaN or infinite")


def _nbytes(row: Row) -> int:
    return sum(value.nbytes for value in row.values())


def _nbytes_of(shape: Shape) -> int:
    return sum(int(np.prod(size, dtype=np.int64)) * np.dtype(dtype).itemsize for _, size, dtype in shape)
