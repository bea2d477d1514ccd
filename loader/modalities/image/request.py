"""Requests for images of one shape: a size in px or a bucket, the crop or a random box, and alpha."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import isqrt
from numbers import Real
from typing import Literal, NoReturn, SupportsIndex

import numpy as np

from ...errors import InvalidRuntime
from ...limits import MAX_IMAGE_PX
from ...native.python import MAX_SIDE
from ..fields import Buffer, Place, PlacingDecoder, load, nowhere
from .crop import Box, Framing, Size

_BUCKET = re.compile(r"w([1-9][0-9]{0,5})h([1-9][0-9]{0,5})(?:f([1-9][0-9]{0,5}))?")

GivenSize = tuple[SupportsIndex, SupportsIndex] | str | None


def size_of(value: GivenSize) -> Size | None:
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


def frames_of(value: object) -> int | None:
    """Return a bucket's number of frames, or None. Raises: ValueError."""
    return _bucket(value)[2] if isinstance(value, str) else None


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
    """None stretches the whole image to `size`."""
    alpha: Alpha = "white"
    """Background, "white" or "black"; "keep" returns four channels."""

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
        """Return the image.

        Raises: DecodeFailed if not an undamaged JPEG, PNG or WebP; MissingDependency (pillow).
        """
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
    """Return a decoder that gives all images of a field one shape, so that a batch is one array.

    `Loader(plan, decode={"jpg": loader.image(size=(224, 224), crop="random")})` returns uint8 [H, W, 3] RGB, upright.

        size: (height, width) in px, or None for the stored size. Or a bucket's name such as "w896h1152" (width first).
        crop: None stretches the image to `size`. "center" and "random" scale it until it just covers `size`, and cut
            the excess: evenly, or at a random position (without a generator: evenly). Smaller images are enlarged; a
            predicate on `width_px` and `height_px` leaves them out.
        alpha: background of transparent pixels, "white" or "black". With "keep" the result is [H, W, 4]; alpha is 255
            if the image has no transparency.

    Resampling is bicubic, antialiased, in integers, so every machine gives the same bits.

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


_BITS = 32
"""Fractions are whole numbers of 2**-32."""
_CELL_BITS = 8
_ATTEMPTS = 10  # as torchvision

Range = tuple[float, float]


def draw_box(whole: Size, area: Range, ratio: Range, rng: np.random.Generator | None) -> Box:
    """Return a random box in an image of size `whole` (height, width), as described in `random_resized_crop`."""
    height, width = whole
    ratios = _ratios(ratio)
    if rng is None:
        return _middle(whole, ratios[0], ratios[-1])
    least, most = fixed(area[0]), fixed(area[1])
    for _ in range(_ATTEMPTS):
        px = height * width * (least + ((most - least) * _drawn(rng) >> _BITS))
        cell, within = divmod(_drawn(rng), 1 << _BITS - _CELL_BITS)
        shape = ratios[cell] + ((ratios[cell + 1] - ratios[cell]) * within >> _BITS - _CELL_BITS)
        box_height, box_width = _root((px << 2 * _BITS) // shape), _root(px * shape)
        top, left = _drawn(rng), _drawn(rng)
        if 0 < box_height <= height and 0 < box_width <= width:
            top, left = top * (height - box_height + 1) >> _BITS, left * (width - box_width + 1) >> _BITS
            return top, left, box_height, box_width
    return _middle(whole, ratios[0], ratios[-1])


def draw_flip(chance: float, rng: np.random.Generator | None) -> bool:
    """Return True with probability `chance`; False if there is no generator.

    Probability 0 also draws, so that boxes do not depend on it.
    """
    return rng is not None and _drawn(rng) < fixed(chance)


def fixed(number: float) -> int:
    """Return a fraction as the nearest whole number of 2**-32."""
    return round(number * 2.0**_BITS)  # exact before rounding: a power of two


def _drawn(rng: np.random.Generator) -> int:
    """Return a random number from 0 to 2**32 - 1."""
    return int(rng.random() * 2.0**_BITS)


def _root(square: int) -> int:
    """Return the square root of a number in units of 2**-64, rounded to units of 2**-32."""
    return isqrt(square) + (1 << _BITS - 1) >> _BITS


@lru_cache(maxsize=32)
def _ratios(ends: Range) -> tuple[int, ...]:
    ratios = [fixed(ends[0]), fixed(ends[1])]
    for _ in range(_CELL_BITS):
        means = [isqrt(low * high) for low, high in pairwise(ratios)]
        ratios = [one for pair in zip(ratios, means, strict=False) for one in pair] + ratios[-1:]
    return tuple(ratios)


def _middle(whole: Size, least: int, most: int) -> Box:
    height, width = whole
    if width << _BITS < least * height:
        box_height, box_width = max(1, _quotient(width << _BITS, least)), width
    elif width << _BITS > most * height:
        box_height, box_width = height, max(1, _quotient(height * most, 1 << _BITS))
    else:
        return 0, 0, height, width
    return (height - box_height) // 2, (width - box_width) // 2, box_height, box_width


def _quotient(number: int, by: int) -> int:
    return (2 * number + by) // (2 * by)


MOST_RATIO = 1000.0
"""Largest ratio of width to height of a box; the smallest is its reciprocal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomResizedCrop(PlacingDecoder):
    """Decodes a random box of an image to a size: see `loader.random_resized_crop`."""

    size: Size
    """(height, width) in pixels."""
    area: Range = (0.08, 1.0)
    """Smallest and largest share of the image's area."""
    ratio: Range = (3 / 4, 4 / 3)
    """Smallest and largest ratio of width to height of the box."""
    flip: float = 0.0
    """Probability that left and right are swapped."""
    alpha: Alpha = "white"
    """Background, "white" or "black"; "keep" returns four channels."""

    def __post_init__(self) -> None:
        if min(self.size) < 1 or max(self.size) > MAX_SIDE or self.size[0] * self.size[1] > MAX_SIZE_PX:
            self._refuse("size", f"(height, width) in px, 1 to {MAX_SIDE}, together at most {MAX_SIZE_PX} px")
        if not 0 < self.area[0] <= self.area[1] <= 1:
            self._refuse("area", "(smallest, largest) share of the image's area, above 0 and at most 1")
        if not 1 / MOST_RATIO <= self.ratio[0] <= self.ratio[1] <= MOST_RATIO:
            self._refuse("ratio", "(smallest, largest) width by height, from 1/1000 to 1000")
        if not 0 <= self.flip <= 1:
            self._refuse("flip", "a chance from 0 to 1")
        if self.alpha not in ("white", "black", "keep"):
            self._refuse("alpha", "'white', 'black' or 'keep'")

    def _refuse(self, name: str, accepted: str) -> NoReturn:
        raise InvalidRuntime(f"random_resized_crop({name}={getattr(self, name)!r}): {accepted}")

    def __call__(
        self, data: Buffer, rng: np.random.Generator | None = None, place: Place = nowhere
    ) -> np.ndarray:
        """Return the crop, in memory from `place` if offered.

        Raises: DecodeFailed if not an undamaged JPEG, PNG or WebP; MissingDependency (pillow).
        """

        def choose(whole: Size) -> tuple[Box, bool]:
            flips = draw_flip(self.flip, rng)
            return draw_box(whole, self.area, self.ratio, rng), flips

        pixels: np.ndarray = load("image.decode:decode_box")(data, choose, self.size, self.alpha, place)
        return pixels


def random_resized_crop(
    size: GivenSize,
    area: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    flip: float = 0.0,
    alpha: Alpha = "white",
) -> RandomResizedCrop:
    """Return a decoder that crops a random box of an image, scales it to `size`, and may flip it.

    `Loader(plan, decode={"jpg": loader.random_resized_crop((224, 224), flip=0.5)})` returns uint8 [H, W, 3] RGB,
    upright. It draws as torchvision's `RandomResizedCrop(size, scale=area, ratio=ratio)` and
    `RandomHorizontalFlip(p=flip)`.

        size: (height, width) in px, or a bucket's name such as "w896h1152" (width first).
        area: smallest and largest share of the image's area (torchvision: `scale`), drawn uniformly.
        ratio: smallest and largest ratio of width to height of the box. Its logarithm is uniform, to 3e-5 of the
            cumulative distribution. If 10 boxes in a row do not fit, the crop is the largest centered box.
        flip: probability that left and right are swapped.
        alpha: background of transparent pixels, "white" or "black". With "keep" the result is [H, W, 4]; alpha is 255
            if the image has no transparency.

    Without a generator, the crop is the largest centered box, not flipped. The filter is linear and antialiased:
    torchvision's `BILINEAR` with `antialias=True`, to within one level. The JPEG decoder first shrinks a box of at
    least four times the result.

    Raises: InvalidRuntime.
    """
    try:
        if size is None or frames_of(size) is not None:
            raise ValueError(
                "size is (height, width) in whole px, or a bucket of images, named like w896h1152"
            )
        return RandomResizedCrop(
            size=size_of(size),  # type: ignore[arg-type]  # not None
            area=_range_of("area", area),
            ratio=_range_of("ratio", ratio),
            flip=_number_of("flip", flip),
            alpha=alpha,
        )
    except (TypeError, ValueError) as error:
        if isinstance(error, InvalidRuntime):
            raise
        raise InvalidRuntime(
            f"random_resized_crop({size!r}, area={area!r}, ratio={ratio!r}, flip={flip!r}): {error}"
        ) from error


def _range_of(name: str, value: object) -> Range:
    if not isinstance(value, Sequence) or len(value) != 2:
        raise TypeError(f"{name} is a pair of numbers, (smallest, largest)")
    return _number_of(name, value[0]), _number_of(name, value[1])


def _number_of(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}: {value!r} is no number")
    return float(value)
