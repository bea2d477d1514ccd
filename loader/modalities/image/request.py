"""Requests for pictures of one shape (`image`): a size in px or a bucket, the part of the picture, and alpha."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Literal, NoReturn, SupportsIndex

import numpy as np

from ...errors import InvalidRuntime
from ...limits import MAX_IMAGE_PX
from ...native.python import MAX_SIDE
from ..destination import Place, PlacingDecoder, nowhere
from ..fields import Buffer, load
from .crop import Box, Framing, Size
from .random_box import Range, draw_box, draw_flip

_BUCKET = re.compile(r"w([1-9][0-9]{0,5})h([1-9][0-9]{0,5})(?:f([1-9][0-9]{0,5}))?")

GivenSize = tuple[SupportsIndex, SupportsIndex] | str | None


def size_of(given: GivenSize) -> Size | None:
    """Return (height, width) in px, or None for None.

    Raises: TypeError, ValueError for anything that is neither a pair of whole numbers nor a bucket.
    """
    if given is None:
        return None
    if isinstance(given, str):
        height, width, _ = _bucket(given)
        return height, width
    try:
        height, width = map(operator.index, given)
    except (TypeError, ValueError):
        raise TypeError("size is (height, width) in whole px, or the name of a bucket") from None
    return height, width


def frames_of(given: object) -> int | None:
    """Return the frames of a clip, of a bucket that says so. Raises: ValueError for a text that names none."""
    return _bucket(given)[2] if isinstance(given, str) else None


def _bucket(name: str) -> tuple[int, int, int | None]:
    """Return (height, width, frames) of `w640h384f32`: width first, as the column `bucket` has it."""
    found = _BUCKET.fullmatch(name)
    if found is None:
        raise ValueError("a bucket is named like w896h1152, or w640h384f32 for clips of 32 frames")
    return int(found[2]), int(found[1]), None if found[3] is None else int(found[3])


Alpha = Literal["white", "black", "keep"]

MAX_SIZE_PX = MAX_IMAGE_PX
"""The most pixels of a result: those of the largest picture that is decoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageDecoder:
    """Decodes a picture to uint8 [H, W, C]; `loader.image` makes one and explains its arguments."""

    size: Size | None = None
    """(height, width) in pixels; None for the stored size."""
    crop: str | None = None
    """"center" or "random" cuts to `size`; None stretches the whole picture to it."""
    alpha: Alpha = "white"
    """Ground for transparent pictures, "white" or "black"; "keep" gives four channels."""

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
        """Return the picture. Raises: DecodeFailed (damaged, not JPEG, PNG or WebP); MissingDependency (pillow)."""
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
    """Return a decoder for an image field whose pictures all come in one shape, so that a batch is one array.

    `Loader(plan, decode={"jpg": loader.image(size=(224, 224), crop="random")})` gives uint8 [H, W, 3] RGB, upright.

    size: (height, width) in px, or None for the stored size. Or the name of a bucket such as "w896h1152" (width first,
    as the column `bucket` has it).
    crop: None stretches the whole picture to `size`. "center" and "random" scale the picture, its shape kept, until it
    just covers `size`. "center" cuts the rest away on both sides, "random" at a place drawn from the sample's
    generator (in the middle where there is none). A smaller picture is enlarged; leave it out with a predicate on
    `width_px` and `height_px`.
    alpha: ground of transparent pixels, "white" or "black"; or "keep": [H, W, 4], with an alpha of 255 for pictures
    that have none.

    Resampling is bicubic over the whole source area (antialiased), in whole numbers: the same bits on every machine. A
    JPEG at least four times as large as the result is scaled by its decoder first, to no less than twice the result.
    Its cost in exactness and its saving: docs/pipeline.md.

    Raises: InvalidRuntime.
    """
    try:
        if frames_of(size) is not None:
            raise ValueError("a bucket of clips; a picture's is named like w896h1152")
        return ImageDecoder(size=size_of(size), crop=crop, alpha=alpha)
    except (TypeError, ValueError) as error:
        if isinstance(error, InvalidRuntime):
            raise
        raise InvalidRuntime(f"image({size!r}, {crop!r}, {alpha!r}): {error}") from error


MOST_RATIO = 1000.0
"""The largest width by height of a box, and by 1 the smallest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomResizedCrop(PlacingDecoder):
    """Decodes a random box of an image to a size; `loader.random_resized_crop` makes one, and explains it."""

    size: Size
    """(height, width) in pixels."""
    area: Range = (0.08, 1.0)
    """Smallest and largest share of the picture's area."""
    ratio: Range = (3 / 4, 4 / 3)
    """Smallest and largest width by height of the box."""
    flip: float = 0.0
    """Chance of a result that is mirrored left to right."""
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
    """Return a decoder for training: a random box of an image, filtered to `size`, and flipped by chance.

    `Loader(plan, decode={"jpg": loader.random_resized_crop((224, 224), flip=0.5)})` gives uint8 [H, W, 3] RGB, upright.
    torchvision's `RandomResizedCrop(size, scale=area, ratio=ratio)` and `RandomHorizontalFlip(p=flip)` draw from the
    same distributions.

    size: (height, width) in px, or the name of a bucket such as "w896h1152" (width first, as the column `bucket` has
    it).
    area: smallest and largest share of the image's area (torchvision: `scale`). The share is uniform between them.
    ratio: smallest and largest width by height of the box. Its logarithm is uniform between them, to 3e-5 of the
    cumulative distribution. If 10 boxes in turn do not fit, the largest one in the middle is taken.
    flip: chance that left and right are swapped.
    alpha: ground of transparent pixels, "white" or "black"; or "keep": [H, W, 4], with an alpha of 255 for images that
    have none.

    Draws come from the sample's generator. Without one, the box is the largest in the middle, not flipped.

    The filter is linear, as wide as a shrinking needs (antialiased), and sees the box only: `interpolation=BILINEAR,
    antialias=True` in torchvision, to one level. It computes in whole numbers: the same bits on every machine. A JPEG's
    decoder scales a box first that is at least four times as large as the result, to no less than twice the result.

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


def _range_of(name: str, given: object) -> Range:
    """Return a pair of numbers. Raises: TypeError."""
    if not isinstance(given, Sequence) or len(given) != 2:
        raise TypeError(f"{name} is a pair of numbers, (smallest, largest)")
    return _number_of(name, given[0]), _number_of(name, given[1])


def _number_of(name: str, given: object) -> float:
    """Return a number. Raises: TypeError."""
    if isinstance(given, bool) or not isinstance(given, Real):
        raise TypeError(f"{name}: {given!r} is no number")
    return float(given)
