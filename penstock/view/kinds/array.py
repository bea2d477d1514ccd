"""Arrays of any rank, drawn from rank 2 on with one gray pixel per value, planes side by side."""

from typing import Any

import numpy as np

from ...units import number
from .array_values import Array, array_lines, array_marks, as_array, number_text, range_of
from .image import Pixels, png, scale_of, scaled, thinned, thumbnail_of
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
        first = [number_text(one) for one in _magnitudes(array.flat[:MAX_VALUES]).tolist()]
        # A grid shows only the first line, so a single number comes first.
        place = 0
        if array.size > 1:
            place = len(out)
        out.insert(place, " ".join(first) + (" …" if array.size > MAX_VALUES else ""))
    if _is_drawn(array):
        n = int(np.prod(array.shape[:-2], dtype=np.int64))
        shown = f"{n} planes" if n <= MAX_PLANES else f"{MAX_PLANES} of {number(n)} planes"
        out.append(f"{scale_of(array)}" + (f", {shown}" if n > 1 else ""))
    return tuple(out)


def marks(value: Any, facts: Facts) -> tuple[Mark, ...]:
    array = _array(value)
    return array_marks(array, range_of(array))


def _is_drawn(array: Array) -> bool:
    return array.ndim >= 2 and array.size > 0


def _magnitudes(array: Array) -> Array:
    return np.abs(array) if array.dtype.kind == "c" else array


def _strip(array: Array, most: int) -> Pixels:
    n = int(np.prod(array.shape[:-2], dtype=np.int64))
    scale = scale_of(array)
    chosen = np.unique(np.linspace(0, n - 1, min(n, MAX_PLANES)).astype(np.int64))
    planes = [array[np.unravel_index(int(at), array.shape[:-2])] for at in chosen]
    drawn = [scaled(thinned(plane, most)[:, :, None], scale) for plane in planes]
    if len(drawn) == 1:
        return drawn[0]
    gap = np.full((drawn[0].shape[0], _GAP_PX, drawn[0].shape[2]), 255, np.uint8)
    row = [part for plane in drawn for part in (plane, gap)]
    return np.concatenate(row[:-1], axis=1)


ARRAY = Kind(name="array", fits=fits, lines=lines, marks=marks, thumbnail=thumbnail, detail=detail)
