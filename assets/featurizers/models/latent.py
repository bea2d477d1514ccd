"""Compute variational autoencoder latents once instead of in every epoch of latent diffusion training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np

from assets import invalid_option
from loader.errors import InvalidSpec

from ...media.unit import rejected
from ..decoding import STAGE, crop_centre, kind_field, sample_images, spread, whole_blocks
from ..featurizer import Features
from .batching import Array, Row
from .model import CODERS, ModelFeaturizer, check_network, network_loader

if TYPE_CHECKING:
    import torch

STORED = ("float16", "float32")


class Coder(Protocol):
    """Autoencoder that encodes images as latents, loaded by the function that `network` names."""

    block_px: int
    """Side in px of the square that one latent position encodes."""

    def encode(self, pixels: "torch.Tensor") -> "torch.Tensor":
        """Return latents [N, C, H / block_px, W / block_px] of uint8 [N, H, W, 3] sRGB: the posterior mode, scaled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent(ModelFeaturizer):
    """Field `latent.npy`: float16 or float32 [C, h, w], [T, C, h, w] for a clip, scaled by the network's factor.

    Columns: latent_mean, latent_std, over the whole latent.
    """

    network: str
    """Name of `CODERS`, or "module:function" that loads a `Coder`."""
    image: str | None = "jpg"
    """Field of photos; None skips them."""
    video: str | None = "mp4"
    """Field of clips; None skips them."""
    size_px: int = 256
    """Side in px of the square to which images are scaled and cropped; 0 crops them to whole blocks only."""
    max_px: int = 1 << 22
    """Most pixels of an image that keeps its size."""
    frames: int = 8
    """Frames per clip, first to last, evenly spaced."""
    field: str = "latent.npy"
    """Name of the output field."""
    stored: str = "float16"
    """Dtype of the output field."""
    name: str = "latent"
    """Name of the featurizer."""
    output_columns: ClassVar[tuple[str, ...]] = ("latent_mean", "latent_std")

    def __post_init__(self) -> None:
        ModelFeaturizer.__post_init__(self)
        check_network(CODERS, self.network)
        if self.stored not in STORED:
            raise invalid_option("stored", self.stored, ", ".join(STORED))
        if self.size_px < 0 or self.max_px < 1 or self.frames < 1:
            raise InvalidSpec(
                f"size_px={self.size_px}, max_px={self.max_px}, frames={self.frames}; accepted: size_px from 0, the "
                "others from 1",
                what="size_px, max_px and frames",
                given=(self.size_px, self.max_px, self.frames),
                accepted="size_px from 0, the others from 1",
            )

    @property
    def outputs(self) -> Mapping[str, tuple[str, ...]]:
        return dict.fromkeys(self.inputs, (self.field,))

    @property
    def dims(self) -> Sequence[str]:
        still = ("channel", "row", "column")
        if len(self.inputs) > 1:  # photos have no frames
            return ()
        if self.image:
            return still
        return ("frame", *still)

    def load(self, path: Path, dtype: "torch.dtype", place: str) -> Coder:
        model: Coder = network_loader(CODERS, self.network)(path, dtype, place)
        if self.size_px % model.block_px:
            raise InvalidSpec(
                f"size_px={self.size_px}; accepted by these weights: multiples of {model.block_px}",
                what="size_px",
                where=self.weights,
                given=self.size_px,
                accepted=f"multiples of {model.block_px}",
            )
        return model

    def prepare(self, model: Coder, kind: str, sample: Mapping[str, bytes]) -> Sequence[Row]:
        images = sample_images(
            kind, sample, kind_field(self.inputs, kind), lambda n_frames: spread(n_frames, self.frames)
        )
        return [{"pixels": self._pixels(image, model.block_px)} for image in images]

    def _pixels(self, image: Array, block_px: int) -> Array:
        if self.size_px:
            return crop_centre(image, self.size_px)
        height, width = image.shape[:2]
        if min(height, width) < block_px:
            raise rejected(
                STAGE,
                "too_small",
                f"{width} x {height} px; at least {block_px} x {block_px} px",
                given=(width, height),
                accepted=block_px,
            )
        if height * width > self.max_px:
            raise rejected(
                STAGE,
                "too_large",
                f"{width} x {height} px; at most {self.max_px} px in all",
                given=(width, height),
                accepted=self.max_px,
            )
        return whole_blocks(image, block_px)

    def run(self, model: Coder, batch: Mapping[str, "torch.Tensor"]) -> Mapping[str, "torch.Tensor"]:
        return {"latent": model.encode(batch["pixels"])}

    def finish(self, model: Coder, kind: str, rows: Sequence[Row]) -> Features:
        latents = np.stack([row["latent"] for row in rows])
        # Before the cast, which would make them infinite.
        largest = float(np.finfo(self.stored).max)
        if np.abs(latents).max() > largest:
            raise rejected(
                STAGE,
                "overflow",
                f"its latent has values beyond {largest}, which {self.stored} does not hold",
                accepted=largest,
            )
        columns = {
            "latent_mean": round(float(latents.mean(dtype=np.float64)), 6),
            "latent_std": round(float(latents.std(dtype=np.float64)), 6),
        }
        stored = (latents[0] if kind == "image" else latents).astype(self.stored)
        return Features(fields={self.field: stored}, columns=columns)
