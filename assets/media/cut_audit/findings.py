"""Compare images by grids, and name the faults of units.

A grid holds 16 x 16 mean colours, independent of resolution, aspect ratio and coding noise. Only means are converted,
which commute with linear operations; where colours clip, `frame_planes` averages to a given size first. Matrices: ITU-T
H.273, equations 39 to 58.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..unit import Unusable, rejected

if TYPE_CHECKING:
    from av.video.frame import VideoFrame


Grid = np.ndarray[Any, np.dtype[np.float64]]
"""Float64 [16, 16, 3]: RGB, 0 to 255."""

Plane = np.ndarray[Any, np.dtype[np.float64]]

CELLS = 16
BT601 = (0.299, 0.114)
BT709 = (0.2126, 0.0722)
BT2020 = (0.2627, 0.0593)
MATRICES: Mapping[int, tuple[float, float]] = {
    1: BT709,
    4: (0.30, 0.11),
    5: BT601,
    6: BT601,
    7: (0.212, 0.087),
    9: BT2020,
    10: BT2020,
}
"""Matrix number in H.273 -> (Kr, Kb)."""

_FULL = 2  # AVCOL_RANGE_JPEG


@dataclass(frozen=True, slots=True, kw_only=True)
class Planes:
    """Mean Y, Cb and Cr of each cell or pixel, and their encoding."""

    means: Grid
    """Float64 [rows, columns, 3]: means of the stored code values."""
    bits: int
    """Bits of a code value."""
    matrix: tuple[float, float]
    """(Kr, Kb) of the colour matrix."""
    full_range: bool
    """True for full range, False for limited."""

    def rgb(self) -> Grid:
        """Return the colours, clipped and averaged to cells."""
        scale = 2 ** (self.bits - 8)
        luma, blue, red = np.moveaxis(self.means / scale, -1, 0)
        if not self.full_range:
            luma = (luma - 16) * 255 / 219
            blue = (blue - 128) * 255 / 224
            red = (red - 128) * 255 / 224
        else:
            blue = blue - 128
            red = red - 128
        kr, kb = self.matrix
        r = luma + 2 * (1 - kr) * red
        b = luma + 2 * (1 - kb) * blue
        g = (luma - kr * r - kb * b) / (1 - kr - kb)
        colours: Grid = np.clip(np.stack([r, g, b], axis=-1), 0, 255)
        if colours.shape[:2] == (CELLS, CELLS):
            return colours
        return pixel_grid(colours)

    def with_other_range(self) -> "Planes":
        return replace(self, full_range=not self.full_range)

    def with_other_matrix(self) -> "Planes":
        return replace(self, matrix=BT601 if self.matrix == BT709 else BT709)


def frame_planes(frame: "VideoFrame", size_px: tuple[int, int] | None = None) -> Planes | None:
    """Return a decoded frame's means; None unless it is planar YCbCr with a linear matrix.

    size_px: (width, height) of the averaged image; None for cells. Untagged frames are limited-range BT.601.
    """
    pixels = frame.format
    if not pixels.name.startswith(("yuv4", "yuvj4")) or pixels.name.startswith("yuva"):
        return None
    space = int(frame.colorspace)
    matrix = MATRICES.get(space)
    if space == 2:  # untagged
        matrix = BT601
    if matrix is None or pixels.is_big_endian:
        return None
    bits = pixels.components[0].bits
    means = [_means(_plane(frame, index, bits), size_px, index) for index in range(3)]
    full = pixels.name.startswith("yuvj") or int(frame.color_range) == _FULL
    return Planes(
        means=np.stack(means, axis=-1),
        bits=bits,
        matrix=matrix,
        full_range=full,
    )


def _means(plane: np.ndarray[Any, Any], size_px: tuple[int, int] | None, index: int) -> Plane:
    if size_px is None:
        return cell_means(plane)
    width, height = size_px
    if not index:
        return cell_means(plane, height, width)
    # Chroma has half the size: each of its pixels covers four of luma.
    small = cell_means(plane, -(-height // 2), -(-width // 2))
    return small.repeat(2, axis=0).repeat(2, axis=1)[:height, :width]


def pixel_grid(pixels: np.ndarray[Any, Any]) -> Grid:
    """Return the grid of RGB pixels [H, W, 3], 0 to 255."""
    return np.stack([cell_means(pixels[..., channel]) for channel in range(3)], axis=-1)


def cell_means(plane: np.ndarray[Any, Any], rows: int = CELLS, columns: int = CELLS) -> Plane:
    """Return a plane's area means, float64 [rows, columns]; border pixels count in proportion."""
    sums = _cell_sums(_cell_sums(plane, rows).T, columns).T
    means: Plane = sums * (rows * columns / plane.size)
    return means


def _cell_sums(lines: np.ndarray[Any, Any], n_cells: int) -> Plane:
    """Return the sums of equal stretches of lines: [n_cells, line's length]."""
    edges = np.arange(n_cells + 1) * len(lines) / n_cells
    first = edges.astype(int)
    sums: Plane = np.empty((n_cells, lines.shape[1]))
    for cell in range(n_cells):
        lines[first[cell] : first[cell + 1]].sum(
            axis=0,
            dtype=np.float64,
            out=sums[cell],
        )
        # A line on an edge belongs to two cells in proportion.
        before = edges[cell] - first[cell]
        if before:
            sums[cell] -= before * lines[first[cell]]
        after = edges[cell + 1] - first[cell + 1]
        if after:
            sums[cell] += after * lines[first[cell + 1]]
    return sums


def _plane(frame: "VideoFrame", index: int, bits: int) -> np.ndarray[Any, Any]:
    plane = frame.planes[index]
    width = 2
    if bits <= 8:
        width = 1
    data = np.frombuffer(memoryview(plane), np.uint8)
    rows = data.reshape(plane.height, plane.line_size)  # FFmpeg pads lines
    visible = np.ascontiguousarray(rows[:, : plane.width * width])
    if bits <= 8:
        return visible
    return visible.view("<u2")


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
"""Largest mean difference, of 255 levels, between grids of one image; canonical clips have 0.3 to 1.2."""

FAR_LEVELS = 6.0
"""Levels beyond which images differ."""


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
    actual: Grid,
    expected: Grid,
    wrong: Iterable[Misreading],
    where: str,
    far_levels: float = FAR_LEVELS,
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
    if mirrored:
        grid = grid[:, ::-1]
    return np.rot90(grid, -quarter_turns)
