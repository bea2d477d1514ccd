"""Requests for images of one shape: a size in px or a bucket, the crop, and alpha."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from typing import Literal, SupportsIndex

import numpy as np

from ...errors import InvalidRuntime
from ...limits import MAX_IMAGE_PX
from ..fields import Buffer, load
from .crop import BITS, Bits, Framing, Size

_BUCKET = re.compile(r"w([1-9][0-9]{0,5})h([1-9][0-9]{0,5})(?:f([1-9][0-9]{0,5}))?")

GivenSize = tuple[SupportsIndex, SupportsIndex] | str | None


def parse_size(value: GivenSize) -> Size | None:
    """Return (height, width) in px; None for None. Raises: TypeError, ValueError for other values."""
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


def parse_frames(value: object) -> int | None:
    """Return a bucket's number of frames, or None. Raises: ValueError."""
    if isinstance(value, str):
        return _bucket(value)[2]
    return None


def _bucket(name: str) -> tuple[int, int, int | None]:
    """Return (height, width, frames) of a name such as `w640h384f32`: width first, as in the column `bucket`."""
    bucket = _BUCKET.fullmatch(name)
    if bucket is None:
        raise ValueError("a bucket is named like w896h1152, or w640h384f32 for clips of 32 frames")
    return int(bucket[2]), int(bucket[1]), None if bucket[3] is None else int(bucket[3])


Alpha = Literal["white", "black", "keep"]

MAX_SIZE_PX = MAX_IMAGE_PX
"""Most pixels of a result: as many as in the largest image that is decoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageDecoder:
    """Decodes an image to uint8 [H, W, C]: see `loader.image`."""

    size: Size | None = None
    """(height, width) in pixels; None for the stored size."""
    crop: str | None = None
    """"center" or "random" crops to `size`; None stretches the whole image to it."""
    alpha: Alpha = "white"
    """Background of transparent pixels, "white" or "black"; "keep" returns four channels."""
    bits: Bits | None = None
    """8: uint8. 16: uint16, of PNG of 16 bits. None: uint8, and uint16 of gray PNG of 16 bits."""

    def __post_init__(self) -> None:
        if self.size is not None and (min(self.size) < 1 or self.size[0] * self.size[1] > MAX_SIZE_PX):
            raise InvalidRuntime(
                f"image(size={self.size}): (height, width) in px, at least 1, together at most {MAX_SIZE_PX} px",
                what="size",
                given=self.size,
                accepted=MAX_SIZE_PX,
            )
        if self.crop not in (None, "center", "random"):
            raise InvalidRuntime(
                f"image(crop={self.crop!r}): 'center', 'random' or None",
                what="crop",
                given=self.crop,
                accepted=["center", "random", None],
            )
        if self.crop is not None and self.size is None:
            raise InvalidRuntime(
                f"image(crop={self.crop!r}) needs size=(height, width): what to cut to",
                what="size",
                given=self.size,
                accepted="(height, width), for a crop",
            )
        if self.alpha not in ("white", "black", "keep"):
            raise InvalidRuntime(
                f"image(alpha={self.alpha!r}): 'white', 'black' or 'keep'",
                what="alpha",
                given=self.alpha,
                accepted=["white", "black", "keep"],
            )
        if self.bits not in (None, *BITS):
            raise InvalidRuntime(
                f"image(bits={self.bits!r}): 8, 16 or None",
                what="bits",
                given=self.bits,
                accepted=[8, 16, None],
            )

    def __call__(self, data: Buffer, rng: np.random.Generator | None = None) -> np.ndarray:
        """Return the image.

        Raises: DecodeFailed if the bytes are damaged, or not JPEG, PNG or WebP; MissingDependency (pillow).
        """
        place = None
        if self.crop == "random" and rng is not None:
            place = (float(rng.random()), float(rng.random()))
        framing = Framing(size=self.size, crop=self.crop, place=place, bits=self.bits)
        pixels: np.ndarray = load("image.decode:decode_framed")(data, framing, self.alpha)
        return pixels


def image(
    size: GivenSize = None,
    crop: str | None = None,
    alpha: Alpha = "white",
    bits: Bits | None = None,
) -> ImageDecoder:
    """Return a decoder that gives all images of a field one shape, so that a batch is one array.

    `Loader(plan, decode={"jpg": loader.image(size=(224, 224), crop="random")})` returns uint8 [H, W, 3] RGB, upright.
    Gray PNG of 16 bits is data, such as depth: it stays as stored, uint16 [H, W, 1].

        size: (height, width) in px, or None for the stored size. Or a bucket's name such as "w896h1152" (width first).
        crop: None stretches the image to `size`. "center" and "random" scale it until it just covers `size`, and cut
            the excess: evenly, or at a random position (without a generator: evenly). Smaller images are enlarged; a
            predicate on `width_px` and `height_px` leaves them out.
        alpha: background of transparent pixels, "white" or "black". With "keep" the result is [H, W, 4]; alpha is 255
            if the image has no transparency.
        bits: 8 gives uint8, of 16 bits the high byte. 16 gives uint16 of PNG of 16 bits, RGB [H, W, 3] too, and
            refuses others. None refuses PNG of 16 bits in colour or with alpha. uint16 is scaled by nearest neighbour.

    Resampling is bicubic, antialiased, in integers, so every machine gives the same bits.

    Raises: InvalidRuntime.
    """
    try:
        if parse_frames(size) is not None:
            raise ValueError("a bucket of clips; a bucket of images is named like w896h1152")
        return ImageDecoder(size=parse_size(size), crop=crop, alpha=alpha, bits=bits)
    except (TypeError, ValueError) as error:
        if isinstance(error, InvalidRuntime):
            raise
        raise InvalidRuntime(
            f"image({size!r}, {crop!r}, {alpha!r}, bits={bits!r}): {error}",
            what="image()",
            given=[size, crop, alpha, bits],
        ) from error
