"""Pictures as a network sees them: uint8 of one size, and floats by channel."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..decoding import Array, frames, photo

if TYPE_CHECKING:
    import torch

_WIDEST = 8
"""Longer pictures lose their ends first: a strip of one pixel's height would be enlarged to gigabytes."""


def pictures_of(
    kind: str, sample: Mapping[str, bytes], field: str, pick: Callable[[int], Sequence[int]]
) -> Sequence[Array]:
    """Return uint8 [H, W, 3] each: the photo, or the frames of a clip that `pick(n_frames)` names. Raises: Unusable."""
    return [photo(sample, field)] if kind == "image" else list(frames(sample, field, pick))


def spread(n_frames: int, count: int) -> list[int]:
    """Return up to `count` frames from the first to the last, evenly spaced, each once."""
    return sorted({int(place) for place in np.linspace(0, n_frames - 1, min(count, n_frames)).round()})


def cropped(pixels: Array, size_px: int) -> Array:
    """Return uint8 [size_px, size_px, 3] of uint8 [H, W, 3]: the shorter side scaled to `size_px`, the centre cut out.

    Pillow's bicubic filter and the rounding of CLIP's own preprocessing.
    """
    from PIL import Image

    pixels = _centre(pixels, *(min(side, _WIDEST * min(pixels.shape[:2])) for side in pixels.shape[:2]))
    height, width = pixels.shape[:2]
    short = min(height, width)
    size = (int(size_px * width / short), int(size_px * height / short))
    return _centre(
        np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC)), size_px, size_px
    )


def whole_blocks(pixels: Array, block_px: int) -> Array:
    """Return the centre of a picture, its sides cut to multiples of `block_px`; it must be as large as one block."""
    height, width = (side // block_px * block_px for side in pixels.shape[:2])
    return _centre(pixels, height, width)


def normalised(
    pixels: "torch.Tensor", mean: "torch.Tensor", std: "torch.Tensor", dtype: "torch.dtype"
) -> "torch.Tensor":
    """Return dtype [N, 3, H, W] of uint8 [N, H, W, 3]: (x / 255 - mean) / std by channel, computed in float32."""
    scaled = (pixels.permute(0, 3, 1, 2).float() / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    return scaled.to(dtype)


def _centre(pixels: Array, height: int, width: int) -> Array:
    top, left = (pixels.shape[0] - height) // 2, (pixels.shape[1] - width) // 2
    return np.ascontiguousarray(pixels[top : top + height, left : left + width])
