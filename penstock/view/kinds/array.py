"""Arrays of any rank, drawn from rank 2 on with one gray pixel per value, planes side by side."""

from typing import Any

import numpy as np

from ...units import number
from .array_values import Array, array_lines, array_marks, array_range, as_array, number_text
from .image import Pixels, png, scale_pixels, thin, thumbnail_of, value_scale
from .kind import EDGE_PX, Facts, Kind, Mark, Media

MAX_PLANES = 8
"""Most planes drawn, evenly spaced."""
MAX_PLANE_PX = 2048
"""Largest side of a plane, in values; beyond it, every n-th row or column is drawn."""
MAX_VALUES = 16
"""Most values listed as text."""
_GAP_PX = 1


def _array(value: object) -> Array:
    array = as_array(value)
    assert array is not None  # guaranteed by `fits`
    return array


def fits(value: Any, facts: Facts) -> bool:
    return as_array(value) is not None


def thumbnail(value: Any, facts: Facts, edge: int = EDGE_PX) -> Media | None:
    """Return the planes, enlarged if tiny."""
    array = _array(value)
    if not _is_drawn(array):
        return None
    strip = _strip(array, edge)
    larger = edge // max(strip.shape[:2])
    if larger > 1:
        strip = strip.repeat(larger, axis=0).repeat(larger, axis=1)
    return thumbnail_of(strip, edge, *strip.shape[:2])


def detail(value: Any, facts: Facts) -> tuple[Media, ...]:
    """Return a PNG with one pixel per value."""
    array = _array(value)
    if _is_drawn(array):
        return (png(_strip(array, MAX_PLANE_PX)),)
    return ()


def lines(value: Any, facts: Facts) -> tuple[str, ...]:
    array = _array(value)
    out = list(array_lines(value, array))
    if array.size:
        values = _magnitudes(array.flat[:MAX_VALUES])
        first = " ".join(number_text(value) for value in values.tolist())
        if array.size > MAX_VALUES:
            first += " …"
        # A grid shows only the first line, so a single number comes first.
        place = 0
        if array.size > 1:
            place = len(out)
        out.insert(place, first)
    if _is_drawn(array):
        n = int(np.prod(array.shape[:-2], dtype=np.int64))
        scale = f"{value_scale(array)}"
        if n > MAX_PLANES:
            scale += f", {MAX_PLANES} of {number(n)} planes"
        elif n > 1:
            scale += f", {n} planes"
        out.append(scale)
    return tuple(out)


def marks(value: Any, facts: Facts) -> tuple[Mark, ...]:
    array = _array(value)
    return array_marks(array, array_range(array))


def _is_drawn(array: Array) -> bool:
    return array.ndim >= 2 and array.size > 0


def _magnitudes(array: Array) -> Array:
    if array.dtype.kind == "c":
        return np.abs(array)
    return array


def _strip(array: Array, most: int) -> Pixels:
    outer_shape = array.shape[:-2]
    n = int(np.prod(outer_shape, dtype=np.int64))  # planes
    scale = value_scale(array)  # of the whole array: the planes stay comparable
    evenly_spaced = np.linspace(0, n - 1, min(n, MAX_PLANES)).astype(np.int64)
    row: list[Pixels] = []
    # np.unique: rounding may give one plane twice.
    for number_of_plane in np.unique(evenly_spaced).tolist():
        plane = array[np.unravel_index(number_of_plane, outer_shape)]
        small = thin(plane, most)  # [height, width]
        drawn = scale_pixels(small[:, :, None], scale)  # [height, width, channels]
        if row:
            height, _, channels = drawn.shape
            gap = np.full((height, _GAP_PX, channels), 255, np.uint8)
            row.append(gap)
        row.append(drawn)
    return np.concatenate(row, axis=1)


ARRAY = Kind(name="array", fits=fits, lines=lines, marks=marks, thumbnail=thumbnail, detail=detail)
