"""Requests for random resized crops: ranges for the box, the size, the flip probability, and alpha."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import isqrt
from numbers import Real
from typing import NoReturn

import numpy as np

from ...errors import InvalidRuntime
from ...native.python import MAX_SIDE
from ..fields import Buffer, Place, PlacingDecoder, load, nowhere
from .crop import BITS, Bits, Box, Size
from .request import MAX_SIZE_PX, Alpha, GivenSize, parse_frames, parse_size

_BITS = 32
"""Fractions are whole numbers of 2**-32."""
_UNIT = 2.0**_BITS
_HALF = 1 << _BITS - 1
_CELL_BITS = 8
"""A table of 2**8 cells, with equal shares of the logarithm, turns a uniform draw into a ratio."""
_WITHIN_CELL = (1 << _BITS - _CELL_BITS) - 1
"""Mask of a draw's bits that give the place in a cell; the bits above choose the cell."""
_ATTEMPTS = 10  # as torchvision

Range = tuple[float, float]


def draw_box(whole: Size, area: Range, ratio: Range, rng: np.random.Generator | None) -> Box:
    """Return a random box in an image of size `whole` (height, width), as described in `random_resized_crop`."""
    height, width = whole
    ratios = _ratios(ratio)
    if rng is None:
        return _middle(whole, ratios[0], ratios[-1])
    least, most = _fixed_point_range(area)
    # A draw is a number from 0 to 2**32 - 1; a square root of units of 2**-64 is rounded to units of 2**-32. (Functions
    # for both would be called ten times an image, and hold the interpreter's lock for 2 us.)
    random = rng.random
    for _ in range(_ATTEMPTS):
        share = least + ((most - least) * int(random() * _UNIT) >> _BITS)
        px = height * width * share
        point = int(random() * _UNIT)
        cell = point >> _BITS - _CELL_BITS
        within = point & _WITHIN_CELL
        # Straight between a cell's bounds.
        shape = ratios[cell] + ((ratios[cell + 1] - ratios[cell]) * within >> _BITS - _CELL_BITS)
        box_height = isqrt((px << 2 * _BITS) // shape) + _HALF >> _BITS
        box_width = isqrt(px * shape) + _HALF >> _BITS
        top = int(random() * _UNIT)
        left = int(random() * _UNIT)
        if 0 < box_height <= height and 0 < box_width <= width:
            top = top * (height - box_height + 1) >> _BITS
            left = left * (width - box_width + 1) >> _BITS
            return top, left, box_height, box_width
    return _middle(whole, ratios[0], ratios[-1])


def draw_flip(chance: float, rng: np.random.Generator | None) -> bool:
    """Return True with probability `chance`; False if there is no generator.

    Probability 0 also draws, so that boxes do not depend on it.
    """
    return rng is not None and int(rng.random() * _UNIT) < _fixed_chance(chance)


def fixed_point(number: float) -> int:
    """Return a fraction as the nearest whole number of 2**-32."""
    return round(number * _UNIT)  # exact before rounding: a power of two


_fixed_chance = lru_cache(maxsize=32)(fixed_point)


@lru_cache(maxsize=32)
def _fixed_point_range(ends: Range) -> tuple[int, int]:
    return fixed_point(ends[0]), fixed_point(ends[1])


@lru_cache(maxsize=32)
def _ratios(ends: Range) -> tuple[int, ...]:
    """Return the 257 bounds of the cells from the smallest to the largest ratio, in units of 2**-32."""
    ratios = [fixed_point(ends[0]), fixed_point(ends[1])]
    for _ in range(_CELL_BITS):
        # The geometric mean of two neighbours halves their cell on the logarithmic scale.
        finer = []
        for low, high in pairwise(ratios):
            finer += [low, isqrt(low * high)]
        ratios = [*finer, ratios[-1]]
    return tuple(ratios)


def _middle(whole: Size, least: int, most: int) -> Box:
    """Return the largest centred box. least, most: its ratio of width to height, in units of 2**-32."""
    height, width = whole
    if width << _BITS < least * height:
        box_height = max(1, _quotient(width << _BITS, least))
        box_width = width
    elif width << _BITS > most * height:
        box_height = height
        box_width = max(1, _quotient(height * most, 1 << _BITS))
    else:
        return 0, 0, height, width
    return (height - box_height) // 2, (width - box_width) // 2, box_height, box_width


def _quotient(number: int, by: int) -> int:
    """Return the nearest whole number, the larger of two."""
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
    """Background of transparent pixels, "white" or "black"; "keep" returns four channels."""
    bits: Bits | None = None
    """As of `ImageDecoder`."""

    def __post_init__(self) -> None:
        height, width = self.size
        is_inside = min(height, width) >= 1 and max(height, width) <= MAX_SIDE
        if not is_inside or height * width > MAX_SIZE_PX:
            self._refuse("size", f"(height, width) in px, 1 to {MAX_SIDE}, together at most {MAX_SIZE_PX} px")
        if not 0 < self.area[0] <= self.area[1] <= 1:
            self._refuse("area", "(smallest, largest) share of the image's area, above 0 and at most 1")
        if not 1 / MOST_RATIO <= self.ratio[0] <= self.ratio[1] <= MOST_RATIO:
            self._refuse("ratio", "(smallest, largest) width by height, from 1/1000 to 1000")
        if not 0 <= self.flip <= 1:
            self._refuse("flip", "a chance from 0 to 1")
        if self.alpha not in ("white", "black", "keep"):
            self._refuse("alpha", "'white', 'black' or 'keep'")
        if self.bits not in (None, *BITS):
            self._refuse("bits", "8, 16 or None")

    def _refuse(self, name: str, accepted: str) -> NoReturn:
        raise InvalidRuntime(
            f"random_resized_crop({name}={getattr(self, name)!r}): {accepted}",
            what=name,
            given=getattr(self, name),
            accepted=accepted,
        )

    def __call__(
        self,
        data: Buffer,
        rng: np.random.Generator | None = None,
        place: Place = nowhere,
    ) -> np.ndarray:
        """Return the crop, in memory from `place` if offered.

        Raises: DecodeFailed if the bytes are damaged, or not JPEG, PNG or WebP; MissingDependency (pillow).
        """

        def choose(whole: Size) -> tuple[Box, bool]:
            flips = draw_flip(self.flip, rng)
            return draw_box(whole, self.area, self.ratio, rng), flips

        decode_box = load("image.decode:decode_box")
        pixels: np.ndarray = decode_box(data, choose, self.size, self.alpha, place, self.bits)
        return pixels


def random_resized_crop(
    size: GivenSize,
    area: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    flip: float = 0.0,
    alpha: Alpha = "white",
    bits: Bits | None = None,
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
        bits: as for `loader.image`: 8 or 16 bits per sample.

    Without a generator, the crop is the largest centered box, not flipped. The filter is linear and antialiased:
    torchvision's `BILINEAR` with `antialias=True`, to within one level. The JPEG decoder first shrinks a box of at
    least four times the result.

    Raises: InvalidRuntime.
    """
    try:
        if size is None or parse_frames(size) is not None:
            raise ValueError(
                "size is (height, width) in whole px, or a bucket of images, named like w896h1152"
            )
        return RandomResizedCrop(
            size=parse_size(size),  # type: ignore[arg-type]  # not None
            area=_parse_range("area", area),
            ratio=_parse_range("ratio", ratio),
            flip=_parse_number("flip", flip),
            alpha=alpha,
            bits=bits,
        )
    except (TypeError, ValueError) as error:
        if isinstance(error, InvalidRuntime):
            raise
        raise InvalidRuntime(
            f"random_resized_crop({size!r}, area={area!r}, ratio={ratio!r}, flip={flip!r}): {error}",
            what="random_resized_crop()",
            given=[size, area, ratio, flip],
        ) from error


def _parse_range(name: str, value: object) -> Range:
    if not isinstance(value, Sequence) or len(value) != 2:
        raise TypeError(f"{name} is a pair of numbers, (smallest, largest)")
    return _parse_number(name, value[0]), _parse_number(name, value[1])


def _parse_number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}: {value!r} is not a number")
    return float(value)
