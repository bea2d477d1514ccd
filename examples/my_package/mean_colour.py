"""The mean colour of a photo."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from assets.featurizers import Features, Featurizer
from assets.featurizers.decoding import kind_field, photo


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanColour(Featurizer):
    """Field mean_colour.npy: float64 [3], R, G, B in 0 to 1. Columns: warmth_ratio: R - B, from -1 to 1."""

    image: str = "jpg"
    name: ClassVar[str] = "mean_colour"
    output_fields: ClassVar[tuple[str, ...]] = ("mean_colour.npy",)
    output_columns: ClassVar[tuple[str, ...]] = ("warmth_ratio",)

    def __call__(self, kind: str, sample: Mapping[str, bytes]) -> Features:
        mean = photo(sample, kind_field(self.inputs, kind)).mean(axis=(0, 1)) / 255
        columns = {"warmth_ratio": float(mean[0] - mean[2])}
        return Features(fields={"mean_colour.npy": mean}, columns=columns)
