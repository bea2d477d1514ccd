"""Image models of the library `timm`, out of a folder with the config.json and model.safetensors of a timm model."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loader.errors import InvalidWeights, MissingDependency

from .pictures import normalised
from .weights import said


class Pictures:
    """An `Embedder` (see `..embedding`) of pictures alone: the input of the model's classifier."""

    def __init__(self, model: Any, stated: Mapping[str, Any], path: Path) -> None:
        self.model, self.path = model, path
        self.size_px: int = stated["input_size"][-1]
        self.mean, self.std = stated["mean"], stated["std"]

    def images(self, pixels: Tensor) -> Tensor:
        mean, std = (pixels.new_tensor(values, dtype=torch.float32) for values in (self.mean, self.std))
        dtype = next(self.model.parameters()).dtype
        out: Tensor = self.model(normalised(pixels, mean, std, dtype))
        return out

    def texts(self, **tokens: Tensor) -> Tensor:
        """Refuse texts. Raises: InvalidWeights."""
        raise self._no_texts()

    def tokens(self, text: str) -> Mapping[str, np.ndarray[Any, np.dtype[Any]]]:
        """Refuse texts. Raises: InvalidWeights."""
        raise self._no_texts()

    def _no_texts(self) -> InvalidWeights:
        return InvalidWeights(f"{self.path.name} is an image model: leave text and caption None")


def load(path: Path, dtype: torch.dtype, place: str) -> Pictures:
    """Load an image model. Raises: InvalidWeights; MissingDependency."""
    try:
        import timm
    except ImportError as error:
        raise MissingDependency(
            f"this network needs the packages 'timm' and 'torchvision' ({error}): pip install timm"
        ) from error
    from safetensors.torch import load_file

    stated, weights = path / "config.json", path / "model.safetensors"
    if not (stated.is_file() and weights.is_file()):
        raise InvalidWeights(
            f"{path.name} is no folder with the config.json and model.safetensors of a timm model"
        )
    config = json.loads(stated.read_bytes())
    try:
        model = timm.create_model(
            config["architecture"],
            pretrained=False,
            pretrained_cfg_overlay=config.get("pretrained_cfg", {}),
            **{**config.get("model_args", {}), "num_classes": 0},
        )
        tensors = load_file(weights)
        kept = model.state_dict()
        model.load_state_dict({name: value for name, value in tensors.items() if name in kept}, strict=True)
    except (KeyError, TypeError, RuntimeError) as error:
        raise InvalidWeights(
            f"{path.name} does not fit timm's {config.get('architecture')!r}: {said(error)}"
        ) from error
    return Pictures(model.to(place, dtype).eval(), timm.data.resolve_model_data_config(model), path)
