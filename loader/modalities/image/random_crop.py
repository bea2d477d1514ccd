"""Requests for random resized crops: the ranges of the box, the size, the chance of a flip, and alpha."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import NoReturn

import numpy as np

from ...errors import InvalidRuntime
from ...native.python import MAX_SIDE
from ..destination import Place, PlacingDecoder, nowhere
from ..fields import Buffer, load
from .crop import Box, Size
from .random_box import Range, draw_box, draw_flip
from .request import MAX_SIZE_PX, Alpha, GivenSize, frames_of, size_of

MOST_RATIO = 1000.0
"""The largest width by height of a box, and by 1 the smallest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomResizedCrop(PlacingDecoder):
    """Decodes a random box of an image to a size; `loader.random_resized_crop` makes one, and explains it."""

    size: Size
    """(height, width) in pixels."""
    area: Range = (0.08, 1.0)
    """Smallest and largest share of the image's area."""
    ratio: Range = (3 / 4, 4 / 3)
    """Smallest and largest width by height of the box."""
    flip: float = 0.0
    """Chance that left and right are swapped."""
    alpha: Alpha = "white"
    """Ground for transparent images, "white" or "black"; "keep" gives four channels."""

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
        """Return the crop, in the memory that `place` offers.

        Raises: DecodeFailed (damaged, not JPEG, PNG or WebP); MissingDependency (pillow).
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
    """Return a decoder for training: it crops a random box of an image, scales it to `size`, and may flip it.

    `Loader(plan, decode={"jpg": loader.random_resized_crop((224, 224), flip=0.5)})` gives uint8 [H, W, 3] RGB, upright.
    torchvision's `RandomResizedCrop(size, scale=area, ratio=ratio)` and `RandomHorizontalFlip(p=flip)` draw from the
    same distributions.

    size: (height, width) in px, or the name of a bucket such as "w896h1152" (width first, as the column `bucket` has
    it).
    area: smallest and largest share of the image's area (torchvision: `scale`). The share is uniform between them.
    ratio: smallest and largest width by height of the box. Its logarithm is uniform between them, to 3e-5 of the
    cumulative distribution. If 10 boxes in turn do not fit, the crop is the largest box in the middle.
    flip: chance that left and right are swapped.
    alpha: ground of transparent pixels, "white" or "black"; or "keep": [H, W, 4], with an alpha of 255 for images that
    have none.

    The sample's generator gives the numbers. Without one, the crop is the largest box in the middle, not flipped.

    The filter is linear and antialiased, and reads the box only. It is torchvision's `BILINEAR` with `antialias=True`,
    to one level. It computes in whole numbers: the same bits on every machine. If a JPEG's box is at least four times
    as large as the result, its decoder scales the image first, to no less than twice the result. The whole file is
    decoded, so damage anywhere in it is refused.

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
