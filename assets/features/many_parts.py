"""A featurizer over the parts of a batch: on a cluster's nodes, or by workers of the process that waits."""

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
from .compute import compute_part
from .names import Names
from .part_work import PartFeatures, PartTask, PlainFeaturizer, plain_featurizer, work_of
from .store import Stored, model_here, store_part


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A part whose samples a featurizer takes."""

    kind: str
    """Kind of its samples."""
    part: loader.Part
    """The part."""
    gone: frozenset[int] = frozenset()
    """Rows that no version has any more; nothing is computed for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeaturesOf:
    """A featurizer over a batch."""

    store: Store
    """Store of the root."""
    reader: RangeReader
    """Reader of the parts' shards: the store, or one that also finds those in other places."""
    featurizer: Featurizer
    """The featurizer."""
    names: Names
    """Names of its fields."""
    about: str
    """Words for people: 'demo/feature_mel/b000007'."""
    fingerprint: str
    """Everything that decides the features."""
    timeout_s: float
    """Seconds that a stretch of samples may take."""
    txn: str | None = None
    """Transaction of the shards; None for that of the parts."""


class BatchFeatures:
    """The features of a batch, computed and stored part by part."""

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

    def store(self, taken: Sequence[Taken]) -> Stored:
        """Compute and store the features of parts. A model computes all of them on one kind of machine.

        Raises: ModelFailed where it does not; as `compute_part` and `store_part`; as `blocks_of`.
        """
        plain = self._plain()
        done = self._on_cluster(taken, plain) if plain is not None else [None] * len(taken)
        stored, of = Stored(), self._of
        if self._model is not None and taken:
            stored.model.update(self._facts(self._model, taken, done))
        for one, features in zip(taken, done, strict=True):
            if features is not None:
                check_written(features.shards, of.txn or one.part.txn, one.part.id)
                stored.shards.extend(features.shards)
                stored.table.extend(map(dict, features.table))
                stored.taken.append([one.part.id, one.kind, len(features.table)])
                continue
            rows = compute_part(
                of.reader,
                self._compute,
                of.featurizer,
                one.kind,
                one.part,
                of.timeout_s,
                self._progress,
                one.gone,
            )
            store_part(of.store, of.featurizer, of.names, one.kind, one.part, rows, stored, of.txn)
        return stored

    def recorded(self, record: StageRecord) -> StageRecord:
        """Append the batch's record; the job's folder goes with it."""
        published = append_record(self._of.store, record)
        discard(self._compute, self._job)
        return published

    def _plain(self) -> PlainFeaturizer | None:
        """Return the featurizer as nodes make it; None where this process computes."""
        of = self._of
        if not isinstance(self._compute, Jobs) or of.reader is not of.store:
            return None
        if self._model is not None and ":" in self._model.device:  # a GPU of this machine
            return None
        return plain_featurizer(of.featurizer)

    def _facts(
        self, model: ModelFeaturizer, taken: Sequence[Taken], done: Sequence[PartFeatures | None]
    ) -> dict[str, Any]:
        """Return the record's facts of a model, loaded here if parts are left. Raises: ModelFailed."""
        here = model_here(self._compute, model, self._of.timeout_s) if None in done else {}
        ran_on = {
            one.part.id: here if part is None else part.ran_on for one, part in zip(taken, done, strict=True)
        }
        (first, facts), *others = ran_on.items()
        for part, other in others:
            if other != facts:
                discard(self._compute, self._job)  # or the next run would find the same parts
                raise ModelFailed(
                    f"featurizer {model.name!r}: part {first} was computed on {_words(facts)}, part {part} on "
                    f"{_words(other)}{' (here)' if other is here else ''}: they may differ in their last bits. Let the "
                    "cluster's file name one kind of node (`gpu_type`, `queue`, `node_selector`), and run it again"
                )
        stated = {"weights": model.weights, "weights_sha256": model.sha256, "dtype": model.dtype}
        return {**stated, **facts}

    def _tell(self, line: str) -> None:
        if isinstance(self._compute, Jobs):
            self._compute.tell(line)

    def _on_cluster(self, taken: Sequence[Taken], plain: PlainFeaturizer) -> list[PartFeatures | None]:
        """Return the features of each part; None for one that no node could compute, of which this process says why.

        Raises: ModelFailed for a model that does not run on a node.
        """
        of = self._of
        tasks = [
            PartTask(
                root=store_url(of.store),
                part=one.part.to_json(),
                kind=one.kind,
                featurizer=plain,
                names=of.names,
                gone=sorted(one.gone),
                txn=of.txn,
                stretch_s=of.timeout_s,
            )
            for one in taken
        ]
        found = list[PartFeatures | None]()
        for block in blocks_of(self._compute, self._job, lambda: tasks, self._progress):
            for one, outcome in zip(taken[block.first :], block.outcomes, strict=False):
                if outcome.error is not None:
                    self._tell(f"part {one.part.id} is computed here: {outcome.error.summary}")
                found.append(outcome.value)
        for one, features in zip(taken, found, strict=True):
            if features is not None and features.fault:
                discard(self._compute, self._job)  # or the next run would find the same fault
                raise ModelFailed(
                    f"featurizer {of.featurizer.name!r} fails on a node, at part {one.part.id}: {features.fault}"
                )
        return found


def _words(facts: Mapping[str, str | int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(facts.items()))
