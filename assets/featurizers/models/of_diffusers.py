"""AutoencoderKL of the library `diffusers`, out of a folder that `save_pretrained` wrote: no hub is asked."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from loader.errors import InvalidWeights, MissingDependency

from .pictures import normalised
from .weights import said


class Coder:
    """A `Coder` (see `..latent`) of an AutoencoderKL."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.block_px: int = 2 ** (len(model.config.block_out_channels) - 1)
        self.scaling_factor: float = model.config.scaling_factor
        self.shift_factor: float = getattr(model.config, "shift_factor", None) or 0.0

    def encode(self, pixels: Tensor) -> Tensor:
        half = pixels.new_full((3,), 0.5, dtype=torch.float32)
        posterior = self.model.encode(normalised(pixels, half, half, self.model.dtype)).latent_dist
        out: Tensor = (posterior.mode() - self.shift_factor) * self.scaling_factor
        return out


def load(path: Path, dtype: torch.dtype, place: str) -> Coder:
    """Load an AutoencoderKL. Raises: InvalidWeights; MissingDependency."""
    try:
        from diffusers import AutoencoderKL
    except ImportError as error:
        raise MissingDependency(
            f"this network needs the package 'diffusers' ({error}): pip install diffusers"
        ) from error
    try:
        model, told = AutoencoderKL.from_pretrained(
            path,
            torch_dtype=dtype,
            use_safetensors=True,
            local_files_only=True,
            low_cpu_mem_usage=False,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise InvalidWeights(f"{path.name} does not fit AutoencoderKL: {said(error)}") from error
    missing = sorted(map(str, told["missing_keys"]))
    if missing:  # diffusers would draw them at random
        raise InvalidWeights(f"{path.name} lacks weights of AutoencoderKL: {', '.join(missing[:3])}")
    return Coder(model.to(place).eval())
