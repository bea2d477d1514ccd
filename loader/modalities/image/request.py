"""Requests for images of one shape: a size in px or a bucket, the part of the image, and alpha."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from typing import Literal, SupportsIndex

import numpy as np

from ...errors import InvalidRuntime
from ...limits import MAX_IMAGE_PX
from ..fields import Buffer, load
from .crop import Framing, Size

_BUCKET = re.compile(r"w([1-9][0-9]{0,5})h([1-9][0-9]{0,5})(?:f([1-9][0-9]{0,5}))?")

GivenSize = tuple[SupportsIndex, SupportsIndex] | str | None


def size_of(value: GivenSize) -> Size | None:
    """Return (height, width) in px, or None for None. Raises: TypeError, ValueError for another value."""
    if value is None:
        return None
    if isinstance(value, str):
        height, width, _ = _bucket(value)
        return height, width
    try:
        height, width = map(operator.index, value)
    except (TypeError, ValueError):
        raise TypeError("size is (height, width) in whole px, or the name of a bucket") from None
    return height, width


def frames_of(value: object) -> int | None:
    """Return a bucket's frames, if it names any. Raises: ValueError."""
    return _bucket(value)[2] if isinstance(value, str) else None


def _bucket(name: str) -> tuple[int, int, int | None]:
    """Return (height, width, frames) of `w640h384f32`: width first, as the column `bucket` has it."""
    bucket = _BUCKET.fullmatch(name)
    if bucket is None:
        raise ValueError("a bucket is named like w896h1152, or w640h384f32 for clips of 32 frames")
    return int(bucket[2]), int(bucket[1]), None if bucket[3] is None else int(bucket[3])


Alpha = Literal["white", "black", "keep"]

MAX_SIZE_PX = MAX_IMAGE_PX
"""The most pixels of a result: as many as the largest image that is decoded has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageDecoder:
    """Decodes an image to uint8 [H, W, C]; `loader.image` makes one and explains its arguments."""

    size: Size | None = None
    """(height, width) in pixels; None for the stored size."""
    crop: str | None = None
    """"center" or "random" cuts to `size`; None stretches the whole image to it."""
    alpha: Alpha = "white"
    """Ground for transparent images, "white" or "black"; "keep" gives four channels."""

    def __post_init__(self) -> None:
        if self.size is not None and (min(self.size) < 1 or self.size[0] * self.size[1] > MAX_SIZE_PX):
            raise InvalidRuntime(
                f"image(size={self.size}): (height, width) in px, at least 1, together at most {MAX_SIZE_PX} px"
            )
        if self.crop not in (None, "center", "random"):
            raise InvalidRuntime(f"image(crop={self.crop!r}): 'center', 'random' or None")
        if self.crop is not None and self.size is None:
            raise InvalidRuntime(f"image(crop={self.crop!r}) needs size=(height, width): what to cut to")
        if self.alpha not in ("white", "black", "keep"):
            raise InvalidRuntime(f"image(alpha={self.alpha!r}): 'white', 'black' or 'keep'")

    def __call__(self, data: Buffer, rng: np.random.Generator | None = None) -> np.ndarray:
        """Return the image. Raises: DecodeFailed (damaged, not JPEG, PNG or WebP); MissingDependency (pillow)."""
        place = None
        if self.crop == "random" and rng is not None:
            place = (float(rng.random()), float(rng.random()))
        framing = Framing(size=self.size, crop=self.crop, place=place)
        pixels: np.ndarray = load("image.decode:decode_framed")(data, framing, self.alpha)
        return pixels


def image(
    size: GivenSize = None,
    crop: str | None = None,
    alpha: Alpha = "white",
) -> ImageDecoder:
    """Return a decoder for an image field whose images all come in one shape, so that a batch is one array.

    `Loader(plan, decode={"jpg": loader.image(size=(224, 224), crop="random")})` gives uint8 [H, W, 3] RGB, upright.

        size: (height, width) in px, or None for the stored size. Or a bucket's name such as "w896h1152" (width first).
        crop: None stretches the image to `size`. "center" and "random" scale it until it just covers `size`, and cut
        the rest: evenly, or at a random draw (in the middle without a generator). A smaller image is enlarged; leave it
        out with a predicate on `width_px` and `height_px`.
        alpha: ground of transparent pixels, "white" or "black". With "keep" the result is [H, W, 4], and alpha is 255
        without transparency.

    Resampling is bicubic over the whole source area (antialiased), in whole numbers: the same bits on every machine. A
    JPEG's decoder first scales an image at least four times as large as the result, to no less than twice the result
    (docs/pipeline.md).

    Raises: InvalidRuntime.
    """
    try:
        if frames_of(size) is not None:
            raise ValueError("a bucket of clips; a bucket of images is named like w896h1152")
        return ImageDecoder(size=size_of(size), crop=crop, alpha=alpha)
    except (TypeError, ValueError) as error:
        if isinstance(error, InvalidRuntime):
            raise
        raise InvalidRuntime(f"image({size!r}, {crop!r}, {alpha!r}): {error}") from error
