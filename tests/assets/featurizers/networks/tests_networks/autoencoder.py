"""The encoder of a variational autoencoder of pictures, as latent diffusion has it (Rombach et al. 2022)."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from assets.featurizers.decoding import normalise_pixels

from .modules import Config, load_network, save_random

NAME = "autoencoder"

SMALL: Config = {
    "network": NAME,
    "channels": 4,
    "widths": [16, 32, 32, 32],
    "groups": 8,
    "scaling_factor": 0.18215,
}
"""Three halvings between four widths: a block of 8 x 8 px is one place of the latent."""


class Residual(nn.Module):
    """[N, in, H, W] to [N, out, H, W]."""

    def __init__(self, n_in: int, n_out: int, groups: int) -> None:
        super().__init__()
        self.norm_1, self.conv_1 = nn.GroupNorm(groups, n_in), nn.Conv2d(n_in, n_out, 3, padding=1)
        self.norm_2, self.conv_2 = nn.GroupNorm(groups, n_out), nn.Conv2d(n_out, n_out, 3, padding=1)
        self.short = nn.Conv2d(n_in, n_out, 1) if n_in != n_out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv_1(functional.silu(self.norm_1(x)))
        y = self.conv_2(functional.silu(self.norm_2(y)))
        out: Tensor = self.short(x) + y
        return out


class Autoencoder(nn.Module):
    """A `Coder` (see `latent`). scaling_factor brings latents to a variance of 1 over the training pictures."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        widths, groups = list(config["widths"]), config["groups"]
        self.block_px = 2 ** (len(widths) - 1)
        self.channels: int = config["channels"]
        self.scaling_factor: float = config["scaling_factor"]
        self.first = nn.Conv2d(3, widths[0], 3, padding=1)
        self.residuals = nn.ModuleList(
            Residual(n_in, n_out, groups) for n_in, n_out in zip([widths[0], *widths], widths, strict=False)
        )
        self.halvings = nn.ModuleList(nn.Conv2d(width, width, 3, stride=2) for width in widths[:-1])
        self.norm = nn.GroupNorm(groups, widths[-1])
        self.moments = nn.Conv2d(widths[-1], 2 * self.channels, 3, padding=1)

    def encode(self, pixels: Tensor) -> Tensor:
        half = pixels.new_full((3,), 0.5, dtype=torch.float32)
        x = self.first(normalise_pixels(pixels, half, half, self.first.weight.dtype))
        for number, residual in enumerate(self.residuals):
            x = residual(x)
            if number < len(self.halvings):
                x = self.halvings[number](functional.pad(x, (0, 1, 0, 1)))
        mean, _ = self.moments(functional.silu(self.norm(x))).chunk(2, dim=1)
        out: Tensor = mean * self.scaling_factor  # the mode of the posterior: nothing is drawn
        return out


def load(path: Path, dtype: torch.dtype, place: str) -> Autoencoder:
    """Raises: InvalidWeights."""
    return load_network(path, Autoencoder, NAME, dtype, place)[0]


def save_small(path: Path, seed: int, config: Config = SMALL) -> None:
    """Random weights of a small one."""
    save_random(path, Autoencoder, config, seed)
