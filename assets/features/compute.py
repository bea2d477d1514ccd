"""Compute one featurizer over one part, in workers that read ranges of samples; imports no dagster."""

import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import loader
from loader.dataset.writing.part_extension import read_part
from loader.errors import (
    FeaturizerFailed,
    InvalidField,
    InvalidWeights,
    MissingDependency,
    ModelFailed,
    PenstockError,
    StoreError,
    WorkerFailed,
)
from loader.modalities.array import CLOCK
from loader.storage import RangeReader
from penstock.compute.pool import Compute, Outcome
from penstock.compute.pool.contract import Code
from penstock.compute.pool.environment import place_here, store_variables

from ..featurizers import Features, Featurizer
from ..featurizers.featurizer import EPISODE
from ..featurizers.models import ModelFeaturizer, device_gpus, machine_facts
from ..media.image.open import PHOTO_WORDS
from ..media.unit import Unusable

RANGE = 32
"""Samples per unit of work: seconds."""

GPU_RANGE = 256
"""Samples per unit of work of a model on a GPU: enough to fill its batches."""

_FAULTS: Mapping[str, type[PenstockError]] = {
    one.__name__: one for one in (*StoreError.__subclasses__(), ModelFailed, FeaturizerFailed)
}
"""Errors that a worker may name; others become `StoreError`."""

CODE_ERRORS = (
    *(ImportError, SyntaxError, NameError, AttributeError, TypeError),
    *(NotImplementedError, InvalidField),
)
"""Errors of a featurizer's code: no bytes of a sample may cause them."""

_LOST = get_args(Code)
"""Engine's codes for work without a result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRange:
    """Rows [start, stop) of a part, to run one featurizer on."""

    store: RangeReader
    """Store of the part."""
    part: loader.Part
    """Part that contains the samples."""
    kind: str
    """Kind of the part's samples."""
    featurizer: Featurizer
    start: int = 0
    """First row."""
    stop: int
    """Row after the last."""
    place: str = ""
    """"cpu" or "cuda:0"; "": the worker's own."""
    removed: frozenset[int] = frozenset()
    """Rows that no version contains any more; they get no features."""

    def split(self, length: int) -> "list[SampleRange]":
        """Return ranges of at most `length` samples, in order."""
        starts = range(self.start, self.stop, length)
        stops = [min(start + length, self.stop) for start in starts]
        return [
            replace(
                self,
                start=start,
                stop=stop,
                removed=self.removed.intersection(range(start, stop)),
            )
            for start, stop in zip(starts, stops, strict=True)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureRow:
    """A sample's features or refusal; neither if its row is removed."""

    key: str
    """Key of the sample."""
    features: Features | None = None
    """Features of the sample; None if refused or removed."""
    code: str = ""
    """Code of the refusal or ""."""
    reason: str = ""
    """Reason of the refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeResult:
    """Rows of a range, or the store's or model's fault."""

    rows: tuple[FeatureRow, ...] = ()
    """Rows, in the order of the part."""
    fault: str = ""
    """Name in `_FAULTS` or ""."""
    reason: str = ""
    """Text of the fault."""


def part_fields(part: loader.Part) -> frozenset[str]:
    return frozenset(field for shard in part.shards for field in shard.field_nbytes)


def feature_kind(featurizer: Featurizer, kind: str, part: loader.Part) -> str:
    """Return the kind as which a featurizer takes a part's samples: "episode" if both are of episodes, else `kind`.

    Samples with a clock are episodes. Samples with actions are, too, unless they are a clip with its labels.
    """
    fields = part_fields(part)
    has_clock = any(field.endswith(CLOCK) for field in fields)
    has_actions = bool(fields & {"action.npy", "actions.npy"})
    # A clip with its labels has a plain field, such as mp4, beside action.npy; each field of an episode has a dot.
    has_plain_field = any("." not in field for field in fields)
    is_episode = has_clock or (has_actions and not has_plain_field)
    if is_episode and EPISODE in featurizer.inputs:
        return EPISODE
    return kind


def part_inputs(featurizer: Featurizer, kind: str, part: loader.Part) -> dict[str, str]:
    """Return input -> the part's field for it, for the inputs that the part has.

    Either field of a photo serves, or the only field with the input's ending (`image.jpg`). `*.ns.npy` is every field
    with this ending.
    """
    available = part_fields(part)
    fields: dict[str, str] = {}
    for wanted_field in featurizer.inputs.get(kind, ()):
        if wanted_field.startswith("*"):
            fields |= {name: name for name in sorted(available) if name.endswith(wanted_field[1:])}
            continue
        words: tuple[str, ...] = (wanted_field,)
        if kind == "image" and wanted_field in PHOTO_WORDS:
            # jpg and png name one thing, a photo: a featurizer of one reads the other too.
            words = (wanted_field, *PHOTO_WORDS)
        exact = [name for name in words if name in available]
        similar = [name for name in available if name.rpartition(".")[2] in words]
        # An exact name wins. Two fields with the ending are ambiguous: the part lacks the input.
        if exact:
            fields[wanted_field] = exact[0]
        elif len(similar) == 1:
            fields[wanted_field] = similar[0]
    return fields


def featurize(sample_range: SampleRange) -> RangeResult:
    """Compute the features of a range, in a worker. Raises: Corrupt if samples were changed."""
    inputs = part_inputs(sample_range.featurizer, sample_range.kind, sample_range.part)
    keys: list[str] = []

    def samples() -> Iterator[Mapping[str, bytes]]:
        rows = range(sample_range.start, sample_range.stop)
        stored_rows = read_part(sample_range.store, sample_range.part, list(inputs.values()), rows)
        for number, (key, sample) in zip(rows, stored_rows, strict=True):
            keys.append(key)
            if number not in sample_range.removed:
                yield {field: sample[stored] for field, stored in inputs.items()}

    try:
        # A list: the errors below must be caught here, not where a lazy result is read.
        results = list(_results(sample_range, samples()))
    except (StoreError, ModelFailed) as error:
        return RangeResult(fault=type(error).__name__, reason=str(error))
    # Missing weights or packages are no reason to refuse a sample, so the whole range fails.
    except (InvalidWeights, MissingDependency) as error:
        return RangeResult(fault=ModelFailed.__name__, reason=str(error))
    except CODE_ERRORS as error:
        where = ""
        if keys:  # a featurizer reads a sample before it fails at it, and a model reads a batch
            where = f"at sample {keys[-1]!r}"
        reason = code_failure(sample_range.featurizer.name, error, where)
        return RangeResult(fault=FeaturizerFailed.__name__, reason=reason)
    # Removed rows have no result, so results align with the remaining rows only.
    remaining = iter(results)
    rows = []
    for number, key in enumerate(keys, sample_range.start):
        row = FeatureRow(key=key)
        if number not in sample_range.removed:
            row = _row(key, next(remaining))
        rows.append(row)
    return RangeResult(rows=tuple(rows))


def code_failure(featurizer: str, error: Exception, where: str) -> str:
    """Return why a featurizer's code fails, with the line that raised the error. where: sample or part."""
    frames = traceback.extract_tb(error.__traceback__)
    line = ""
    if frames:
        line = f" ({frames[-1].filename}:{frames[-1].lineno})"
    return (
        f"featurizer {featurizer!r} failed {where}: {type(error).__name__}: {error}{line}. Nothing was recorded: "
        "repair the featurizer or its environment, and run the batch again. For bytes that it cannot use, a featurizer "
        "raises Unusable"
    )


def _results(
    sample_range: SampleRange, samples: Iterable[Mapping[str, bytes]]
) -> Iterable[Features | Unusable]:
    """Return a result per sample, computed when it is read. A model takes all samples at once, to form batches."""
    featurizer = sample_range.featurizer
    if isinstance(featurizer, ModelFeaturizer):
        device = sample_range.place or place_here()
        return featurizer.features(sample_range.kind, samples, device)
    return (_features_or_refusal(featurizer, sample_range.kind, sample) for sample in samples)


def _features_or_refusal(
    featurizer: Featurizer, kind: str, sample: Mapping[str, bytes]
) -> Features | Unusable:
    try:
        return featurizer(kind, sample)
    except Unusable as unusable:
        return unusable


def _row(key: str, result: Features | Unusable) -> FeatureRow:
    if isinstance(result, Unusable):
        return FeatureRow(key=key, code=result.code, reason=result.reason)
    return FeatureRow(key=key, features=result)


def compute_part(compute: Compute, part: SampleRange, timeout_s: float) -> Iterator[FeatureRow]:
    """Yield the rows of all samples of a range, in order. A sample that kills its worker is refused.

    Raises: StoreError; WorkerFailed; FeaturizerFailed if its code fails; ModelFailed, also if every sample of a unit of
    work kills its worker.
    """
    featurizer = part.featurizer
    variables = store_variables(part.store, *weight_urls(featurizer))
    gpus = featurizer_gpus(featurizer)

    def outcomes(work: Sequence[SampleRange]) -> Iterator[Outcome[RangeResult]]:
        try:
            yield from compute.map(
                featurize,
                work,
                timeout_s=timeout_s,
                variables=variables,
                gpus=gpus,
            )
        except WorkerFailed as error:
            raise WorkerFailed(f"featurizer {featurizer.name!r}: {error}") from error

    ranges = part.split(range_length(featurizer))
    for sample_range, outcome in zip(ranges, outcomes(ranges), strict=True):
        if outcome.value is not None:
            yield from rows_or_raise(outcome.value)
            continue
        # The range killed its worker, or ran too long. Each sample by itself shows which one does.
        row_numbers = range(sample_range.start, sample_range.stop)
        keys = [key for key, _ in read_part(part.store, part.part, [], row_numbers)]
        rows = list(_rows_of_single_samples(keys, outcomes(sample_range.split(1))))
        are_all_lost = all(row.code in _LOST for row in rows)
        # If a model loses its worker at each sample, the model or the machine is at fault: no sample is refused.
        if isinstance(featurizer, ModelFeaturizer) and len(rows) > 1 and are_all_lost:
            raise ModelFailed(
                f"every sample from {keys[0]!r} to {keys[-1]!r} kills its worker: {rows[0].reason}",
                what=featurizer.name,
                where=keys[0],
                given=rows[0].reason,
            )
        yield from rows


def featurizer_gpus(featurizer: Featurizer) -> tuple[str, ...]:
    """Return this machine's GPUs, one per worker; () for a featurizer without a model."""
    if isinstance(featurizer, ModelFeaturizer):
        return device_gpus(featurizer.device)
    return ()


def range_length(featurizer: Featurizer) -> int:
    """Return the number of samples per unit of work."""
    may_be_on_gpu = isinstance(featurizer, ModelFeaturizer) and featurizer.device != "cpu"
    if may_be_on_gpu:
        return GPU_RANGE
    return RANGE


def weight_urls(featurizer: Featurizer) -> list[str]:
    """Return the URLs of the weights that workers read."""
    if isinstance(featurizer, ModelFeaturizer):
        return [featurizer.weights]
    return []


def rows_or_raise(result: RangeResult) -> Sequence[FeatureRow]:
    """Return the rows of a result. Raises: StoreError; ModelFailed; FeaturizerFailed."""
    if result.fault:
        raise _FAULTS.get(result.fault, StoreError)(result.reason)
    return result.rows


def _rows_of_single_samples(
    keys: Sequence[str], outcomes: Iterable[Outcome[RangeResult]]
) -> Iterator[FeatureRow]:
    """Yield a row per sample from the outcomes of ranges of one sample; a lost sample is refused."""
    for key, outcome in zip(keys, outcomes, strict=True):
        if outcome.value is not None:
            yield from rows_or_raise(outcome.value)
        elif outcome.error is not None:
            yield FeatureRow(
                key=key,
                code=outcome.error.code,
                reason=outcome.error.summary[:500],
            )


def model_here(compute: Compute, featurizer: ModelFeaturizer, timeout_s: float) -> dict[str, str | int]:
    """Return facts of this machine, once a worker has loaded the model. Raises: ModelFailed."""
    variables = store_variables(featurizer.weights)
    (outcome,) = compute.map(
        machine_facts,
        [featurizer],
        timeout_s=timeout_s,
        variables=variables,
        gpus=featurizer_gpus(featurizer),
    )
    if outcome.value is None:
        reason = ""
        if outcome.error:
            reason = outcome.error.summary
        raise ModelFailed(
            f"featurizer {featurizer.name!r} cannot be loaded: {reason}", what=featurizer.name, given=reason
        )
    return outcome.value
