"""Draw a map as a PNG image: samples that pass a filter in colour, over all others in grey.

Each pixel counts the samples on it. The logarithm of the count sets its strength, so that a single sample is visible
beside a thousand. Few samples are drawn as discs. A pixel has the colour of the category with most samples. 1e6 samples
take 60 ms. The image has a palette of 256 colours, which PNG compresses best.
"""

import io
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from loader.dataset.shards.bitmap import Bools
from loader.errors import InvalidRuntime

from .lasso import MAP_UNITS, Places

SIDE_PX = 512
CATEGORIES = 8
"""Categories with a colour; others are grey."""
_OTHER = CATEGORIES
_STRENGTHS = 16
"""Strengths of each colour."""
_WEAKEST = 0.4
_DISCS = ((300, 5), (2_000, 3), (10_000, 2), (50_000, 1))
"""(Most samples, radius in px): fewer samples are drawn larger."""

Categories = np.ndarray[Any, np.dtype[np.uint8]]
Counts = np.ndarray[Any, np.dtype[np.float32]]
Numbers = np.ndarray[Any, Any]


class Box(NamedTuple):
    """Part of the map, in map units; `x1` and `y1` are exclusive."""

    x0: int
    y0: int
    x1: int
    y1: int


WHOLE = Box(0, 0, MAP_UNITS, MAP_UNITS)
"""Box of the whole map."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Palette:
    """Colours of an image, "#rrggbb" each, as in tokens.css."""

    ground: str
    every: str
    """Samples that the filter leaves out."""
    selected: str
    """Samples that pass, without categories."""
    categories: tuple[str, ...] = field(repr=False)
    """Colours of the categories, then of all others."""


LIGHT = Palette(
    ground="#ffffff",
    every="#cfd6e0",
    selected="#2f7fd6",
    categories=(
        "#1059a0",
        "#c75200",
        "#00805d",
        "#9d68d8",
        "#ae8a44",
        "#5898c9",
        "#613a72",
        "#5c6470",
        "#858e9d",
    ),
)
DARK = Palette(
    ground="#101317",
    every="#39424e",
    selected="#5aa5f5",
    categories=(
        "#53a7d8",
        "#ff9150",
        "#36d191",
        "#ffa5c8",
        "#f7ca49",
        "#9fd8fe",
        "#979cff",
        "#929696",
        "#67717f",
    ),
)


def parse_box(text: str) -> Box:
    """Return a part of the map, such as "0,0,32768,32768". Raises: InvalidRuntime."""
    if not text:
        return WHOLE
    numbers = text.split(",")
    is_short = len(text) <= 4 * len("65536,")
    is_whole = all(number.isascii() and number.isdigit() for number in numbers)
    if is_short and is_whole and len(numbers) == 4:
        box = Box(*map(int, numbers))
        if box.x0 < box.x1 <= MAP_UNITS and box.y0 < box.y1 <= MAP_UNITS:
            return box
    raise InvalidRuntime(
        f"the box {text!r:.60} is not x0,y0,x1,y1 of whole numbers from 0 to 65,536, such as 0,0,32768,32768",
        what="box",
        given=text,
        accepted="x0,y0,x1,y1 of whole numbers from 0 to 65,536",
    )


def draw(
    x: Places,
    y: Places,
    *,
    selected: Bools | None = None,
    categories: Categories | None = None,
    box: Box = WHOLE,
    palette: Palette = LIGHT,
) -> bytes:
    """Return a PNG of `SIDE_PX` x `SIDE_PX` of places, uint16 [n] each.

    selected: bool [n], those in colour; None: all. categories: uint8 [n], from 0; from 8 on they are grey.
    """
    pixel, is_inside = _pixels(x, y, box)
    pixels = np.zeros(SIDE_PX * SIDE_PX, np.uint8)  # numbers in the image's palette; 0 is the ground
    if selected is None:
        foreground = is_inside
    else:
        foreground = is_inside & selected
        background = pixel[is_inside]
        strength = _strengths(_counts(background))
        np.maximum(pixels, strength, out=pixels)

    chosen = pixel[foreground]
    if categories is None:
        strength = _strengths(_counts(chosen))
        first = np.full(pixels.shape, _STRENGTHS)
    else:
        named = np.minimum(categories[foreground], _OTHER)
        strength, number = _categories(chosen, named)
        first = (2 + number) * _STRENGTHS
    # Drawn last: a sample that passes is never hidden by the others.
    is_coloured = strength > 0
    coloured = first + strength
    pixels[is_coloured] = coloured[is_coloured]
    return _png(pixels, palette)


def _pixels(
    x: Places,
    y: Places,
    box: Box,
) -> tuple[Numbers, Bools]:
    """Return int32 [n]: each place's pixel, row by row, and bool [n]: whether it lies in the box."""
    column = _axis_pixels(
        x,
        box.x0,
        box.x1,
    )
    row = _axis_pixels(
        y,
        box.y0,
        box.y1,
    )
    is_inside = (column < SIDE_PX) & (row < SIDE_PX)
    pixel = row.astype(np.int32)
    pixel *= SIDE_PX
    pixel += column
    return pixel, is_inside


def _axis_pixels(
    values: Places,
    low: int,
    high: int,
) -> Places:
    """Return uint16 [n]: the pixel along one axis, `SIDE_PX` for places outside.

    values: uint16 [n], in map units. low, high: the box's first unit, and the one after its last.
    """
    # A table of all map units: 20 times faster than a division of each place.
    unit = np.arange(MAP_UNITS)
    pixel = (unit - low) * SIDE_PX // (high - low)
    is_outside = (unit < low) | (unit >= high)
    pixel[is_outside] = SIDE_PX
    table = pixel.astype(np.uint16)
    return table[values]


def _counts(pixel: Numbers) -> Counts:
    """Return float32 [SIDE_PX, SIDE_PX]: samples on each pixel; few samples are drawn as discs."""
    counts = np.bincount(pixel, minlength=SIDE_PX * SIDE_PX)
    image = counts.reshape(SIDE_PX, SIDE_PX).astype(np.float32)
    return _spread(image, _radius(len(pixel)))


def _radius(n: int) -> int:
    for most, radius in _DISCS:
        if n <= most:
            return radius
    return 0


def _spread(image: Counts, radius: int) -> Counts:
    """Return the image with each pixel grown to a disc; the larger count wins."""
    if not radius:
        return image
    padded = np.pad(image, radius)
    grown = np.zeros_like(image)
    width = 2 * radius + 1
    for down in range(width):
        for right in range(width):
            from_centre = math.hypot(
                down - radius,
                right - radius,
            )
            if from_centre > radius + 0.4:
                continue
            rows = slice(down, down + SIDE_PX)
            columns = slice(right, right + SIDE_PX)
            shifted = padded[rows, columns]
            np.maximum(
                grown,
                shifted,
                out=grown,
            )
    return grown


def _strengths(counts: Counts) -> Categories:
    """Return uint8 [SIDE_PX * SIDE_PX]: 0 without samples, else 1 to `_STRENGTHS` - 1 by the logarithm of the count."""
    flat = counts.ravel()
    strength = np.zeros(len(flat), np.uint8)
    is_drawn = flat > 0
    drawn = np.log1p(flat[is_drawn])
    if not len(drawn):
        return strength
    # The strongest hundredth are equal, so that one heap of copies does not pale all others.
    full = np.percentile(drawn, 99)
    share = np.minimum(1, drawn / full)
    strength[is_drawn] = np.rint(1 + share * (_STRENGTHS - 2))
    return strength


def _categories(
    pixel: Numbers,
    categories: Categories,
) -> tuple[Numbers, Numbers]:
    """Return (strength, category with most samples) of each pixel, [SIDE_PX * SIDE_PX] each."""
    n_pixels = SIDE_PX * SIDE_PX
    total = np.zeros((SIDE_PX, SIDE_PX), np.float32)
    most = np.zeros((SIDE_PX, SIDE_PX), np.float32)
    number = np.full((SIDE_PX, SIDE_PX), _OTHER)
    radius = _radius(len(pixel))
    for category in range(_OTHER + 1):
        own = pixel[categories == category]
        if not len(own):
            continue
        counts = np.bincount(own, minlength=n_pixels)
        image = counts.reshape(SIDE_PX, SIDE_PX).astype(np.float32)
        image = _spread(image, radius)
        total += image
        is_most = image > most
        most[is_most] = image[is_most]
        number[is_most] = category
    return _strengths(total), number.ravel()


def _png(pixels: Categories, palette: Palette) -> bytes:
    from PIL import Image

    colours = np.zeros((256, 3), np.uint8)
    ground = _rgb(palette.ground)
    colours[:_STRENGTHS] = ground
    names = (palette.every, palette.selected, *palette.categories)
    for number, name in enumerate(names):
        strength = np.linspace(_WEAKEST, 1, _STRENGTHS - 1)[:, None]
        mixed = ground + strength * (_rgb(name) - ground)
        first = number * _STRENGTHS + 1
        colours[first : first + _STRENGTHS - 1] = np.rint(mixed)
    image = Image.fromarray(pixels.reshape(SIDE_PX, SIDE_PX))
    image.putpalette(colours.tobytes())
    sink = io.BytesIO()
    # Level 6 takes twice the time for 4 % fewer bytes.
    image.save(
        sink,
        "PNG",
        compress_level=3,
    )
    return sink.getvalue()


def _rgb(colour: str) -> Numbers:
    channels = bytes.fromhex(colour.removeprefix("#"))
    return np.array(list(channels), np.float64)


def nearest(
    x: Places,
    y: Places,
    point: tuple[int, int],
    within: int,
    selected: Bools | None = None,
) -> int | None:
    """Return the number of the place nearest to a point of the map; None if none lies within so many map units.

    selected: bool [n], the only places to return. The first of equally near places wins.
    """
    x0, y0 = point
    last = MAP_UNITS - 1
    x_low = max(0, x0 - within)
    x_high = min(last, x0 + within)
    y_low = max(0, y0 - within)
    y_high = min(last, y0 + within)
    is_near = x >= x_low
    is_near &= x <= x_high
    is_near &= y >= y_low
    is_near &= y <= y_high
    if selected is not None:
        is_near &= selected
    # Distances of the few places in the square only: of all they would take 9 ms per 1e6.
    rows = np.flatnonzero(is_near)
    dx = x[rows].astype(np.int64) - x0
    dy = y[rows].astype(np.int64) - y0
    squares = dx * dx + dy * dy
    if not len(rows) or squares.min() > within * within:
        return None
    return int(rows[squares.argmin()])
