"""Conversion of small frames from any matrix and range to limited BT.601."""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

LUMA: Mapping[int, tuple[float, float]] = {  # ITU-T H.273, table 4: Kr, Kb
    1: (0.2126, 0.0722),
    4: (0.30, 0.11),
    5: (0.299, 0.114),
    6: (0.299, 0.114),
    7: (0.212, 0.087),
    9: (0.2627, 0.0593),
}
BT601 = 6
NAMES: Mapping[int, str] = {
    1: "bt709", 4: "fcc", 5: "bt470", 6: "smpte170m", 7: "smpte240m", 9: "bt2020",
}  # fmt: skip
"""Matrix names of FFmpeg's scale filter."""

Samples = npt.NDArray[np.float32]


def to_rgb(matrix: int) -> npt.NDArray[np.float64]:
    """Return [3, 3]: R'G'B' from Y' (0 to 1) and Cb, Cr (-0.5 to 0.5); H.273's equations 38 to 40 inverted."""
    kr, kb = LUMA[matrix]
    kg = 1 - kr - kb
    return np.array(
        [
            [1, 0, 2 * (1 - kr)],
            [1, -2 * kb * (1 - kb) / kg, -2 * kr * (1 - kr) / kg],
            [1, 2 * (1 - kb), 0],
        ]
    )


@cache
def step_to_bt601(matrix: int, full_range: bool, bits: int) -> Samples:
    """Return [3, 3] on 8-bit samples, from this matrix and range to limited BT.601.

    Linear between matrices of the same primaries: chroma depends only on chroma, as grey stays grey. FFmpeg's
    scaler goes through 8-bit RGB: green 1.1 to 1.7 levels too dark, and chroma half a level too high from full
    range.
    """
    limited = np.diag([219.0, 224.0, 224.0])  # levels; full range has 255, or 1023 / 4 if 10 bits became 8
    scale = (2**bits - 1) / 2 ** (bits - 8) * np.eye(3) if full_range else limited
    step = limited @ np.linalg.inv(to_rgb(BT601)) @ to_rgb(matrix) @ np.linalg.inv(scale)
    matrix_step: Samples = step.astype(np.float32)
    return matrix_step


def to_bt601(frame: "VideoFrame", step: Samples) -> "VideoFrame":
    """Return a yuv420p frame in limited BT.601; step: from its matrix and range. O(pixels)."""
    import av

    samples = converted(np.asarray(frame.to_ndarray()), frame.height, step)
    converted_frame = av.VideoFrame.from_ndarray(samples, format="yuv420p")
    converted_frame.pts, converted_frame.time_base = frame.pts, frame.time_base
    return converted_frame


def converted(samples: npt.NDArray[Any], height: int, step: Samples) -> npt.NDArray[np.uint8]:
    """Convert uint8 [3/2 height, width] in PyAV's yuv420p layout."""
    width = samples.shape[1]
    luma = samples[:height].astype(np.float32).reshape(height // 2, 2, width // 2, 2)
    chroma = samples[height:].reshape(2, height // 2, width // 2).astype(np.float32) - 128
    blue, red = chroma
    if abs(step[0, 0] - 1) > 0.01:  # full range: black is at 0
        luma *= step[0, 0]
        luma += 16
    luma += (step[0, 1] * blue + step[0, 2] * red)[:, None, :, None]
    out = np.empty(samples.shape, np.uint8)
    out[:height] = _bytes(luma).reshape(height, width)
    halves = out[height:].reshape(2, height // 2, width // 2)
    halves[0] = _bytes(step[1, 1] * blue + step[1, 2] * red + 128)
    halves[1] = _bytes(step[2, 1] * blue + step[2, 2] * red + 128)
    return out


def _bytes(values: Samples) -> npt.NDArray[np.uint8]:
    """Round the values, and clip them to 8 bits."""
    np.rint(values, out=values)
    np.clip(values, 0, 255, out=values)
    return values.astype(np.uint8)
