"""Images: [H, W, C] and [C, H, W] with 1, 3 or 4 channels, and gray [H, W] of 8-bit integers or booleans.

Numbers of any dtype and range become 8-bit pixels, and these PNG and JPEG.
"""

import io
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...units import share
from .array_values import (
    Array,
    array_lines,
    array_marks,
    as_array,
    chunks_of,
    limits_of,
    number_text,
    range_of,
)
from .kind import EDGE_PX, Facts, Kind, Mark, Media, mark

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


MAX_DETAIL_PX = 2**24
"""Largest image shown pixel by pixel; beyond it, every n-th row and column."""
LEAST_PX = 8
"""Shortest side, in pixels; smaller arrays are tables of numbers."""

BLACK, BLACK_SHARE = 2 / 255, 0.995
"""Brightest dark level, and share of dark values from which an image is black."""
SATURATED_SHARE = 0.9
"""Share of maximal values, likewise."""
MAX_SCALED = 20
"""Largest plausible normalised value, exceeded without division by 255."""


def channels_last(array: Array) -> Array | None:
    """Return a view [H, W, C], or None. Tries channels-last first."""
    if array.ndim == 2 and array.dtype in (np.uint8, np.bool_):
        array = array[:, :, None]
    if array.ndim != 3 or array.dtype.kind == "c":
        return None
    if array.shape[2] in (1, 3, 4) and min(array.shape[:2]) >= LEAST_PX:
        return array
    if array.shape[0] in (1, 3, 4) and min(array.shape[1:]) >= LEAST_PX:
        return array.transpose(1, 2, 0)
    return None


def _image_or_none(value: object) -> Array | None:
    array = as_array(value)
    return None if array is None else channels_last(array)


def _image(value: object) -> Array:
    image = _image_or_none(value)
    assert image is not None  # guaranteed by `fits`
    return image


def fits(value: Any, facts: Facts) -> bool:
    return _image_or_none(value) is not None


def thumbnail(value: Any, facts: Facts, edge: int = EDGE_PX) -> Media:
    image = _image(value)
    return small_image(image, scale_of(image), edge)


def small_image(image: Array, scale: Scale, edge: int) -> Media:
    return thumbnail_of(scaled(thinned(image, edge), scale), edge, *image.shape[:2])


def detail(value: Any, facts: Facts) -> tuple[Media, ...]:
    image = _image(value)
    return (whole_image(image, scale_of(image)),)


def whole_image(image: Array, scale: Scale) -> Media:
    """Return a PNG of [H, W, C], thinned beyond MAX_DETAIL_PX."""
    step = _step(*image.shape[:2])
    return png(scaled(image[::step, ::step], scale))


def _step(height: int, width: int) -> int:
    step = 1
    while -(-height // step) * -(-width // step) > MAX_DETAIL_PX:
        step += 1
    return step


def lines(value: Any, facts: Facts) -> tuple[str, ...]:
    array, image = as_array(value), _image(value)
    assert array is not None
    order = "" if array.ndim == 2 else ", channels first" if image.shape != array.shape else ", channels last"
    return f"{size_of(image)}{order}", *array_lines(value, array), *scale_lines(image, scale_of(image))


def size_of(image: Array) -> str:
    """Return text such as '30 x 20 px, RGB'. image: [..., H, W, C]."""
    height, width, channels = image.shape[-3:]
    return f"{width} x {height} px, { {1: 'gray', 3: 'RGB', 4: 'RGB and alpha'}[channels] }"


def scale_lines(image: Array, scale: Scale) -> tuple[str, ...]:
    """Return lines about scaling and thinning. image: [..., H, W, C]."""
    step = _step(*image.shape[-3:-1])
    thin = (f"every {step} px is shown: at most {MAX_DETAIL_PX:,} px are",) if step > 1 else ()
    return (str(scale), *thin) if scale.own or not scale.finite else thin


def marks(value: Any, facts: Facts) -> tuple[Mark, ...]:
    image = _image(value)
    return image_marks(image[:, :, :3], scale_of(image))


def image_marks(colours: Array, scale: Scale) -> tuple[Mark, ...]:
    """Return an image's marks. colours: [..., C] without alpha. scale: the whole image's."""
    values = range_of(colours)
    out = array_marks(colours, values)
    dark, bright = (0.0, 0.0) if scale.own else _shares(colours, scale)
    if dark >= BLACK_SHARE:
        out = (*_but_constant(out), mark("black", f"{share(dark, 1)} of the values are black"))
    if bright >= SATURATED_SHARE:
        text = f"{share(bright, 1)} of the values are the largest possible, {number_text(scale.high)}"
        out = (*_but_constant(out), mark("saturated", text))
    if colours.dtype.kind == "f" and values.high > MAX_SCALED:
        out = (
            *out,
            mark("not_scaled", f"floats up to {number_text(values.high)}: were they divided by 255?"),
        )
    return out


def _shares(colours: Array, scale: Scale) -> tuple[float, float]:
    if colours.dtype == np.uint8:
        values = range_of(colours)
        return sum(values.counts[: int(BLACK * 255) + 1]) / values.examined, values.counts[
            255
        ] / values.examined
    dark = bright = examined = 0
    for chunk in chunks_of(colours):
        examined += chunk.size
        dark += int(np.count_nonzero(chunk <= BLACK * scale.high))
        bright += int(np.count_nonzero(chunk >= scale.high))
    return dark / examined, bright / examined


def _but_constant(marks: tuple[Mark, ...]) -> tuple[Mark, ...]:
    return tuple(mark for mark in marks if mark.name != "constant")


IMAGE = Kind(name="image", fits=fits, lines=lines, marks=marks, thumbnail=thumbnail, detail=detail)
