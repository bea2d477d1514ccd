"""One featurizer over one part: handed to workers in stretches, which read the samples from the store themselves.

A stretch that kills its worker is tried again sample by sample, so that one poison sample costs itself. (Workers import
this module: it imports no dagster.)
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import loader
from loader.dataset.part_extension import read_part
from loader.storage import Store
from resources.compute import Compute, Outcome, Progress

from .featurizers import Features, Featurizer
from .media.unit import Unusable

STRETCH = 32
"""Samples that one unit of work takes: seconds of work, and little to do again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Rows [start, stop) of one part, for one featurizer."""

    store: Store
    part: loader.Part
    kind: str
    featurizer: Featurizer
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What became of one sample: features, or a refusal."""

    key: str
    features: Features | None = None
    code: str = ""
    reason: str = ""


def inputs_of(featurizer: Featurizer, kind: str, part: loader.Part) -> list[str]:
    """The featurizer's inputs that this part has (a caption may be missing); none: it has nothing to take there."""
    there = {field for shard in part.shards for field in shard.field_nbytes}
    return [field for field in featurizer.inputs.get(kind, ()) if field in there]


def featurize(stretch: Stretch) -> list[Row]:
    """The rows of a stretch, in order. Runs in a worker. Raises: StoreError, Corrupt when samples cannot be read."""
    inputs = inputs_of(stretch.featurizer, stretch.kind, stretch.part)
    rows = []
    for key, sample in read_part(stretch.store, stretch.part, inputs, range(stretch.start, stretch.stop)):
        try:
            rows.append(Row(key=key, features=stretch.featurizer(stretch.kind, sample)))
        except Unusable as unusable:
            rows.append(Row(key=key, code=unusable.code, reason=unusable.reason))
    return rows


def compute_part(
    store: Store,
    compute: Compute,
    featurizer: Featurizer,
    kind: str,
    part: loader.Part,
    timeout_s: float,
    progress: Progress | None = None,
) -> list[Row]:
    """The rows of all samples of a part, in its order; a sample that no worker survives is a refusal."""

    def stretches(bounds: Iterable[tuple[int, int]]) -> list[Stretch]:
        return [
            Stretch(store=store, part=part, kind=kind, featurizer=featurizer, start=start, stop=stop)
            for start, stop in bounds
        ]

    work = stretches((at, min(at + STRETCH, part.n_rows)) for at in range(0, part.n_rows, STRETCH))
    rows: list[Row] = []
    for stretch, outcome in zip(
        work, compute.map(featurize, work, timeout_s=timeout_s, progress=progress), strict=True
    ):
        if outcome.value is not None:
            rows += outcome.value
            continue
        alone = stretches((at, at + 1) for at in range(stretch.start, stretch.stop))
        keys = [key for key, _ in read_part(store, part, [], range(stretch.start, stretch.stop))]
        rows += _one_by_one(keys, compute.map(featurize, alone, timeout_s=timeout_s))
    return rows


def _one_by_one(keys: Sequence[str], outcomes: Iterable[Outcome[list[Row]]]) -> Iterator[Row]:
    for key, outcome in zip(keys, outcomes, strict=True):
        if outcome.value is not None:
            yield from outcome.value
        elif outcome.error is not None:
            yield Row(key=key, code=outcome.error.code, reason=outcome.error.summary[:500])
