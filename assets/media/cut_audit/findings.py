"""Names of faults in units, and comparison of images by grids."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ..unit import Unusable, rejected
from .grid import Grid

STAGE = "cut_audit"

ROTATION = "rotation_ignored"
ASPECT_RATIO = "aspect_ratio"
COLOUR_RANGE = "colour_range"
COLOUR_MATRIX = "colour_matrix"
WRONG_FRAME = "wrong_frame"
PIXELS = "pixels_differ"
DECODERS = "decoders_disagree"
TIMESTAMPS = "timestamps_not_source"
VFR = "vfr_as_cfr"
FRAMES_MISSING = "frames_missing"
SOUND_OFFSET = "sound_out_of_sync"
SOUND_LENGTH = "sound_length"
SOUND_DIFFERS = "sound_differs"
SOUND_CLIPPED = "downmix_clipped"
CHANNEL_LOST = "channel_lost"
ALPHA = "alpha_on_black"
INVERTED = "colours_inverted"
SATURATED = "depth_saturated"

SAME_LEVELS = 2.0
"""Largest mean difference, of 255 levels, between grids of the same image; canonical clips have 0.3 to 1.2."""

FAR_LEVELS = 6.0
"""Grids that differ by more levels show different images."""


class Misreading(NamedTuple):
    """Grid of an image as it would look with a given fault."""

    name: str
    """Name of the fault."""
    grid: Grid
    """Grid of the image with the fault."""


def finding(name: str, reason: str) -> Unusable:
    """Return the refusal for a fault."""
    return rejected(STAGE, name, reason)


def compare(
    actual: Grid, expected: Grid, wrong: Iterable[Misreading], where: str, far_levels: float = FAR_LEVELS
) -> None:
    """Check that `actual` is the expected image.

    Raises: Unusable, named after a misreading if one is less than half as far away.
    """
    error = distance(actual, expected)
    if error <= SAME_LEVELS:
        return
    distances = [(distance(actual, reading.grid), reading.name) for reading in wrong]
    nearest, name = min(distances, default=(error, PIXELS))
    if nearest < error / 2:
        raise finding(
            name, f"{where}: {error:.1f} levels off its source, {nearest:.1f} off it read as {name}"
        )
    if error > far_levels:
        raise finding(PIXELS, f"{where}: {error:.1f} levels off its source (at most {SAME_LEVELS})")


def distance(first: Grid, second: Grid) -> float:
    """Return the mean absolute difference in levels of 255."""
    return float(np.abs(first - second).mean())


def turned(grid: Grid, quarter_turns: int, mirrored: bool) -> Grid:
    """Return the grid mirrored left to right, then turned clockwise."""
    return np.rot90(grid[:, ::-1] if mirrored else grid, -quarter_turns)
