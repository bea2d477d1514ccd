"""Run a featurizer over the parts of a batch, on a cluster's nodes or in this process's workers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import loader
from loader.errors import (
    FeaturizerFailed,
    InvalidRuntime,
    InvalidWeights,
    MissingDependency,
    ModelFailed,
    PenstockError,
)
from loader.storage import RangeReader, Store
from penstock.compute.job import Job, store_url
from penstock.compute.local_blocks import Jobs, discard, job_blocks
from penstock.compute.pool import Compute
from penstock.compute.work import Node, Resources, Work
from penstock.stages import StageRecord, fingerprint

from ..featurizers import Featurizer
from ..featurizers.models import ModelFeaturizer, machine_facts
from ..featurizers.models.weights import weights_store
from ..pipeline.stages import PipelineStage, check_written
from ..pipeline.tables import write_wide_table
from .compute import (
    RANGE,
    SampleRange,
    code_failure,
    compute_part,
    featurize,
    model_here,
    range_length,
    rows_or_raise,
)
from .names import FeatureNames, featurizer_facts
from .plain_featurizer import PlainFeaturizer, plain_featurizer
from .store_features import StoredFeatures, store_part

CODE_VERSION = "1"
_SAMPLE_S = 0.05
"""Estimated seconds per sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTask:
    """A part to run one featurizer on."""

    root: str
    """URL of the root's store."""
    part: dict[str, Any]
    """Part, as JSON."""
    kind: str
    """Kind of the part's samples."""
    featurizer: PlainFeaturizer
    names: FeatureNames
    """Names of its fields."""
    removed: list[int]
    """Rows that no version contains any more."""
    txn: str | None
    """Transaction of the shard; None: the part's own."""
    stretch_s: float
    """Time limit per range of samples, in s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFeatures:
    """Features of a part."""

    shards: list[dict[str, Any]] = field(default_factory=list)
    """New shard as JSON; empty for a featurizer without fields."""
    table: list[list[tuple[str, Any]]] = field(default_factory=list)
    """(column, value) pairs per sample."""
    ran_on: dict[str, str | int] = field(default_factory=dict)
    """`machine_facts` of a model; else empty."""
    fault: str = ""
    """Why the model does not run on the node; "" if it does."""
    code_fault: str = ""
    """Why the featurizer's code fails, or cannot be imported on the node; "" if it runs."""
    not_allowed: str = ""
    """Why the node may not run the featurizer, so that the waiting process does; "" if it may."""


def part_features(task: PartTask, node: Node) -> PartFeatures:
    """Compute the features of a part and write its shard. Raises: StoreError; as `store_part`."""
    store = node.open(task.root)
    part = loader.Part.from_json(task.part)
    stored = StoredFeatures()
    try:
        featurizer = task.featurizer.build(node.packages)
    except InvalidRuntime as error:
        return PartFeatures(not_allowed=str(error))
    except (ImportError, SyntaxError, AttributeError) as error:
        where = f"to import, as {task.featurizer.place}"
        return PartFeatures(code_fault=code_failure(task.featurizer.place, error, where))
    whole = SampleRange(
        store=store,
        part=part,
        kind=task.kind,
        featurizer=featurizer,
        stop=part.n_rows,
        place=node.place,
        removed=frozenset(task.removed),
    )
    ranges = whole.split(range_length(featurizer))
    # Lazy: `store_part` writes each range before the next is computed, so memory stays at one range.
    rows = chain.from_iterable(rows_or_raise(featurize(sample_range)) for sample_range in ranges)
    try:
        if isinstance(featurizer, ModelFeaturizer):
            ran_on = machine_facts(featurizer, node.place)
        else:
            ran_on = {}
        store_part(store, featurizer, task.names, task.kind, part, rows, stored, task.txn)
    except (InvalidWeights, MissingDependency, ModelFailed) as error:
        return PartFeatures(fault=str(error))
    except FeaturizerFailed as error:
        return PartFeatures(code_fault=str(error))
    return PartFeatures(
        shards=stored.shards,
        table=[list(row.items()) for row in stored.table],
        ran_on=ran_on,
    )


def _n_rows(task: PartTask) -> int:
    return int(task.part["n_rows"])


def _limit_s(task: PartTask) -> float:
    # The limit is per range of samples. An empty part has one range's time too.
    n_ranges = math.ceil(_n_rows(task) / RANGE)
    return task.stretch_s * max(1, n_ranges)


def _cost_s(task: PartTask) -> float:
    return _SAMPLE_S * _n_rows(task)


FEATURES = Work(
    name="features",
    version="1",
    function=part_features,
    unit=PartTask,
    result=PartFeatures,
    timeout_s=_limit_s,
    cost_s=_cost_s,
    libraries=("numpy", "pillow", "av", "scipy", "imagehash"),
)

MODEL_FEATURES = replace(
    FEATURES,
    name="model-features",
    resources=Resources(gpus=1),
    libraries=(*FEATURES.libraries, "torch", "safetensors", "transformers", "diffusers", "timm"),
)
"""Work for a model that may run on a GPU: one worker per GPU."""
CPU_MODEL_FEATURES = replace(MODEL_FEATURES, name="cpu-model-features", resources=Resources())
"""Work for a model on CPUs: one worker per core."""


def featurizer_work(featurizer: Featurizer) -> Work[PartTask, PartFeatures]:
    if not isinstance(featurizer, ModelFeaturizer):
        return FEATURES
    if featurizer.device == "cpu":
        return CPU_MODEL_FEATURES
    return MODEL_FEATURES


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureInput:
    """One part to run a featurizer on."""

    kind: str
    """Kind of the part's samples."""
    part: loader.Part
    removed: frozenset[int] = frozenset()
    """Rows that no version contains any more; they get no features."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeaturesOf:
    """A featurizer and the batch to run it on."""

    store: Store
    """Root's store."""
    reader: RangeReader
    """Reader of the parts' shards."""
    featurizer: Featurizer
    names: FeatureNames
    """Names of its fields."""
    stage: str
    units: StageRecord
    """Record of the batch's units."""
    digest: str
    """Fingerprint of the record of the features."""
    attempt: Sequence[Any]
    """Further values that decide the features."""
    timeout_s: float
    """Time limit per range of samples, in s."""
    txn: str | None = None
    """A refresh's transaction, which publishes the shards; None: they go with their parts, in the batch's own."""


class BatchFeatures:
    """Computes and stores the features of a batch, part by part."""

    def __init__(self, compute: Compute, of: FeaturesOf) -> None:
        self._compute = compute
        self._of = of
        model = None
        if isinstance(of.featurizer, ModelFeaturizer):
            model = of.featurizer
        weights = None
        if model:
            weights = weights_store(model.weights)
        self._model = model
        self._job: Job[PartTask, PartFeatures] = Job(
            store=of.store,
            work=featurizer_work(of.featurizer),
            about=f"{of.units.dataset}/{of.stage}/{of.units.partition}",
            fingerprint=fingerprint(of.digest, *of.attempt),
            stores=[of.store, *([weights] if weights else [])],
        )

    def store(self, inputs: Sequence[FeatureInput]) -> StoredFeatures:
        """Compute and store the features of parts. A model runs all of them on one kind of machine.

        Raises: ModelFailed if the machines differ; FeaturizerFailed; as `compute_part`, `store_part` and `job_blocks`.
        """
        plain = self._plain()
        if plain is not None:
            done = self._on_cluster(inputs, plain)
        else:
            done = [None] * len(inputs)
        stored = StoredFeatures()
        of = self._of
        if self._model is not None and inputs:
            stored.model.update(self._facts(self._model, inputs, done))
        for item, features in zip(inputs, done, strict=True):
            if features is not None:
                check_written(features.shards, of.txn or item.part.txn, item.part.id)
                stored.shards.extend(features.shards)
                stored.table.extend(map(dict, features.table))
                stored.parts.append([item.part.id, item.kind, len(features.table)])
                continue
            whole = SampleRange(
                store=of.reader,
                part=item.part,
                kind=item.kind,
                featurizer=of.featurizer,
                stop=item.part.n_rows,
                removed=item.removed,
            )
            rows = compute_part(self._compute, whole, of.timeout_s)
            store_part(of.store, of.featurizer, of.names, item.kind, item.part, rows, stored, of.txn)
        return stored

    def publish(
        self,
        root: loader.Root,
        inputs: Sequence[FeatureInput],
        run_id: str,
        max_reject_rate: float,
    ) -> tuple[StageRecord, list[dict[str, Any]]]:
        """Compute and store the features of parts, then append their record; return it and its rows.

        The verdict is "failed" above max_reject_rate, 0 to 1. Raises: as `store`.
        """
        of = self._of
        units = of.units
        body = featurizer_facts(of.featurizer, of.names)
        txn = of.txn or units.body["txn"]
        # Garbage collection treats a transaction without heartbeats as abandoned; models run for hours.
        with root.heartbeat(txn):
            stored = self.store(inputs)
        reason = refusal_reason(of.featurizer.name, stored, max_reject_rate)
        body |= stored.model | {"shards": stored.shards}
        if of.txn:
            # For `refresh_release`, which publishes them later: the part of each row, the group, and the transaction.
            body |= {"taken": stored.parts, "group": of.names.group, "refresh": of.txn}
        stage = PipelineStage(
            store=of.store,
            dataset=units.dataset,
            name=of.stage,
            partition=units.partition,
            run_id=run_id,
            code_version=f"{CODE_VERSION}/{of.featurizer.version}",
        )
        table = write_wide_table(of.store, units.dataset, of.stage, units.partition, stored.table)
        record = stage.append(
            fingerprint=of.digest,
            reason=reason,
            files={of.stage: table},
            reads=[units],
            counts=stored.counts,
            body=body,
        )
        # The job goes last: until the record exists, a killed run resumes from the job.
        discard(self._compute, self._job)
        return record, stored.table

    def _plain(self) -> PlainFeaturizer | None:
        """Return the featurizer as a cluster's nodes take it; None if this process must run it."""
        of = self._of
        # Another reader means shards outside the root, which nodes have no credentials for.
        if not isinstance(self._compute, Jobs) or of.reader is not of.store:
            return None
        if self._model is not None and ":" in self._model.device:  # a GPU of this machine
            return None
        return plain_featurizer(of.featurizer)

    def _facts(
        self, model: ModelFeaturizer, inputs: Sequence[FeatureInput], done: Sequence[PartFeatures | None]
    ) -> dict[str, Any]:
        """Return the facts of model and machine. done: per input its features; None for this process to compute."""
        here: dict[str, str | int] = {}
        if None in done:
            here = model_here(self._compute, model, self._of.timeout_s)
        ran_on: dict[str, dict[str, str | int]] = {}  # part id -> facts of the machine
        for item, features in zip(inputs, done, strict=True):
            ran_on[item.part.id] = here
            if features is not None:
                ran_on[item.part.id] = features.ran_on
        # The last bits of a model's output depend on GPU and libraries; one feature must not mix them.
        (first, facts), *others = ran_on.items()
        for part, other in others:
            if other != facts:
                discard(self._compute, self._job)  # otherwise the next run would find the same parts
                raise ModelFailed(
                    f"featurizer {model.name!r}: part {first} was computed on {_words(facts)}, part {part} on "
                    f"{_words(other)}{' (here)' if other is here else ''}: they may differ in their last bits. Name "
                    "one kind of node in the cluster's file (`gpu_type`, `queue`, `node_selector`), and run it again",
                    what=model.name,
                    where=part,
                    given=_words(other),
                    accepted=_words(facts),
                )
        stated = {"weights": model.weights, "weights_sha256": model.sha256, "dtype": model.dtype}
        return {**stated, **facts}

    def _log(self, line: str) -> None:
        if isinstance(self._compute, Jobs):
            self._compute.tell(line)

    def _on_cluster(
        self, inputs: Sequence[FeatureInput], plain: PlainFeaturizer
    ) -> list[PartFeatures | None]:
        """Return each part's features, computed on nodes; None for a part that this process must compute."""
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
        for block in job_blocks(self._compute, self._job, lambda: tasks):
            # Blocks are in order, and strict=False since `inputs[block.first:]` goes on to the last block.
            remaining_inputs = inputs[block.first :]
            for item, outcome in zip(remaining_inputs, block.outcomes, strict=False):
                features = outcome.value
                why = ""
                if outcome.error:
                    why = outcome.error.summary
                if features is not None and features.not_allowed:
                    why = features.not_allowed
                    features = None
                if features is None:
                    self._log(f"part {item.part.id} is computed here: {why}")
                computed.append(features)
        for item, features in zip(inputs, computed, strict=True):
            if features is not None and (fault := features.fault or features.code_fault):
                discard(self._compute, self._job)  # otherwise the next run would find the same fault
                failed: type[PenstockError] = FeaturizerFailed
                if features.fault:
                    failed = ModelFailed
                name = of.featurizer.name
                message = f"featurizer {name!r} fails on a node, at part {item.part.id}: {fault}"
                raise failed(message, what=name, where=item.part.id, given=fault)
        return computed


def _words(facts: Mapping[str, str | int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(facts.items()))


def refusal_reason(featurizer: str, stored: StoredFeatures, max_reject_rate: float) -> str:
    """Return why a batch's features may not be published, or ""."""
    n_samples = len(stored.table)
    if stored.refused <= max_reject_rate * n_samples:
        return ""
    first = next(row for row in stored.table if row["code"])
    return (
        f"featurizer {featurizer!r} refuses {stored.refused} of {n_samples} samples, max_reject_rate of the dataset "
        f"allows {max_reject_rate:.1%}. First: {first['key']!r} ({first['code']}: {first['reason']}); the table of the "
        "record lists them. Repair the featurizer or the samples, or raise the limit, and run the batch again"
    )
