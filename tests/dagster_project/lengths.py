"""A dataset of short texts, and a featurizer that costs nothing: what is tested is the pipeline around it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from assets.featurizers import Features, Featurizer
from assets.spec import DatasetSpec, Feature

MODULE = "tests.dagster_project.lengths"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths(Featurizer):
    """Bytes of a text, times something."""

    times: int = 1
    name: str = "lengths"

    @property
    def version(self) -> str:
        return f"{self.times}-00000000"

    @property
    def inputs(self) -> Mapping[str, tuple[str, ...]]:
        return {"text": ("txt",)}

    @property
    def outputs(self) -> Mapping[str, tuple[str, ...]]:
        return {"text": ("lengths.npy",)}

    @property
    def columns(self) -> Mapping[str, tuple[str, ...]]:
        return {"text": ("length_bytes",)}

    def __call__(self, kind: str, sample: Mapping[str, bytes]) -> Features:
        n = len(sample["txt"]) * self.times
        return Features(fields={"lengths.npy": np.array([n])}, columns={"length_bytes": n})


@dataclass(frozen=True, slots=True, kw_only=True)
class Unscored(Lengths):
    """Without columns: plots of them would be a fifth of the work of a small run."""

    @property
    def columns(self) -> Mapping[str, tuple[str, ...]]:
        return {"text": ()}

    def __call__(self, kind: str, sample: Mapping[str, bytes]) -> Features:
        return Features(fields=Lengths.__call__(self, kind, sample).fields, columns={})


def make_spec(times: int, **more: Any) -> DatasetSpec:
    """The dataset with the featurizer's version `times`, and one beside it that never changes."""
    changing = Feature(name=f"{MODULE}:Lengths", parameters={"times": times})
    return DatasetSpec(
        name="notes", features=(changing, Feature(name="loudness")), max_reject_rate=1.0, **more
    )
