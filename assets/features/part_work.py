"""The features of a part as a work: a node reads its samples from the store, and writes its shard.

A featurizer travels by its class and parameters. Models stay on the machine that waits, which counts its GPUs. So do
parts of which a sample kills its worker: there it costs itself, as without a cluster.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import chain
from typing import Any

import loader
from loader.errors import Corrupt, InvalidRuntime
from penstock.compute.plain import from_json, from_mapping, to_json
from penstock.compute.work import Node, Work

from ..featurizers import Featurizer
from .compute import STRETCH, Row, Stretch, featurize, sound
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
        """Return the featurizer. Raises: InvalidRuntime for a class of another package than `packages`."""
        module, _, name = self.place.partition(":")
        package = module.partition(".")[0]
        if package not in packages:
            raise InvalidRuntime(
                f"featurizer {self.place!r}; accepted are those of the packages {', '.join(sorted(packages))}: name "
                "its package in `packages` of the cluster's file"
            )
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
        again = plain.made([kind.__module__.partition(".")[0]])
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

    shards: list[dict[str, Any]]
    """The shard as JSON; none where there are no fields."""
    table: list[list[tuple[str, Any]]]
    """Columns and values of each sample, in the featurizer's order."""


def part_features(task: PartTask, node: Node) -> PartFeatures:
    """Compute the features of a part, and write its shard. Raises: as `featurize` and `store_part`."""
    store, part = node.open(task.root), loader.Part.from_json(task.part)
    featurizer, stored = task.featurizer.made(node.packages), Stored()
    gone = frozenset(task.gone)

    def rows() -> Iterator[Row]:
        stretches = (
            Stretch(
                store=store,
                part=part,
                kind=task.kind,
                featurizer=featurizer,
                start=start,
                stop=min(start + STRETCH, part.n_rows),
                gone=gone,
            )
            for start in range(0, part.n_rows, STRETCH)
        )
        return chain.from_iterable(sound(featurize(stretch)) for stretch in stretches)

    store_part(store, featurizer, task.names, task.kind, part, rows(), stored, task.txn)
    return PartFeatures(shards=stored.shards, table=[list(row.items()) for row in stored.table])


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
