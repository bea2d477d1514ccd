"""Measure thumbnails of frames in levels of 255."""

from typing import Any, NamedTuple

import numpy as np

Frames = np.ndarray[Any, np.dtype[np.uint8]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Whole = np.ndarray[Any, np.dtype[np.int64]]


class Levels(NamedTuple):
    """Measurements of n frames in levels of 255; sums are exact integers."""

    total: Whole
    """Sum of each frame's pixels."""
    std: Floats
    """Standard deviation of each frame's pixels."""
    change: Whole
    """Sum of differences from the previous frame; 0 for the first frame of a video."""


def measure_levels(
    frames: Frames,
    previous: Frames | None,
) -> Levels:
    """Measure frames, uint8 [n, height, width], of less than 2^16 px each.

    previous: the frame before these, uint8 [height, width]; None at the start of a video.
    """
    pixels = frames.shape[1] * frames.shape[2]
    flat = frames.reshape(len(frames), pixels)
    if previous is None:
        first_earlier = flat[:1]  # the first frame itself, so that its change is 0
    else:
        first_earlier = previous.reshape(1, pixels)
    earlier = np.concatenate([first_earlier, flat[:-1]])  # [n, pixels]: the frame before each frame

    # The absolute difference, without leaving uint8: a plain subtraction would wrap around.
    higher = np.maximum(flat, earlier)
    lower = np.minimum(flat, earlier)
    difference = higher - lower

    square = np.multiply(
        flat,
        flat,
        dtype=np.uint16,  # 255^2 fits
    )
    squares = _row_sums(square)
    total = _row_sums(flat)
    # pixels^2 times the variance, in whole numbers.
    spread = pixels * squares - total**2
    std = np.sqrt(spread) / pixels
    return Levels(
        total=total,
        std=std,
        change=_row_sums(difference),
    )


def levels_apart(
    first: Frames,
    second: Frames,
) -> float:
    """Return the mean difference of two frames' pixels, in levels."""
    levels = measure_levels(second[np.newaxis], previous=first)
    (change,) = levels.change
    return int(change) / first.size


def _row_sums(rows: "np.ndarray[Any, np.dtype[Any]]") -> Whole:
    # 2^16 px of 255^2 fit into uint32, which numpy sums in half of int64's time.
    sums: Whole = rows.sum(axis=1, dtype=np.uint32).astype(np.int64)
    return sums
