"""Random boxes for crops, drawn in whole numbers.

The box's share of the image's area is uniform in a range. The logarithm of its width by height is uniform too.
Logarithms and powers of C libraries differ in the last bit. A table holds 257 ratios at equal steps of the logarithm
instead, each the geometric mean of its neighbours (`math.isqrt`). Between two of them the ratio is uniform. The
cumulative distribution is within 1.1e-6 of the logarithm's for (3/4, 4/3), and within 3e-5 for any range.

Numbers are drawn in this order: the flip, then area, ratio, top and left of each attempt.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from math import isqrt

import numpy as np

from .crop import Box, Size

_BITS = 32
"""Fractions are whole numbers of 2**-32."""
_CELL_BITS = 8
_ATTEMPTS = 10  # as torchvision

Range = tuple[float, float]


def draw_box(whole: Size, area: Range, ratio: Range, rng: np.random.Generator | None) -> Box:
    """Return a random box of an image of `whole` px (height, width).

    If 10 boxes in turn do not fit, or without a generator, return the largest box in the middle with an accepted ratio.

    area: smallest and largest share of the image's area. ratio: smallest and largest width by height.
    """
    height, width = whole
    ratios = _ratios(ratio)
    if rng is None:
        return _middle(whole, ratios[0], ratios[-1])
    least, most = fixed(area[0]), fixed(area[1])
    for _ in range(_ATTEMPTS):
        px = height * width * (least + ((most - least) * _drawn(rng) >> _BITS))
        cell, within = divmod(_drawn(rng), 1 << _BITS - _CELL_BITS)
        shape = ratios[cell] + ((ratios[cell + 1] - ratios[cell]) * within >> _BITS - _CELL_BITS)
        box_height, box_width = _root((px << 2 * _BITS) // shape), _root(px * shape)
        top, left = _drawn(rng), _drawn(rng)
        if 0 < box_height <= height and 0 < box_width <= width:
            top, left = top * (height - box_height + 1) >> _BITS, left * (width - box_width + 1) >> _BITS
            return top, left, box_height, box_width
    return _middle(whole, ratios[0], ratios[-1])


def draw_flip(chance: float, rng: np.random.Generator | None) -> bool:
    """Return True with this chance; False without a generator.

    Draws a number even for a chance of 0, so that another chance leaves the boxes unchanged.
    """
    return rng is not None and _drawn(rng) < fixed(chance)


def fixed(number: float) -> int:
    """Return a fraction as the nearest whole number of 2**-32."""
    return round(number * 2.0**_BITS)  # exact before it is rounded: a power of two


def _drawn(rng: np.random.Generator) -> int:
    """Return 0 to 2**32 - 1. A product with a power of two is exact."""
    return int(rng.random() * 2.0**_BITS)


def _root(square: int) -> int:
    """Return the root of a whole number of 2**-64, rounded to a whole number."""
    return isqrt(square) + (1 << _BITS - 1) >> _BITS


@lru_cache(maxsize=32)
def _ratios(ends: Range) -> tuple[int, ...]:
    ratios = [fixed(ends[0]), fixed(ends[1])]
    for _ in range(_CELL_BITS):
        means = [isqrt(low * high) for low, high in pairwise(ratios)]
        ratios = [one for pair in zip(ratios, means, strict=False) for one in pair] + ratios[-1:]
    return tuple(ratios)


def _middle(whole: Size, least: int, most: int) -> Box:
    """Return the largest box in the middle whose ratio is between `least` and `most`."""
    height, width = whole
    if width << _BITS < least * height:
        box_height, box_width = max(1, _quotient(width << _BITS, least)), width
    elif width << _BITS > most * height:
        box_height, box_width = height, max(1, _quotient(height * most, 1 << _BITS))
    else:
        return 0, 0, height, width
    return (height - box_height) // 2, (width - box_width) // 2, box_height, box_width


def _quotient(number: int, by: int) -> int:
    return (2 * number + by) // (2 * by)
