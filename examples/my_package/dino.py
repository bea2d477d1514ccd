"""DINOv2 as an image embedding, from a folder that `save_pretrained` wrote."""

from pathlib import Path
from typing import Any

import torch
from transformers import Dinov2Model


class Dino:
    size_px = 224

    def __init__(self, model: Any) -> None:
        self.model = model

    def images(self, pixels: Any) -> Any:
        mean = pixels.new_tensor([0.485, 0.456, 0.406], dtype=torch.float32)
        std = pixels.new_tensor([0.229, 0.224, 0.225], dtype=torch.float32)
        scaled = ((pixels.float() / 255 - mean) / std).permute(0, 3, 1, 2)
        return self.model(pixel_values=scaled.to(self.model.dtype)).last_hidden_state[:, 0]


def load(path: Path, dtype: torch.dtype, place: str) -> Dino:
    model: Any = Dinov2Model.from_pretrained(path, dtype=dtype, use_safetensors=True, local_files_only=True)
    return Dino(model.to(place).eval())
