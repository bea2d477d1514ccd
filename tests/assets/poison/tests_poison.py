"""Featurizers that kill their process on one picture, or fail on all: imported by name in workers."""

import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from assets.featurizers import Features, version_of
from assets.featurizers.models.embedding import Embedding


@dataclass(frozen=True, slots=True, kw_only=True)
class Poison:
    """Dies of pictures that are 64 px wide."""

    name: ClassVar[str] = "poison"
    kinds: ClassVar[frozenset[str]] = frozenset({"image"})
    inputs: ClassVar[Mapping[str, tuple[str, ...]]] = {"image": ("jpg",)}
    outputs: ClassVar[Mapping[str, tuple[str, ...]]] = {"image": ()}
    columns: ClassVar[Mapping[str, tuple[str, ...]]] = {"image": ("survived",)}
    facts: ClassVar[Mapping[str, Mapping[str, object]]] = {}

    @property
    def version(self) -> str:
        return version_of(1, {})

    def of_fields(self, facts: Mapping[str, object]) -> Self:
        return self

    def __call__(self, kind: str, sample: Mapping[str, bytes]) -> Features:
        from loader.modalities import find_decoder

        if find_decoder("jpg")(sample["jpg"], None).shape[1] == 64:  # type: ignore[attr-defined]
            os.kill(os.getpid(), signal.SIGKILL)
        return Features(fields={}, columns={"survived": True})


@dataclass(frozen=True, slots=True, kw_only=True)
class CrowdedEmbedding(Embedding):
    """A model that dies of more than one sample at once."""

    name: str = "crowded_embedding"

    def features(self, kind: str, samples: Iterable[Mapping[str, bytes]], place: str = "") -> Any:
        some = list(samples)
        if len(some) > 1:
            os._exit(1)
        return Embedding.features(self, kind, some, place)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenEmbedding(Embedding):
    """A model that loads, and then fails on everything."""

    name: str = "broken_embedding"

    def run(self, model: Any, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        raise ArithmeticError("no such kernel")
