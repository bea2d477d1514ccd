"""An embedding without a network: which colours and edges a picture has, wherever they are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from assets.featurizers import Features, version_of
from assets.featurizers.decoding import photo, shrink


@dataclass(frozen=True, slots=True, kw_only=True)
class Colours:
    """Field colours.npy: float32 [136], of length 1: a soft histogram of colours, one of the directions of edges."""

    name: ClassVar[str] = "colours"
    kinds: ClassVar[frozenset[str]] = frozenset({"image"})
    inputs: ClassVar[Mapping[str, tuple[str, ...]]] = {"image": ("jpg",)}
    outputs: ClassVar[Mapping[str, tuple[str, ...]]] = {"image": ("colours.npy",)}
    columns: ClassVar[Mapping[str, tuple[str, ...]]] = {"image": ()}
    facts: ClassVar[Mapping[str, Mapping[str, object]]] = {}

    @property
    def version(self) -> str:
        return version_of(1, {})

    def of_fields(self, facts: Mapping[str, Mapping[str, Any]]) -> Self:
        return self

    def __call__(self, kind: str, sample: Mapping[str, bytes]) -> Features:
        pixels = shrink(photo(sample, "jpg"), (96, 96)).astype(np.float64)
        bins = np.clip(pixels / 64 - 0.5, 0, 3)
        low, part = np.floor(bins).astype(int), bins % 1
        colours = np.zeros((5, 5, 5))
        for corner in np.ndindex(2, 2, 2):
            place = tuple(np.moveaxis(low + corner, -1, 0))
            weight = np.prod(np.where(np.array(corner) == 1, part, 1 - part), axis=-1)
            np.add.at(colours, place, weight)
        down, across = np.gradient(pixels.mean(axis=-1))
        angle = np.arctan2(down, across)
        edges, _ = np.histogram(angle, bins=11, range=(-np.pi, np.pi), weights=np.hypot(down, across))
        colours, edges = np.sqrt(colours.ravel()), np.sqrt(edges / edges.sum())
        both = np.concatenate([colours / np.linalg.norm(colours), 0.3 * edges])
        return Features(fields={"colours.npy": (both / np.linalg.norm(both)).astype(np.float32)}, columns={})
