"""An image tower and a text tower that meet in one space, as CLIP has them (Radford et al. 2021)."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from assets.featurizers.decoding import normalise_pixels

from .modules import Block, Config, Patches, load_network, save_random

NAME = "two_towers"

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
"""Of CLIP's training pictures."""

FIRST, LAST = 256, 257
"""Token ids around a text; the 256 below them are the bytes of UTF-8, so that every text has tokens."""

SMALL: Config = {
    "network": NAME,
    "dim": 16,
    "image": {"size_px": 32, "patch_px": 8, "width": 32, "depth": 2, "heads": 2},
    "text": {"tokens": 48, "width": 32, "depth": 2, "heads": 2},
}


class TextTower(nn.Module):
    """int64 [N, tokens] to [N, width]: what the last token of each text sees of those before it."""

    def __init__(self, tokens: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.token = nn.Embedding(258, width)
        self.place = nn.Parameter(torch.randn(1, tokens, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor, last: Tensor) -> Tensor:
        """last: int64 [N], where each text ends; nothing behind it is seen."""
        length = tokens.shape[1]
        earlier = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
        x = self.token(tokens) + self.place[:, :length]
        for block in self.blocks:
            x = block(x, mask=earlier)
        out: Tensor = self.norm(x)[torch.arange(len(x), device=x.device), last]
        return out


class TwoTowers(nn.Module):
    """An `Embedder` (see `embedding`)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.size_px: int = config["image"]["size_px"]
        self.n_tokens: int = config["text"]["tokens"]
        self.image, self.text = Patches(**config["image"]), TextTower(**config["text"])
        self.image_out = nn.Linear(config["image"]["width"], config["dim"], bias=False)
        self.text_out = nn.Linear(config["text"]["width"], config["dim"], bias=False)

    def images(self, pixels: Tensor) -> Tensor:
        mean, std = (pixels.new_tensor(values, dtype=torch.float32) for values in (MEAN, STD))
        x = normalise_pixels(pixels, mean, std, self.image_out.weight.dtype)
        out: Tensor = self.image_out(self.image(x)[:, 0])
        return out

    def texts(self, tokens: Tensor, last: Tensor) -> Tensor:
        out: Tensor = self.text_out(self.text(tokens, last))
        return out

    def tokens(self, text: str) -> dict[str, np.ndarray[Any, Any]]:
        """A text that is too long loses its end, as CLIP's does."""
        ids = [FIRST, *text.encode()[: self.n_tokens - 2], LAST]
        filled = np.zeros(self.n_tokens, np.int64)
        filled[: len(ids)] = ids
        return {"tokens": filled, "last": np.array(len(ids) - 1, np.int64)}


def load(path: Path, dtype: torch.dtype, place: str) -> TwoTowers:
    """Raises: InvalidWeights."""
    return load_network(path, TwoTowers, NAME, dtype, place)[0]


def save_small(path: Path, seed: int, config: Config = SMALL) -> None:
    """Random weights of a small one."""
    save_random(path, TwoTowers, config, seed)
