"""A picture as 16 x 16 mean colours: what it shows, without its resolution, its aspect ratio or its coding noise.

Means commute with everything that is linear, so the planes are averaged first and only the 256 means are turned into
colours: a 1080p frame costs three sums. Rec. ITU-T H.273, equations 39 to 58, for the YCbCr matrices.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

Grid = np.ndarray[Any, np.dtype[np.float64]]
"""float64 [16, 16, 3], RGB, 0 to 255."""

Plane = np.ndarray[Any, np.dtype[np.float64]]

CELLS = 16
BT601, BT709 = (0.299, 0.114), (0.2126, 0.0722)
MATRICES: Mapping[int, tuple[float, float]] = {
    1: BT709, 4: (0.30, 0.11), 5: BT601, 6: BT601, 7: (0.212, 0.087), 9: (0.2627, 0.0593), 10: (0.2627, 0.0593),
}  # fmt: skip
"""(Kr, Kb) by the number of H.273."""

_FULL = 2  # AVCOL_RANGE_JPEG


@dataclass(frozen=True, slots=True, kw_only=True)
class Planes:
    """Mean Y, Cb, Cr of each cell in stored code values of `bits` bits, and how they are to be read."""

    means: Grid
    bits: int
    matrix: tuple[float, float]
    full_range: bool

    def rgb(self) -> Grid:
        """The colours that these code values mean."""
        scale = 2 ** (self.bits - 8)
        luma, blue, red = np.moveaxis(self.means / scale, -1, 0)
        if not self.full_range:
            luma, blue, red = (luma - 16) * 255 / 219, (blue - 128) * 255 / 224, (red - 128) * 255 / 224
        else:
            blue, red = blue - 128, red - 128
        kr, kb = self.matrix
        r, b = luma + 2 * (1 - kr) * red, luma + 2 * (1 - kb) * blue
        g = (luma - kr * r - kb * b) / (1 - kr - kb)
        colours: Grid = np.clip(np.stack([r, g, b], axis=-1), 0, 255)
        return colours

    def with_other_range(self) -> "Planes":
        return replace(self, full_range=not self.full_range)

    def with_other_matrix(self) -> "Planes":
        return replace(self, matrix=BT601 if self.matrix == BT709 else BT709)


def planes_of(frame: "VideoFrame") -> Planes | None:
    """The means of a decoded frame; None where its format is not planar YCbCr, or its matrix no linear one.

    An untagged frame is limited BT.601, as every common decoder reads it.
    """
    pixels = frame.format
    if not pixels.name.startswith(("yuv4", "yuvj4")) or pixels.name.startswith("yuva"):
        return None
    space = int(frame.colorspace)
    matrix = BT601 if space == 2 else MATRICES.get(space)
    if matrix is None or pixels.is_big_endian:
        return None
    bits = pixels.components[0].bits
    means = [cell_means(_plane(frame, index, bits)) for index in range(3)]
    full = pixels.name.startswith("yuvj") or int(frame.color_range) == _FULL
    return Planes(means=np.stack(means, axis=-1), bits=bits, matrix=matrix, full_range=full)


def grid_of(pixels: np.ndarray[Any, Any]) -> Grid:
    """Of uint8 RGB [H, W, 3]."""
    return np.stack([cell_means(pixels[..., channel]) for channel in range(3)], axis=-1)


def cell_means(plane: np.ndarray[Any, Any]) -> Plane:
    """float64 [16, 16]: area means of a plane [H, W], exact where a cell's border cuts a pixel in two."""
    sums = _cell_sums(_cell_sums(plane).T).T
    means: Plane = sums * (CELLS**2 / plane.size)
    return means


def _cell_sums(lines: np.ndarray[Any, Any]) -> Plane:
    """float64 [16, m]: sums of the lines [n, m] in each of 16 cells, of one that a border cuts in two its share."""
    edges = np.arange(CELLS + 1) * len(lines) / CELLS
    first = edges.astype(int)
    sums: Plane = np.empty((CELLS, lines.shape[1]))
    for cell in range(CELLS):
        lines[first[cell] : first[cell + 1]].sum(axis=0, dtype=np.float64, out=sums[cell])
        for edge, sign in ((cell, -1), (cell + 1, 1)):
            if share := edges[edge] - first[edge]:
                sums[cell] += sign * share * lines[first[edge]]
    return sums


def _plane(frame: "VideoFrame", index: int, bits: int) -> np.ndarray[Any, Any]:
    plane = frame.planes[index]
    width = 1 if bits <= 8 else 2
    rows = np.frombuffer(memoryview(plane), np.uint8).reshape(plane.height, plane.line_size)
    visible = np.ascontiguousarray(rows[:, : plane.width * width])
    return visible if bits <= 8 else visible.view("<u2")
