"""A score of a photo, from a network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from assets.featurizers import Features
from assets.featurizers.decoding import kind_field, photo
from assets.featurizers.models import ModelFeaturizer, crop_centre


@dataclass(frozen=True, slots=True, kw_only=True)
class Liking(ModelFeaturizer):
    """Column liking_ratio, from 0 to 1."""

    image: str = "jpg"
    size_px: int = 32
    name: ClassVar[str] = "liking"
    output_columns: ClassVar[tuple[str, ...]] = ("liking_ratio",)

    def load(self, path: Path, dtype: Any, place: str) -> Any:
        from safetensors.torch import load_file

        model = network()
        model.load_state_dict(load_file(path))
        return model.to(place, dtype).eval()

    def prepare(self, model: Any, kind: str, sample: Mapping[str, bytes]) -> Sequence[Mapping[str, Any]]:
        pixels = crop_centre(photo(sample, kind_field(self.inputs, kind)), self.size_px)
        return [{"pixels": pixels}]  # uint8 [size_px, size_px, 3]

    def run(self, model: Any, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        pixels = batch["pixels"].permute(0, 3, 1, 2).to(model[0].weight.dtype) / 255
        return {"liking": model(pixels).sigmoid()}

    def finish(self, model: Any, kind: str, rows: Sequence[Mapping[str, Any]]) -> Features:
        (row,) = rows
        return Features(fields={}, columns={"liking_ratio": round(float(row["liking"][0]), 6)})


def network() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 16, 4, 4), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 1)
    )


def save(path: Path, seed: int) -> None:
    """Write random weights, to try it out."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(seed)
    save_file(network().state_dict(), path)
