"""A captioner: a vision transformer, and a text transformer that looks at its patches and writes token by token."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from assets.featurizers.decoding import normalise_pixels

from .modules import Block, Config, Patches, load_network, save_random

NAME = "captioner"

PAD, FIRST, LAST = 0, 1, 2

WORDS = ["a", "the", "red", "blue", "green", "small", "large", "cat", "dog", "horse", "on", "by"]
PIECES = ["", "", "", *(f" {word}" for word in WORDS), "."]
"""Token id -> text; the first three stand for nothing, the beginning and the end."""

SMALL: Config = {
    "network": NAME,
    "image": {"size_px": 32, "patch_px": 8, "width": 32, "depth": 2, "heads": 2},
    "text": {"tokens": 24, "depth": 2, "heads": 2},
    "pieces": PIECES,
}


class Captioner(nn.Module):
    """A `CaptionModel` (see `caption`). Its tokenizer is the list `pieces` of its configuration."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width: int = config["image"]["width"]
        text = config["text"]
        self.size_px: int = config["image"]["size_px"]
        self.n_tokens: int = text["tokens"]
        self.pieces = [str(piece) for piece in config["pieces"]]
        self.image = Patches(**config["image"])
        self.token = nn.Embedding(len(self.pieces), width)
        self.place = nn.Parameter(torch.randn(1, self.n_tokens, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, text["heads"], crossing=True) for _ in range(text["depth"]))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, len(self.pieces))

    def generate(self, pixels: Tensor, max_tokens: int) -> dict[str, Tensor]:
        half = pixels.new_full((3,), 0.5, dtype=torch.float32)
        seen = self.image(normalise_pixels(pixels, half, half, self.out.weight.dtype))
        tokens = pixels.new_full((len(pixels), 1), FIRST, dtype=torch.int64)
        length = pixels.new_zeros(len(pixels), dtype=torch.int64)
        logprobs = []
        done = length > 0
        for _ in range(min(max_tokens, self.n_tokens)):
            logprob, token = self._next(tokens, seen).max(dim=-1)
            logprobs.append(torch.where(done, 0.0, logprob))
            tokens = torch.cat([tokens, torch.where(done, PAD, token)[:, None]], dim=1)
            length = length + ~done
            done = done | (token == LAST)
            if done.all():
                break
        rest = (0, max_tokens - len(logprobs))
        return {
            "tokens": functional.pad(tokens[:, 1:], rest, value=PAD),
            "logprobs": functional.pad(torch.stack(logprobs, dim=1), rest),
            "length": length,
        }

    def _next(self, tokens: Tensor, seen: Tensor) -> Tensor:
        """float32 [N, pieces]: log-probabilities of the token behind those that are there."""
        length = tokens.shape[1]
        earlier = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
        x = self.token(tokens) + self.place[:, :length]
        for block in self.blocks:
            x = block(x, seen, earlier)
        logits = self.out(self.norm(x[:, -1])).float()
        logits[:, [PAD, FIRST]] = -torch.inf
        logprobs: Tensor = logits.log_softmax(dim=-1)
        return logprobs

    def text(self, tokens: np.ndarray[Any, Any]) -> str:
        return "".join(self.pieces[token] for token in tokens.tolist())


def load(path: Path, dtype: torch.dtype, place: str) -> Captioner:
    """Raises: InvalidWeights."""
    return load_network(path, Captioner, NAME, dtype, place)[0]


def save_small(path: Path, seed: int, config: Config = SMALL) -> None:
    """Random weights of a small one."""
    save_random(path, Captioner, config, seed)
