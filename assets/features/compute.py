"""One featurizer over one part: handed to workers in stretches, which read the samples from the store themselves.

A stretch that kills its worker is tried again sample by sample, so that one poison sample costs itself. (Workers import
this module: it imports no dagster.)
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import loader
from loader.dataset.writing.part_extension import read_part
from loader.errors import InvalidWeights, MissingDependency, ModelFailed, PenstockError, StoreError
from loader.storage import RangeReader
from penstock.compute.pool import Compute, Outcome, Progress
from penstock.compute.pool.contract import Code
from penstock.compute.pool.environment import place_here, store_variables

from ..featurizers import Features, Featurizer
from ..featurizers.models import ModelFeaturizer, gpus_for
from ..media.image.open import PHOTO_WORDS
from ..media.unit import Unusable

STRETCH = 32
"""Samples that one unit of work takes: seconds of work, and little to do again."""

GPU_STRETCH = 256
"""Samples that one unit of work takes of a model that may be on a GPU: enough to fill its batches."""

_FAULTS: Mapping[str, type[PenstockError]] = {
    one.__name__: one for one in (*StoreError.__subclasses__(), ModelFailed)
}
"""Errors that a worker may name, and that are raised again; any other name is a `StoreError`."""

_LOST = get_args(Code)
"""Refusals that the engine gave: nothing came back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Rows [start, stop) of one part, for one featurizer."""

    store: RangeReader
    """Store of the part."""
    part: loader.Part
    """The part."""
    kind: str
    """Kind of its samples."""
    featurizer: Featurizer
    """The featurizer."""
    start: int
    """First row."""
    stop: int
    """Row behind the last one."""
    place: str = ""
    """Device of a model, "cpu" or "cuda:0"; "": as the worker is bound."""
    gone: frozenset[int] = frozenset()
    """Rows that no version has any more; nothing is computed for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Outcome of one sample: features, a refusal, or neither where it is gone."""

    key: str
    """Key of the sample."""
    features: Features | None = None
    """Features; None for a sample that is refused or gone."""
    code: str = ""
    """Code of the refusal; "" for none."""
    reason: str = ""
    """Reason of the refusal; "" for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The rows of a stretch, or the fault that is no sample's: a store or a model that does not answer."""

    rows: tuple[Row, ...] = ()
    """Rows in the order of the part."""
    fault: str = ""
    """Name of one of `_FAULTS`; "" for none."""
    reason: str = ""
    """Text of the fault."""


def inputs_of(featurizer: Featurizer, kind: str, part: loader.Part) -> dict[str, str]:
    """Return input -> the part's field for it, of the inputs that it has (a caption may be missing).

    Empty: nothing is to be taken there. A dataset's photos lie in one of two fields, by its policy; a featurizer that
    wants one of them takes the other as well. Of other formats it takes the only field that ends so (`image.jpg`).
    """
    there = {field for shard in part.shards for field in shard.field_nbytes}
    found = {}
    for field in featurizer.inputs.get(kind, ()):
        others = PHOTO_WORDS if kind == "image" and field in PHOTO_WORDS else ()
        words = field, *others
        ending = sorted(name for name in there if name.rpartition(".")[2] in words)
        stored = next((name for name in words if name in there), ending[0] if len(ending) == 1 else None)
        if stored is not None:
            found[field] = stored
    return found


def featurize(stretch: Stretch) -> Made:
    """Compute the features of a stretch, in a worker. Raises: Corrupt where the bytes of samples have changed."""
    inputs = inputs_of(stretch.featurizer, stretch.kind, stretch.part)
    keys: list[str] = []

    def samples() -> Iterator[Mapping[str, bytes]]:
        rows = range(stretch.start, stretch.stop)
        stored_rows = read_part(stretch.store, stretch.part, list(inputs.values()), rows)
        for at, (key, sample) in zip(rows, stored_rows, strict=True):
            keys.append(key)
            if at not in stretch.gone:
                yield {field: sample[stored] for field, stored in inputs.items()}

    try:
        made = list(_made(stretch, samples()))
    except (StoreError, ModelFailed) as error:
        return Made(fault=type(error).__name__, reason=str(error))
    except (InvalidWeights, MissingDependency) as error:
        return Made(fault=ModelFailed.__name__, reason=str(error))
    left = iter(made)
    rows = enumerate(keys, stretch.start)
    return Made(rows=tuple(Row(key=key) if at in stretch.gone else _row(key, next(left)) for at, key in rows))


def _made(stretch: Stretch, samples: Iterable[Mapping[str, bytes]]) -> Iterable[Features | Unusable]:
    if isinstance(stretch.featurizer, ModelFeaturizer):
        return stretch.featurizer.features(stretch.kind, samples, stretch.place or place_here())
    return (_one(stretch.featurizer, stretch.kind, sample) for sample in samples)


def _one(featurizer: Featurizer, kind: str, sample: Mapping[str, bytes]) -> Features | Unusable:
    try:
        return featurizer(kind, sample)
    except Unusable as unusable:
        return unusable


def _row(key: str, made: Features | Unusable) -> Row:
    if isinstance(made, Unusable):
        return Row(key=key, code=made.code, reason=made.reason)
    return Row(key=key, features=made)


def compute_part(
    store: RangeReader,
    compute: Compute,
    featurizer: Featurizer,
    kind: str,
    part: loader.Part,
    timeout_s: float,
    progress: Progress | None = None,
    gone: frozenset[int] = frozenset(),
) -> Iterator[Row]:
    """Yield the rows of all samples of a part, in its order, as they come.

    A sample that no worker survives is a refusal. gone: rows that nothing is computed of.

    Raises: StoreError; ModelFailed, also for a model that no sample of a stretch survives.
    """
    gpus, length = gpus_of(featurizer), stretch_of(featurizer)
    work = [
        Stretch(
            store=store,
            part=part,
            kind=kind,
            featurizer=featurizer,
            start=start,
            stop=min(start + length, part.n_rows),
            gone=gone.intersection(range(start, start + length)),
        )
        for start in range(0, part.n_rows, length)
    ]
    for stretch, outcome in zip(work, _outcomes(compute, work, gpus, timeout_s, progress), strict=True):
        if outcome.value is not None:
            yield from sound(outcome.value)
            continue
        alone = [
            replace(stretch, start=at, stop=at + 1, gone=stretch.gone & {at})
            for at in range(stretch.start, stretch.stop)
        ]
        keys = [key for key, _ in read_part(store, part, [], range(stretch.start, stretch.stop))]
        rows = list(_one_by_one(keys, _outcomes(compute, alone, gpus, timeout_s)))
        if (
            isinstance(featurizer, ModelFeaturizer)
            and len(rows) > 1
            and all(row.code in _LOST for row in rows)
        ):
            raise ModelFailed(f"no sample from {keys[0]!r} to {keys[-1]!r} survives it: {rows[0].reason}")
        yield from rows


def _outcomes(
    compute: Compute,
    work: Sequence[Stretch],
    gpus: Sequence[str],
    timeout_s: float,
    progress: Progress | None = None,
) -> Iterator[Outcome[Made]]:
    """Yield the outcome of every stretch, in order. gpus: those that workers take, one each."""
    variables = store_variables(
        *(one.store for one in work[:1]), *weights_of(*(one.featurizer for one in work[:1]))
    )
    return compute.map(
        featurize, work, timeout_s=timeout_s, progress=progress, variables=variables, gpus=gpus
    )


def gpus_of(featurizer: Featurizer) -> tuple[str, ...]:
    """Return the GPUs of this machine that workers take for a featurizer, one each; none for those without a model."""
    return gpus_for(featurizer.device) if isinstance(featurizer, ModelFeaturizer) else ()


def stretch_of(featurizer: Featurizer) -> int:
    """Return the number of samples that one unit of work takes."""
    may_be_on_gpu = isinstance(featurizer, ModelFeaturizer) and featurizer.device != "cpu"
    return GPU_STRETCH if may_be_on_gpu else STRETCH


def weights_of(*featurizers: Featurizer) -> list[str]:
    """Return the URLs of weights that workers read for them beside the samples."""
    return [one.weights for one in featurizers if isinstance(one, ModelFeaturizer)]


def sound(made: Made) -> Sequence[Row]:
    """Return the rows. Raises: StoreError; ModelFailed."""
    if made.fault:
        raise _FAULTS.get(made.fault, StoreError)(made.reason)
    return made.rows


def _one_by_one(keys: Sequence[str], outcomes: Iterable[Outcome[Made]]) -> Iterator[Row]:
    for key, outcome in zip(keys, outcomes, strict=True):
        if outcome.value is not None:
            yield from sound(outcome.value)
        elif outcome.error is not None:
            yield Row(key=key, code=outcome.error.code, reason=outcome.error.summary[:500])
