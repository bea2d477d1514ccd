"""Images: [H, W, C] and [C, H, W] with 1, 3 or 4 channels, and gray [H, W] of 8-bit integers or booleans."""

from typing import Any

import numpy as np

from ...units import share
from .array_values import Array, array_lines, array_marks, as_array, chunks_of, number_text, range_of
from .kind import EDGE_PX, Facts, Kind, Mark, Media, mark
from .pixels import Scale, png, scale_of, scaled, thinned, thumbnail_of

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
    """colours: [..., C] without alpha. scale: the whole image's."""
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
