"""Correlate thumbnails of frames over small shifts: a moving camera shifts a scene and does not change it."""

from typing import Any

import numpy as np

Frames = np.ndarray[Any, np.dtype[np.uint8]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Whole = np.ndarray[Any, np.dtype[np.int64]]

# Shifts of a thumbnail in px, wider sideways: cameras pan more than they tilt.
_DOWN = (-2, -1, 0, 1, 2)
_RIGHT = (-4, -2, -1, 0, 1, 2, 4)
_SHIFT_DOWN = np.repeat(_DOWN, len(_RIGHT))  # [shifts]: every pair of both
_SHIFT_RIGHT = np.tile(_RIGHT, len(_DOWN))


def best_correlation(
    first: Frames,
    second: Frames,
) -> float:
    """Return the largest correlation of two frames over small shifts, -1 to 1."""
    others = second[np.newaxis]
    (best,) = best_correlations(first, others)
    return float(best)


def best_correlations(
    frame: Frames,
    others: Frames,
) -> Floats:
    """Return `best_correlation` (Pearson; 0 if flat) of a frame and each of `others`, uint8 [n, height, width].

    Overlaps are summed by integral images, in integers below 2^53.
    """
    a = frame.astype(np.float64)
    b = others.astype(np.float64)

    # Pearson's correlation from sums over only the overlap, as integers: n * sum(xy) - sum(x) * sum(y).
    overlap = _overlap_pixels(frame)
    sum_a, spread_a = _sums_and_spreads(
        a,
        _SHIFT_DOWN,
        _SHIFT_RIGHT,
        overlap,
    )
    sum_b, spread_b = _sums_and_spreads(
        b,
        -_SHIFT_DOWN,
        -_SHIFT_RIGHT,
        overlap,
    )
    spread = spread_a * spread_b  # [n, shifts]
    products = _overlap_products(a, b)
    shared = overlap * products - sum_a * sum_b

    pearson = np.zeros_like(shared)  # stays 0 where an overlap is flat
    np.divide(
        shared,
        np.sqrt(spread),
        out=pearson,
        where=spread > 0,
    )
    best: Floats = pearson.max(axis=1)
    return best


def _overlap_pixels(frame: Frames) -> Whole:
    """Return int64 [shifts]: pixels that a frame shares with another after each shift."""
    height, width = frame.shape
    n_rows = height - np.abs(_SHIFT_DOWN)
    n_columns = width - np.abs(_SHIFT_RIGHT)
    overlap: Whole = n_rows * n_columns
    return overlap


def _sums_and_spreads(
    x: Floats,
    down: Whole,
    right: Whole,
    overlap: Whole,
) -> tuple[Floats, Floats]:
    """Return (sum(x), n * sum(x^2) - sum(x)^2) over the overlap with each shift, [..., shifts] each."""
    sums = _overlap_sums(x, down, right)
    squares = _overlap_sums(x * x, down, right)
    spreads = overlap * squares - sums**2
    return sums, spreads


def _overlap_products(
    a: Floats,
    b: Floats,
) -> Floats:
    """Return the sums of a[height, width] * b[n, height, width] over their overlap with each shift, [n, shifts]."""
    most_down = max(_DOWN)
    most_right = max(_RIGHT)
    # Zeros around `a` add nothing where the frames do not overlap.
    margins = (
        (most_down, most_down),
        (most_right, most_right),
    )
    around = np.pad(a, margins)
    windows = np.lib.stride_tricks.sliding_window_view(around, a.shape)  # of every shift, in place
    products = np.einsum(
        "xyij,tij->txy",
        windows,
        b,
    )
    row = _SHIFT_DOWN + most_down  # of each shift in `products`
    column = _SHIFT_RIGHT + most_right
    of_shifts: Floats = products[:, row, column]
    return of_shifts


def _overlap_sums(
    x: Floats,
    down: Whole,
    right: Whole,
) -> Floats:
    """Return the sums of x[..., height, width] over its overlap with each shift, [..., shifts]."""
    *leading, height, width = x.shape
    # Integral images: a corner is the sum of all that is above and left of it.
    shape = (
        *leading,
        height + 1,
        width + 1,
    )
    corners = np.zeros(shape)
    column_sums = x.cumsum(axis=-2)
    corners[..., 1:, 1:] = column_sums.cumsum(axis=-1)

    # Edges of the overlap with each shift, [shifts].
    top = np.maximum(down, 0)
    bottom = np.minimum(down, 0) + height
    start = np.maximum(right, 0)
    end = np.minimum(right, 0) + width

    below = corners[..., bottom, end] - corners[..., bottom, start]
    above = corners[..., top, end] - corners[..., top, start]
    inside: Floats = below - above
    return inside
