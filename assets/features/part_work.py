"""The features of a part as a work: a node reads its samples from the store, and writes its shard.

A featurizer travels by its class and parameters. A worker loads the weights of a model once, and keeps them for the
parts that follow. Parts of which a sample kills its worker are left to the machine that waits: there it costs itself,
as without a cluster.
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
from .compute import STRETCH, Row, Stretch, featurize, sound, stretch_of
from .names import Names
from .store import Stored, store_part

_SAMPLE_S = 0.05
"""Seconds that a sample takes about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainFeaturizer:
    """A featurizer by name."""

    place: str
    """'module:class'."""
    parameters: dict[str, Any]
    """Field -> value, plain."""

    def made(self, packages: Sequence[str]) -> Featurizer:
        """Return the featurizer. Raises: InvalidRuntime for one, or a network, of another package than `packages`."""
        network = str(self.parameters.get("network", ""))
        for what, place in (("featurizer", self.place), ("network", network)):
            if ":" in place and place.partition(":")[0].partition(".")[0] not in packages:
                raise InvalidRuntime(
                    f"{what} {place!r}; accepted are those of the packages {', '.join(sorted(packages))}: name its "
                    "package in `packages` of the cluster's file"
                )
        return self.again()

    def again(self) -> Featurizer:
        """Return the featurizer, whatever its package."""
        module, _, name = self.place.partition(":")
        made: Featurizer = from_mapping(self.parameters, getattr(import_module(module), name))
        return made


def plain_featurizer(featurizer: Featurizer) -> PlainFeaturizer | None:
    """Return a featurizer by name; None for one that its name and plain parameters do not make again."""
    kind = type(featurizer)
    try:
        told = to_json(
            PlainFeaturizer(place=f"{kind.__module__}:{kind.__qualname__}", parameters=asdict(featurizer))
        )
        plain = from_json(told, PlainFeaturizer, "a featurizer")
        again = plain.again()
    except (TypeError, ValueError, AttributeError, Corrupt):  # not plain, or a class in a function
        return None
    return plain if again == featurizer else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTask:
    """A part, for one featurizer."""

    root: str
    """URL of the root's store."""
    part: dict[str, Any]
    """The part as JSON."""
    kind: str
    """Kind of its samples."""
    featurizer: PlainFeaturizer
    """The featurizer."""
    names: Names
    """Names of its fields."""
    gone: list[int]
    """Rows that no version has any more."""
    txn: str | None
    """Transaction of the shard; None for the part's own."""
    stretch_s: float
    """Seconds that a stretch of samples may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFeatures:
    """Features of a part."""

    shards: list[dict[str, Any]] = field(default_factory=list)
    """The shard as JSON; none where there are no fields."""
    table: list[list[tuple[str, Any]]] = field(default_factory=list)
    """Columns and values of each sample, in the featurizer's order."""
    ran_on: dict[str, str | int] = field(default_factory=dict)
    """Facts of the machine that decide a model's bits, as `machine_facts`; empty for other featurizers."""
    fault: str = ""
    """Reason why the model does not run on the node; "" where it does."""


def part_features(task: PartTask, node: Node) -> PartFeatures:
    """Compute the features of a part, and write its shard. Raises: StoreError; as `store_part`."""
    store, part = node.open(task.root), loader.Part.from_json(task.part)
    featurizer, stored = task.featurizer.made(node.packages), Stored()
    gone, length = frozenset(task.gone), stretch_of(featurizer)

    def rows() -> Iterator[Row]:
        stretches = (
            Stretch(
                store=store,
                part=part,
                kind=task.kind,
                featurizer=featurizer,
                start=start,
                stop=min(start + length, part.n_rows),
                place=node.place,
                gone=gone,
            )
            for start in range(0, part.n_rows, length)
        )
        return chain.from_iterable(sound(featurize(stretch)) for stretch in stretches)

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
    return task.stretch_s * max(1, -(-_n_rows(task) // STRETCH))


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
"""Features of a model that a GPU may run: each GPU has a worker of its own."""
CPU_MODEL_FEATURES = replace(MODEL_FEATURES, name="cpu-model-features", resources=Resources())
"""Features of a model that runs on CPUs, in a worker per core."""


def work_of(featurizer: Featurizer) -> Work[PartTask, PartFeatures]:
    """Return the work that computes a featurizer's parts."""
    if not isinstance(featurizer, ModelFeaturizer):
        return FEATURES
    return CPU_MODEL_FEATURES if featurizer.device == "cpu" else MODEL_FEATURES
