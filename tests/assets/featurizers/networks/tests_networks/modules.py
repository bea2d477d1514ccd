"""What these networks are built of, and how they come out of a file and into one."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from assets.featurizers.models.weights import error_text
from loader.errors import InvalidWeights

N = TypeVar("N", bound=nn.Module)
Config = Mapping[str, Any]

_CONFIG = "penstock"
"""Key of a safetensors header under which a network keeps its configuration, as JSON."""


def load_network(
    path: Path, build: Callable[[Config], N], name: str, dtype: torch.dtype, place: str
) -> tuple[N, Config]:
    """The network of a file in eval mode, and its configuration. Raises: InvalidWeights."""
    if path.is_dir():
        files = sorted(path.glob("*.safetensors"))
        if len(files) != 1:
            raise InvalidWeights(f"{path} has {len(files)} .safetensors files; a {name} is one file")
        (path,) = files
    config, tensors = read_weights(path)
    if config.get("network") != name:
        raise InvalidWeights(
            f"{path} holds the network {config.get('network')!r}, not {name!r}",
            what="network",
            where=path,
            given=config.get("network"),
            accepted=name,
        )
    try:
        with torch.device("meta"):
            network = build(config)
        network.load_state_dict(tensors, strict=True, assign=True)
    except (RuntimeError, KeyError, TypeError, ValueError) as error:
        raise InvalidWeights(
            f"{path} does not fit the network {name!r}: {error_text(error)}",
            what=name,
            where=path,
            given=error_text(error),
        ) from error
    return network.to(place, dtype).eval(), config


def save_random(path: Path, build: Callable[[Config], nn.Module], config: Config, seed: int) -> None:
    """A file of random weights, the same for the same seed: for tests and to try an interface out."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build(config)
    save_weights(path, config, network.state_dict())


def read_weights(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(configuration, name -> tensor on the CPU) of one file that `save_weights` wrote. Raises: InvalidWeights."""
    try:
        with safe_open(path, framework="pt") as file:
            stated = (file.metadata() or {}).get(_CONFIG)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError) as error:
        raise InvalidWeights(
            f"{path} is not a safetensors file: {error}", what="file", where=path, accepted="safetensors"
        ) from error
    if stated is None:
        raise InvalidWeights(
            f"{path} has no configuration in its header (metadata {_CONFIG!r})",
            what="configuration",
            where=path,
        )
    config: dict[str, Any] = json.loads(stated)
    return config, tensors


def save_weights(path: Path, config: Config, tensors: Mapping[str, Tensor]) -> None:
    """Write a file that `read_weights` reads; the same tensors give the same bytes."""
    stated = json.dumps(dict(config), sort_keys=True, ensure_ascii=False)
    save_file({name: value.contiguous() for name, value in tensors.items()}, path, metadata={_CONFIG: stated})


class Attention(nn.Module):
    """[N, T, width] to the same, over itself or over `memory` [N, S, width]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        keys, values = self.key_value(x if memory is None else memory).chunk(2, dim=-1)
        queries, keys, values = (self._split(part) for part in (self.query(x), keys, values))
        seen = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        out: Tensor = self.out(seen.transpose(1, 2).flatten(2))
        return out

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.heads, -1).transpose(1, 2)


class Block(nn.Module):
    """A transformer block with the norms in front; with `crossing` it also looks at `memory`."""

    def __init__(self, width: int, heads: int, *, crossing: bool = False) -> None:
        super().__init__()
        self.norm_own, self.own = nn.LayerNorm(width), Attention(width, heads)
        self.norm_cross = nn.LayerNorm(width) if crossing else None
        self.cross = Attention(width, heads) if crossing else None
        self.norm_wide = nn.LayerNorm(width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        x = x + self.own(self.norm_own(x), mask=mask)
        if self.cross is not None and self.norm_cross is not None:
            x = x + self.cross(self.norm_cross(x), memory)
        out: Tensor = x + self.wide(self.norm_wide(x))
        return out


class Patches(nn.Module):
    """A vision transformer: [N, 3, size_px, size_px] to [N, 1 + patches, width], the first a summary of all."""

    def __init__(self, size_px: int, patch_px: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, patch_px, patch_px)
        self.summary = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.place = nn.Parameter(torch.randn(1, 1 + (size_px // patch_px) ** 2, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.summary.expand(len(patches), -1, -1), patches], dim=1) + self.place
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.norm(x)
        return out
