"""Frames at 64 x 36 pixels, and measurements of each of them: whole numbers, so that they are exact."""

from typing import Any, NamedTuple

import numpy as np

SMALL_PX = (64, 36)
"""Width and height of thumbnails in px."""

Frames = np.ndarray[Any, np.dtype[np.uint8]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Whole = np.ndarray[Any, np.dtype[np.int64]]


class Levels(NamedTuple):
    """Measurements of n frames, in levels of 255; integer sums, so exact."""

    total: Whole
    """Sums over the pixels."""
    std: Floats
    """Standard deviations."""
    change: Whole
    """Sums of absolute differences to the frame before; 0 for the first."""


def levels_of(frames: Frames, before: Frames | None) -> Levels:
    """Measure uint8 [n, height, width] of less than 2^16 pixels; before: the previous frame, if any."""
    pixels = frames.shape[1] * frames.shape[2]
    flat = frames.reshape(len(frames), pixels)
    earlier = np.concatenate([flat[:1] if before is None else before.reshape(1, -1), flat[:-1]])
    difference = np.maximum(flat, earlier) - np.minimum(flat, earlier)
    total, change, squares = (
        x.sum(axis=1, dtype=np.uint32).astype(np.int64)
        for x in (flat, difference, np.multiply(flat, flat, dtype=np.uint16))
    )
    return Levels(total, np.sqrt(pixels * squares - total**2) / pixels, change)
