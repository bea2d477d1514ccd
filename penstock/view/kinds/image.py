"""Pictures: arrays [H, W, C] and [C, H, W] with 1, 3 or 4 channels, and gray [H, W] of 8 bits or of truth values.

Floats from 0 to 1 and integers from 0 to 255 are shown as they are. Others, such as those that were normalised, are
shown from their least to their largest value, and a line says so.
"""

from typing import Any

import numpy as np

from ...units import share
from .array_drawing import Array, array_lines, array_marks, as_array, chunks_of, range_of, told
from .kind import EDGE_PX, Facts, Kind, Mark, Media, mark
from .png import png, thinned, thumbnail_of
from .scaled_pixels import Scale, scale_of, scaled

MAX_DETAIL_PX = 2**24
"""Pixels that are shown one by one; of a larger picture every n-th row and column."""
LEAST_PX = 8
"""Pixels of the shorter side, below which an array is taken for a table of numbers."""

BLACK, BLACK_SHARE = 2 / 255, 0.995
"""A picture is black where this share of its values is at most this, of 1."""
SATURATED_SHARE = 0.9
"""A picture is saturated where this share of its values is the largest that there is."""
MAX_SCALED = 20
"""Normalised pictures stay within it; those that were not divided by 255 do not."""


def channels_last(array: Array) -> Array | None:
    """Return a view [H, W, C] of a picture; None for an array that is none. The last axis is tried first."""
    if array.ndim == 2 and array.dtype in (np.uint8, np.bool_):
        array = array[:, :, None]
    if array.ndim != 3 or array.dtype.kind == "c":
        return None
    if array.shape[2] in (1, 3, 4) and min(array.shape[:2]) >= LEAST_PX:
        return array
    if array.shape[0] in (1, 3, 4) and min(array.shape[1:]) >= LEAST_PX:
        return array.transpose(1, 2, 0)
    return None


def _picture(value: object) -> Array | None:
    array = as_array(value)
    return None if array is None else channels_last(array)


def _found(value: object) -> Array:
    picture = _picture(value)
    assert picture is not None  # it fits
    return picture


def fits(value: Any, facts: Facts) -> bool:
    """Return whether a value is a picture."""
    return _picture(value) is not None


def thumbnail(value: Any, facts: Facts, edge: int = EDGE_PX) -> Media:
    """Return the picture, small."""
    picture = _found(value)
    return small_picture(picture, scale_of(picture), edge)


def small_picture(picture: Array, scale: Scale, edge: int) -> Media:
    """Return a picture [H, W, C], small."""
    return thumbnail_of(scaled(thinned(picture, edge), scale), edge, *picture.shape[:2])


def detail(value: Any, facts: Facts) -> tuple[Media, ...]:
    """Return a PNG of every pixel."""
    picture = _found(value)
    return (whole_picture(picture, scale_of(picture)),)


def whole_picture(picture: Array, scale: Scale) -> Media:
    """Return a PNG of every pixel of [H, W, C], or of every n-th row and column of a picture beyond the limit."""
    step = _step(*picture.shape[:2])
    return png(scaled(picture[::step, ::step], scale))


def _step(height: int, width: int) -> int:
    step = 1
    while -(-height // step) * -(-width // step) > MAX_DETAIL_PX:
        step += 1
    return step


def lines(value: Any, facts: Facts) -> tuple[str, ...]:
    """Return size, channels, dtype and range, and the values drawn black and white where they are the picture's own."""
    array, picture = as_array(value), _found(value)
    assert array is not None
    order = (
        "" if array.ndim == 2 else ", channels first" if picture.shape != array.shape else ", channels last"
    )
    return f"{size_of(picture)}{order}", *array_lines(value, array), *scale_lines(picture, scale_of(picture))


def size_of(picture: Array) -> str:
    """Return such as '30 x 20 px, RGB' of [..., H, W, C]."""
    height, width, channels = picture.shape[-3:]
    return f"{width} x {height} px, { {1: 'gray', 3: 'RGB', 4: 'RGB and alpha'}[channels] }"


def scale_lines(picture: Array, scale: Scale) -> tuple[str, ...]:
    """Return how [..., H, W, C] is drawn, where that is not pixel for pixel as it is."""
    step = _step(*picture.shape[-3:-1])
    thin = (f"every {step} px is shown: at most {MAX_DETAIL_PX:,} px are",) if step > 1 else ()
    return (str(scale), *thin) if scale.own or not scale.finite else thin


def marks(value: Any, facts: Facts) -> tuple[Mark, ...]:
    """Return NaN, infinite, constant, black, saturated, and floats that were not divided by 255."""
    picture = _found(value)
    return picture_marks(picture[:, :, :3], scale_of(picture))


def picture_marks(colours: Array, scale: Scale) -> tuple[Mark, ...]:
    """Return the marks of colours [..., C] without alpha. scale: of the whole picture."""
    found = range_of(colours)
    out = array_marks(colours, found)
    dark, bright = (0.0, 0.0) if scale.own else _shares(colours, scale)
    if dark >= BLACK_SHARE:
        out = (*_but_constant(out), mark("black", f"{share(dark, 1)} of the values are black"))
    if bright >= SATURATED_SHARE:
        text = f"{share(bright, 1)} of the values are the largest possible, {told(scale.high)}"
        out = (*_but_constant(out), mark("saturated", text))
    if colours.dtype.kind == "f" and found.high > MAX_SCALED:
        out = (*out, mark("not_scaled", f"floats up to {told(found.high)}: were they divided by 255?"))
    return out


def _shares(colours: Array, scale: Scale) -> tuple[float, float]:
    """Return the shares of black and of saturated values."""
    if colours.dtype == np.uint8:
        found = range_of(colours)
        return sum(found.counts[: int(BLACK * 255) + 1]) / found.examined, found.counts[255] / found.examined
    dark = bright = examined = 0
    for chunk in chunks_of(colours):
        examined += chunk.size
        dark += int(np.count_nonzero(chunk <= BLACK * scale.high))
        bright += int(np.count_nonzero(chunk >= scale.high))
    return dark / examined, bright / examined


def _but_constant(marks: tuple[Mark, ...]) -> tuple[Mark, ...]:
    return tuple(one for one in marks if one.name != "constant")


IMAGE = Kind(name="image", fits=fits, lines=lines, marks=marks, thumbnail=thumbnail, detail=detail)
