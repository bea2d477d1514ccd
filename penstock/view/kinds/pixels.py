"""Numbers of any dtype and range as 8-bit pixels, and pixels as PNG and JPEG."""

import io
from dataclasses import dataclass
from typing import Any

import numpy as np

from .array_values import Array, limits_of, number_text
from .kind import Media

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
"""uint8 [H, W, C], C = 1 (gray), 3 (RGB) or 4 (RGB and alpha)."""

_JPEG_QUALITY = 85
_SPARE = 4
"""An image is thinned to this many times the target size, then averaged."""
NOT_FINITE = (255, 0, 255)
"""Colour of NaN and infinite pixels (magenta)."""


def png(pixels: Pixels) -> Media:
    from PIL import Image

    sink = io.BytesIO()
    image = Image.fromarray(
        np.ascontiguousarray(pixels[:, :, 0]) if pixels.shape[2] == 1 else interleaved(pixels)
    )
    image.save(sink, "PNG", compress_level=1)
    return Media(type="image/png", data=sink.getvalue())


def thumbnail_of(pixels: Pixels, edge: int, height: int, width: int) -> Media:
    """Return an image of at most `edge` pixels per side. height, width: before `thinned`."""
    size = fitted(height, width, edge)
    if size == pixels.shape[:2]:
        return png(pixels)
    from PIL import Image

    channels = pixels.shape[2]
    plane = pixels[:, :, 0] if channels == 1 else interleaved(pixels)
    # Averaging whole squares first saves a third of the time. The error, one level on average, equals the JPEG's.
    image = Image.fromarray(np.ascontiguousarray(plane)).resize(
        size[::-1], Image.Resampling.BILINEAR, reducing_gap=1.0
    )
    small = np.asarray(image).reshape(*size, channels)
    return png(small) if channels == 4 else jpeg(small)


def jpeg(pixels: Pixels) -> Media:
    """Return a JPEG of gray or RGB pixels."""
    import simplejpeg

    space, subsampling = ("GRAY", "Gray") if pixels.shape[2] == 1 else ("RGB", "420")
    data = simplejpeg.encode_jpeg(
        np.ascontiguousarray(pixels), quality=_JPEG_QUALITY, colorspace=space, colorsubsampling=subsampling
    )
    return Media(type="image/jpeg", data=data)


def interleaved(pixels: Pixels) -> Pixels:
    """Return pixels whose channels are adjacent in memory."""
    # Planes are copied one at a time.
    if pixels.strides[2] <= pixels.strides[1]:
        return np.ascontiguousarray(pixels)
    whole = np.empty(pixels.shape, np.uint8)
    for channel in range(pixels.shape[2]):
        whole[:, :, channel] = pixels[:, :, channel]
    return whole


def thinned(array: np.ndarray[Any, Any], edge: int) -> np.ndarray[Any, Any]:
    """Return every n-th row and column, enough for a thumbnail. array: [H, W, ...]."""
    rows, columns = (max(1, side // (_SPARE * edge)) for side in array.shape[:2])
    return array[::rows, ::columns]


def fitted(height: int, width: int, edge: int) -> tuple[int, int]:
    """Return (height, width), the longer at most `edge`."""
    scale = min(1.0, edge / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Values drawn black and white; uint8 is unchanged."""

    low: float
    """Black."""
    high: float
    """White."""
    finite: bool = True
    """False if a value is NaN or infinite."""
    own: bool = False
    """The image's own range, neither 0 to 1 nor 0 to 255."""

    def __str__(self) -> str:
        note = "; NaN and infinite in magenta" if not self.finite else ""
        return f"shown from {number_text(self.low)} to {number_text(self.high)}{note}"


def scale_of(array: Array) -> Scale:
    """Return 0 to 255, 0 to 1, or the array's own range if it exceeds these."""
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
    """Return uint8 [H, W, C] of [H, W, C], C = 1, 3 or 4. Gray with NaN becomes RGB, for magenta."""
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
            values[...] = 128  # a constant image is neither black nor white
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
