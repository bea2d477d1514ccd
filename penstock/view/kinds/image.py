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
    array_chunks,
    array_lines,
    array_marks,
    array_range,
    as_array,
    finite_limits,
    number_text,
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

    image = Image.fromarray(_plane(pixels))
    sink = io.BytesIO()
    # The fastest level that compresses: a page waits for it.
    image.save(sink, "PNG", compress_level=1)
    return Media(type="image/png", data=sink.getvalue())


def _plane(pixels: Pixels) -> Pixels:
    """Return pixels as PIL takes them: [H, W] for gray, else [H, W, C] without gaps."""
    if pixels.shape[2] == 1:
        return np.ascontiguousarray(pixels[:, :, 0])
    return interleave(pixels)


def thumbnail_of(pixels: Pixels, edge: int, height: int, width: int) -> Media:
    """Return an image of at most `edge` pixels per side. height, width: before `thin`."""
    size = fit_size(height, width, edge)
    if size == pixels.shape[:2]:
        return png(pixels)
    from PIL import Image

    image = Image.fromarray(_plane(pixels))
    # Averaging whole squares first saves a third of the time. The error, one level on average, equals the JPEG's.
    resized = image.resize(size[::-1], Image.Resampling.BILINEAR, reducing_gap=1.0)
    channels = pixels.shape[2]
    small = np.asarray(resized).reshape(*size, channels)
    # JPEG has no alpha.
    if channels == 4:
        return png(small)
    return jpeg(small)


def jpeg(pixels: Pixels) -> Media:
    """Return a JPEG of gray or RGB pixels."""
    import simplejpeg

    space = "RGB"
    subsampling = "420"
    if pixels.shape[2] == 1:
        space = "GRAY"
        subsampling = "Gray"
    data = simplejpeg.encode_jpeg(
        np.ascontiguousarray(pixels), quality=_JPEG_QUALITY, colorspace=space, colorsubsampling=subsampling
    )
    return Media(type="image/jpeg", data=data)


def interleave(pixels: Pixels) -> Pixels:
    """Return pixels whose channels are adjacent in memory."""
    # Planes are copied one at a time.
    if pixels.strides[2] <= pixels.strides[1]:
        return np.ascontiguousarray(pixels)
    whole = np.empty(pixels.shape, np.uint8)
    for channel in range(pixels.shape[2]):
        whole[:, :, channel] = pixels[:, :, channel]
    return whole


def thin(array: np.ndarray[Any, Any], edge: int) -> np.ndarray[Any, Any]:
    """Return every n-th row and column, enough for a thumbnail. array: [H, W, ...]."""
    height, width = array.shape[:2]
    # Skipping rows costs nothing, and the average over the rest hides it.
    row_step = max(1, height // (_SPARE * edge))
    column_step = max(1, width // (_SPARE * edge))
    return array[::row_step, ::column_step]


def fit_size(height: int, width: int, edge: int) -> tuple[int, int]:
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
        text = f"shown from {number_text(self.low)} to {number_text(self.high)}"
        if not self.finite:
            text += "; NaN and infinite in magenta"
        return text


def value_scale(array: Array) -> Scale:
    """Return 0 to 255, 0 to 1, or the array's own range if it exceeds these."""
    if array.dtype == np.uint8:
        return Scale(low=0, high=255)
    if array.dtype == np.bool_ or not array.size:
        return Scale(low=0, high=1)
    low, high, finite = finite_limits(array)
    white = 255 if array.dtype.kind in "iu" else 1
    if not low <= high or (low >= 0 and high <= white):
        return Scale(low=0, high=white, finite=finite)
    return Scale(low=low, high=high, finite=finite, own=True)


def scale_pixels(array: Array, scale: Scale) -> Pixels:
    """Return uint8 [H, W, C] of [H, W, C], C = 1, 3 or 4. Gray with NaN becomes RGB, for magenta."""
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind == "c":
        array = np.abs(array)
    is_small_float = array.dtype.kind == "f" and array.dtype.itemsize <= 4
    exact = np.float32 if is_small_float else np.float64
    values: np.ndarray[Any, Any] = array.astype(exact)
    # [H, W]
    is_finite = None
    if not scale.finite:
        is_finite = np.isfinite(values).all(axis=2)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        if scale.low < scale.high:
            values -= scale.low
            # In Python's floats: the difference of two large float32 may be infinite.
            values *= 255 / (float(scale.high) - float(scale.low))
        else:
            values[...] = 128  # a constant image is neither black nor white
        np.rint(values, out=values)
        if not (scale.finite and np.isfinite(exact(scale.high) - exact(scale.low))):
            np.nan_to_num(values, copy=False, nan=0.0)
    pixels = np.clip(values, 0, 255, out=values).astype(np.uint8)
    if is_finite is None:
        return pixels
    if pixels.shape[2] == 1:
        pixels = np.repeat(pixels, 3, axis=2)
    # Cut to 3 for RGB.
    opaque = (*NOT_FINITE, 255)
    pixels[~is_finite] = opaque[: pixels.shape[2]]
    return pixels


MAX_DETAIL_PX = 2**24
"""Largest image shown pixel by pixel; beyond it, every n-th row and column."""
LEAST_PX = 8
"""Shortest side, in pixels; smaller arrays are tables of numbers."""

BLACK = 2 / 255
"""Brightest dark level, as a share of white."""
BLACK_SHARE = 0.995
"""Share of dark values from which an image is black."""
SATURATED_SHARE = 0.9
"""Share of maximal values from which an image is saturated."""
MAX_SCALED = 20
"""Largest plausible normalised value, exceeded without division by 255."""


def channels_last(array: Array) -> Array | None:
    """Return a view [H, W, C], or None. Tries channels-last first."""
    if array.ndim == 2 and array.dtype in (np.uint8, np.bool_):
        array = array[:, :, None]
    if array.ndim != 3 or array.dtype.kind == "c":
        return None
    # Channels last wins where both fit: decoders return it.
    if array.shape[2] in (1, 3, 4) and min(array.shape[:2]) >= LEAST_PX:
        return array
    if array.shape[0] in (1, 3, 4) and min(array.shape[1:]) >= LEAST_PX:
        return array.transpose(1, 2, 0)
    return None


def _image_or_none(value: object) -> Array | None:
    array = as_array(value)
    if array is None:
        return None
    return channels_last(array)


def _image(value: object) -> Array:
    image = _image_or_none(value)
    assert image is not None  # guaranteed by `fits`
    return image


def fits(value: Any, facts: Facts) -> bool:
    return _image_or_none(value) is not None


def thumbnail(value: Any, facts: Facts, edge: int = EDGE_PX) -> Media:
    image = _image(value)
    return small_image(image, value_scale(image), edge)


def small_image(image: Array, scale: Scale, edge: int) -> Media:
    return thumbnail_of(scale_pixels(thin(image, edge), scale), edge, *image.shape[:2])


def detail(value: Any, facts: Facts) -> tuple[Media, ...]:
    image = _image(value)
    return (whole_image(image, value_scale(image)),)


def whole_image(image: Array, scale: Scale) -> Media:
    """Return a PNG of [H, W, C], thinned beyond MAX_DETAIL_PX."""
    step = _step(*image.shape[:2])
    return png(scale_pixels(image[::step, ::step], scale))


def _step(height: int, width: int) -> int:
    step = 1
    while -(-height // step) * -(-width // step) > MAX_DETAIL_PX:
        step += 1
    return step


def lines(value: Any, facts: Facts) -> tuple[str, ...]:
    array = as_array(value)
    image = _image(value)
    assert array is not None
    summary = size_text(image)
    if array.ndim == 3:
        summary += ", channels last" if image.shape == array.shape else ", channels first"
    return summary, *array_lines(value, array), *scale_lines(image, value_scale(image))


def size_text(image: Array) -> str:
    """Return text such as '30 x 20 px, RGB'. image: [..., H, W, C]."""
    height, width, channels = image.shape[-3:]
    colours = {1: "gray", 3: "RGB", 4: "RGB and alpha"}
    return f"{width} x {height} px, {colours[channels]}"


def scale_lines(image: Array, scale: Scale) -> tuple[str, ...]:
    """Return lines about scaling and thinning. image: [..., H, W, C]."""
    out = []
    if scale.own or not scale.finite:
        out.append(str(scale))
    step = _step(*image.shape[-3:-1])
    if step > 1:
        out.append(f"every {step} px is shown: at most {MAX_DETAIL_PX:,} px are")
    return tuple(out)


def marks(value: Any, facts: Facts) -> tuple[Mark, ...]:
    image = _image(value)
    # Without alpha, which is 255 nearly everywhere and would look saturated.
    return image_marks(image[:, :, :3], value_scale(image))


def image_marks(colours: Array, scale: Scale) -> tuple[Mark, ...]:
    """Return an image's marks. colours: [..., C] without alpha. scale: the whole image's."""
    values = array_range(colours)
    out = list(array_marks(colours, values))
    dark = bright = 0.0
    if not scale.own:
        dark, bright = _shares(colours, scale)
    is_black = dark >= BLACK_SHARE
    is_saturated = bright >= SATURATED_SHARE
    if is_black or is_saturated:
        out = [one for one in out if one.name != "constant"]
    if is_black:
        out.append(mark("black", f"{share(dark, 1)} of the values are black"))
    if is_saturated:
        text = f"{share(bright, 1)} of the values are the largest possible, {number_text(scale.high)}"
        out.append(mark("saturated", text))
    if colours.dtype.kind == "f" and values.high > MAX_SCALED:
        text = f"floats up to {number_text(values.high)}: were they divided by 255?"
        out.append(mark("not_scaled", text))
    return tuple(out)


def _shares(colours: Array, scale: Scale) -> tuple[float, float]:
    """Return the shares of dark values and of largest ones."""
    if colours.dtype == np.uint8:
        values = array_range(colours)
        # Levels 0 to 2: `counts` has one entry per level.
        n_levels = int(BLACK * 255) + 1
        n_dark = sum(values.counts[:n_levels])
        n_bright = values.counts[255]
        return n_dark / values.examined, n_bright / values.examined
    n_dark = n_bright = n_examined = 0
    for chunk in array_chunks(colours):
        n_examined += chunk.size
        n_dark += int(np.count_nonzero(chunk <= BLACK * scale.high))
        n_bright += int(np.count_nonzero(chunk >= scale.high))
    return n_dark / n_examined, n_bright / n_examined


IMAGE = Kind(name="image", fits=fits, lines=lines, marks=marks, thumbnail=thumbnail, detail=detail)
