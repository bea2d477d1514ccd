"""Names of the faults of a unit, and the comparison of two pictures."""

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
"""Mean difference of two grids of one picture, in levels of 255; a canonical clip is 0.3 to 1.2 off its source."""

FAR_LEVELS = 6.0
"""Above this two grids are of two pictures, whether or not another reading explains it."""


class Reading(NamedTuple):
    """The looks of a picture if `name` had gone wrong."""

    name: str
    """Name of the fault."""
    grid: Grid
    """Picture with the fault."""


def finding(name: str, said: str) -> Unusable:
    """Return a fault as the refusal of its object."""
    return rejected(STAGE, name, said)


def compare(
    found: Grid, expected: Grid, wrong: Iterable[Reading], where: str, far_levels: float = FAR_LEVELS
) -> None:
    """Check that `found` is the expected picture.

    Raises: Unusable, under the name of the wrong reading that explains the difference, if there is one that is less
    than half as far away.
    """
    error = distance(found, expected)
    if error <= SAME_LEVELS:
        return
    distances = [(distance(found, reading.grid), reading.name) for reading in wrong]
    nearest, name = min(distances, default=(error, PIXELS))
    if nearest < error / 2:
        raise finding(
            name, f"{where}: {error:.1f} levels off its source, {nearest:.1f} off it read as {name}"
        )
    if error > far_levels:
        raise finding(PIXELS, f"{where}: {error:.1f} levels off its source (at most {SAME_LEVELS})")


def distance(one: Grid, other: Grid) -> float:
    """Return the mean absolute difference in levels of 255."""
    return float(np.abs(one - other).mean())


def turned(grid: Grid, quarter_turns: int, mirrored: bool) -> Grid:
    """Return the grid mirrored left to right first, then turned clockwise."""
    return np.rot90(grid[:, ::-1] if mirrored else grid, -quarter_turns)
