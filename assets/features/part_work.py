"""Works that compute a part's features on a node, which reads the samples from the store and writes the shard.

A featurizer is sent as class and parameters. A worker loads a model's weights once. If a sample kills its worker, the
node leaves the part to the submitting machine, which refuses only that sample.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from itertools import chain
from typing import Any

import loader
from loader.errors import Corrupt, InvalidRuntime, InvalidWeights, MissingDependency, ModelFailed
from penstock.compute.plain import from_json, from_mapping, to_json
from penstock.compute.work import Node, Resources, Work

from ..featurizers import Featurizer
from ..featurizers.models import ModelFeaturizer, machine_facts
from .compute import (
    RANGE,
    FeatureRow,
    SampleRange,
    StoredFeatures,
    featurize,
    range_length,
    rows_or_raise,
    store_part,
)
from .names import FeatureNames

_SAMPLE_S = 0.05
"""Estimated seconds per sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainFeaturizer:
    """A featurizer as its class and parameters."""

    place: str
    """Class, as 'module:class'."""
    parameters: dict[str, Any]
    """Field -> JSON value."""

    def build(self, packages: Sequence[str]) -> Featurizer:
        """Return the featurizer. Raises: InvalidRuntime if it or its network is outside these packages."""
        network = str(self.parameters.get("network", ""))
        for what, place in (("featurizer", self.place), ("network", network)):
            if ":" in place and place.partition(":")[0].partition(".")[0] not in packages:
                raise InvalidRuntime(
                    f"{what} {place!r} is not in the accepted packages {', '.join(sorted(packages))}: add its package "
                    "to `packages` in the cluster's file"
                )
        return self.load()

    def load(self) -> Featurizer:
        """Return the featurizer, whatever package it is from."""
        module, _, name = self.place.partition(":")
        featurizer: Featurizer = from_mapping(self.parameters, getattr(import_module(module), name))
        return featurizer


def plain_featurizer(featurizer: Featurizer) -> PlainFeaturizer | None:
    """Return a featurizer as class and parameters; None if rebuilding it from them gives an unequal one."""
    kind = type(featurizer)
    try:
        text = to_json(
            PlainFeaturizer(place=f"{kind.__module__}:{kind.__qualname__}", parameters=asdict(featurizer))
        )
        plain = from_json(text, PlainFeaturizer, "a featurizer")
        again = plain.load()
    except (TypeError, ValueError, AttributeError, Corrupt):  # parameters not plain, or a local class
        return None
    return plain if again == featurizer else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTask:
    """A part to run one featurizer on."""

    root: str
    """URL of the root's store."""
    part: dict[str, Any]
    """The part, as JSON."""
    kind: str
    """Kind of the part's samples."""
    featurizer: PlainFeaturizer
    """The featurizer."""
    names: FeatureNames
    """Names of its fields."""
    removed: list[int]
    """Rows that are in no version any more."""
    txn: str | None
    """Transaction of the shard; None for the part's own."""
    stretch_s: float
    """Time limit for a range of samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFeatures:
    """Features of a part."""

    shards: list[dict[str, Any]] = field(default_factory=list)
    """The shard as JSON; empty for a featurizer without fields."""
    table: list[list[tuple[str, Any]]] = field(default_factory=list)
    """(column, value) pairs of each sample, in the featurizer's order."""
    ran_on: dict[str, str | int] = field(default_factory=dict)
    """Machine facts that decide a model's bits, from `machine_facts`; else empty."""
    fault: str = ""
    """Why the model does not run on the node; "" if it does."""


def part_features(task: PartTask, node: Node) -> PartFeatures:
    """Compute the features of a part and write its shard. Raises: StoreError; as `store_part`."""
    store, part = node.open(task.root), loader.Part.from_json(task.part)
    featurizer, stored = task.featurizer.build(node.packages), StoredFeatures()
    removed, length = frozenset(task.removed), range_length(featurizer)

    def rows() -> Iterator[FeatureRow]:
        ranges = (
            SampleRange(
                store=store,
                part=part,
                kind=task.kind,
                featurizer=featurizer,
                start=start,
                stop=min(start + length, part.n_rows),
                place=node.place,
                removed=removed,
            )
            for start in range(0, part.n_rows, length)
        )
        return chain.from_iterable(rows_or_raise(featurize(sample_range)) for sample_range in ranges)

    try:
        ran_on = machine_facts(featurizer, node.place) if isinstance(featurizer, ModelFeaturizer) else {}
        store_part(store, featurizer, task.names, task.kind, part, rows(), stored, task.txn)
    except (InvalidWeights, MissingDependency, ModelFailed) as error:
        return PartFeatures(fault=str(error))
    return PartFeatures(
        shards=stored.shards, table=[list(row.items()) for row in stored.table], ran_on=ran_on
    )


def _n_rows(task: PartTask) -> int:
    return int(task.part["n_rows"])


def _limit_s(task: PartTask) -> float:
    return task.stretch_s * max(1, -(-_n_rows(task) // RANGE))


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


def work_of(featurizer: Featurizer) -> Work[PartTask, PartFeatures]:
    """Return the work that runs a featurizer."""
    if not isinstance(featurizer, ModelFeaturizer):
        return FEATURES
    return CPU_MODEL_FEATURES if featurizer.device == "cpu" else MODEL_FEATURES
