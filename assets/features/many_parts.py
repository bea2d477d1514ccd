"""Run a featurizer over the parts of a batch, on a cluster's nodes or in this process's workers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import loader
from loader.errors import ModelFailed
from loader.storage import RangeReader, Store
from penstock.compute.job import Job, store_url
from penstock.compute.local_blocks import Jobs, blocks_of, discard
from penstock.compute.pool import Compute, Progress
from penstock.stages import StageRecord, append_record

from ..featurizers import Featurizer
from ..featurizers.models import ModelFeaturizer
from ..featurizers.models.weights import weights_store
from ..stages import check_written
from .compute import StoredFeatures, compute_part, model_here, store_part
from .names import FeatureNames
from .part_work import PartFeatures, PartTask, PlainFeaturizer, plain_featurizer, work_of


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureInput:
    """One part to run a featurizer on."""

    kind: str
    """Kind of the part's samples."""
    part: loader.Part
    """The part."""
    removed: frozenset[int] = frozenset()
    """Rows that are in no version any more; they get no features."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeaturesOf:
    """A featurizer and the batch to run it on."""

    store: Store
    """The root's store."""
    reader: RangeReader
    """Reader of the parts' shards: the store, or one that also reads shards in place."""
    featurizer: Featurizer
    """The featurizer."""
    names: FeatureNames
    """Names of its fields."""
    about: str
    """Human-readable name: 'demo/feature_mel/b000007'."""
    fingerprint: str
    """Hash of everything that decides the features."""
    timeout_s: float
    """Time limit for a range of samples."""
    txn: str | None = None
    """Transaction of the new shards; None for the parts' own."""


class BatchFeatures:
    """Computes and stores the features of a batch, part by part."""

    def __init__(self, compute: Compute, of: FeaturesOf, progress: Progress | None = None) -> None:
        self._compute, self._of, self._progress = compute, of, progress
        model = of.featurizer if isinstance(of.featurizer, ModelFeaturizer) else None
        weights = weights_store(model.weights) if model else None
        self._model = model
        self._job: Job[PartTask, PartFeatures] = Job(
            store=of.store,
            work=work_of(of.featurizer),
            about=of.about,
            fingerprint=of.fingerprint,
            stores=[of.store, *([weights] if weights else [])],
        )

    def store(self, inputs: Sequence[FeatureInput]) -> StoredFeatures:
        """Compute and store the features of parts. A model runs all of them on one kind of machine.

        Raises: ModelFailed if the machines differ; as `compute_part`, `store_part` and `blocks_of`.
        """
        plain = self._plain()
        done = self._on_cluster(inputs, plain) if plain is not None else [None] * len(inputs)
        stored, of = StoredFeatures(), self._of
        if self._model is not None and inputs:
            stored.model.update(self._facts(self._model, inputs, done))
        for item, features in zip(inputs, done, strict=True):
            if features is not None:
                check_written(features.shards, of.txn or item.part.txn, item.part.id)
                stored.shards.extend(features.shards)
                stored.table.extend(map(dict, features.table))
                stored.parts.append([item.part.id, item.kind, len(features.table)])
                continue
            rows = compute_part(
                of.reader,
                self._compute,
                of.featurizer,
                item.kind,
                item.part,
                of.timeout_s,
                self._progress,
                item.removed,
            )
            store_part(of.store, of.featurizer, of.names, item.kind, item.part, rows, stored, of.txn)
        return stored

    def recorded(self, record: StageRecord) -> StageRecord:
        """Append the batch's record, then delete the job's folder."""
        published = append_record(self._of.store, record)
        discard(self._compute, self._job)
        return published

    def _plain(self) -> PlainFeaturizer | None:
        of = self._of
        if not isinstance(self._compute, Jobs) or of.reader is not of.store:
            return None
        if self._model is not None and ":" in self._model.device:  # a GPU of this machine
            return None
        return plain_featurizer(of.featurizer)

    def _facts(
        self, model: ModelFeaturizer, inputs: Sequence[FeatureInput], done: Sequence[PartFeatures | None]
    ) -> dict[str, Any]:
        here = model_here(self._compute, model, self._of.timeout_s) if None in done else {}
        ran_on = {
            one.part.id: here if part is None else part.ran_on for one, part in zip(inputs, done, strict=True)
        }
        (first, facts), *others = ran_on.items()
        for part, other in others:
            if other != facts:
                discard(self._compute, self._job)  # otherwise the next run would find the same parts
                raise ModelFailed(
                    f"featurizer {model.name!r}: part {first} was computed on {_words(facts)}, part {part} on "
                    f"{_words(other)}{' (here)' if other is here else ''}: they may differ in their last bits. Name "
                    "one kind of node in the cluster's file (`gpu_type`, `queue`, `node_selector`), and run it again"
                )
        stated = {"weights": model.weights, "weights_sha256": model.sha256, "dtype": model.dtype}
        return {**stated, **facts}

    def _log(self, line: str) -> None:
        if isinstance(self._compute, Jobs):
            self._compute.tell(line)

    def _on_cluster(
        self, inputs: Sequence[FeatureInput], plain: PlainFeaturizer
    ) -> list[PartFeatures | None]:
        of = self._of
        tasks = [
            PartTask(
                root=store_url(of.store),
                part=one.part.to_json(),
                kind=one.kind,
                featurizer=plain,
                names=of.names,
                removed=sorted(one.removed),
                txn=of.txn,
                stretch_s=of.timeout_s,
            )
            for one in inputs
        ]
        computed = list[PartFeatures | None]()
        for block in blocks_of(self._compute, self._job, lambda: tasks, self._progress):
            for item, outcome in zip(inputs[block.first :], block.outcomes, strict=False):
                if outcome.error is not None:
                    self._log(f"part {item.part.id} is computed here: {outcome.error.summary}")
                computed.append(outcome.value)
        for item, features in zip(inputs, computed, strict=True):
            if features is not None and features.fault:
                discard(self._compute, self._job)  # otherwise the next run would find the same fault
                raise ModelFailed(
                    f"featurizer {of.featurizer.name!r} fails on a node, at part {item.part.id}: {features.fault}"
                )
        return computed


def _words(facts: Mapping[str, str | int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(facts.items()))
