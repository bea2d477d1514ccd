"""The recipe of the benchmark's training: a random crop, mirrored half of the time, as a normalised tensor."""

from typing import Any

import numpy as np
import torch

EDGE_PX = 224


def crop(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """float32 [3, 224, 224] of mean 0 and deviation 1, about."""
    photo = sample["jpg"]
    top, left = (int(rng.integers(side - EDGE_PX + 1)) for side in photo.shape[:2])
    square = photo[top : top + EDGE_PX, left : left + EDGE_PX]
    if rng.random() < 0.5:
        square = square[:, ::-1]
    pixels = torch.from_numpy(np.ascontiguousarray(square.transpose(2, 0, 1))).float()
    return {"jpg": (pixels / 255 - 0.45) / 0.25, "cls": sample["cls"]}


def recipe() -> dict[str, Any]:
    return {"decode": True, "transform": crop}
