"""Numbers of any dtype and range as pixels of 8 bits."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from .array_drawing import Array, limits_of, told
from .png import Pixels

NOT_FINITE = (255, 0, 255)
"""Colour of a pixel that is NaN or infinite: magenta."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The values that are drawn black and white. Those of uint8 are drawn as they are."""

    low: float
    """Value drawn black."""
    high: float
    """Value drawn white."""
    finite: bool = True
    """False where some value is NaN or infinite."""
    own: bool = False
    """True where the picture's own range was taken, as it is neither 0 to 1 nor 0 to 255."""

    def __str__(self) -> str:
        told_bad = "; NaN and infinite in magenta" if not self.finite else ""
        return f"shown from {told(self.low)} to {told(self.high)}{told_bad}"


def scale_of(array: Array) -> Scale:
    """Return the scale of a picture: 0 to 255, or 0 to 1; where values lie beyond, their least and their largest."""
    if array.dtype == np.uint8:
        return Scale(low=0, high=255)
    if array.dtype == np.bool_ or not array.size:
        return Scale(low=0, high=1)
    low, high, finite = limits_of(array)
    white = 255 if array.dtype.kind in "iu" else 1
    if not low <= high or (low >= 0 and high <= white):
        return Scale(low=0, high=white, finite=finite)
    return Scale(low=low, high=high, finite=finite, own=True)


def scaled(array: Array, scale: Scale) -> Pixels:
    """Return uint8 [H, W, C] of real numbers [H, W, C], C = 1, 3 or 4; gray becomes RGB where a value is not finite."""
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind == "c":
        array = np.abs(array)
    exact = np.float32 if array.dtype.kind == "f" and array.dtype.itemsize <= 4 else np.float64
    values: np.ndarray[Any, Any] = array.astype(exact)
    good = None if scale.finite else np.isfinite(values).all(axis=2)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        if scale.low < scale.high:
            values -= scale.low
            values *= 255 / (float(scale.high) - float(scale.low))
        else:
            values[...] = 128  # one value alone is neither black nor white
        np.rint(values, out=values)
        if not (scale.finite and np.isfinite(exact(scale.high) - exact(scale.low))):
            np.nan_to_num(values, copy=False, nan=0.0)
    pixels = np.clip(values, 0, 255, out=values).astype(np.uint8)
    if good is None:
        return pixels
    if pixels.shape[2] == 1:
        pixels = np.repeat(pixels, 3, axis=2)
    pixels[~good] = NOT_FINITE if pixels.shape[2] == 3 else (*NOT_FINITE, 255)
    return pixels
