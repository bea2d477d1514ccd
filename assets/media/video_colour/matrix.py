"""From one colour matrix and range to limited BT.601, on small pictures.

FFmpeg's scaler goes through RGB of 8 bits for another matrix, and green comes out 1.1 to 1.7 levels too dark on
average. Its step from full to limited range leaves chroma half a level too high. Between two matrices of the same
primaries the step is linear: chroma depends on chroma alone, because grey stays grey, and luma changes by a share of
both chromas.
"""

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
"""Names of the matrices in FFmpeg's scale filter."""

Samples = npt.NDArray[np.float32]


def to_rgb(matrix: int) -> npt.NDArray[np.float64]:
    """Return [3, 3]: R'G'B' of Y' (0 to 1) and Cb, Cr (-0.5 to 0.5), by H.273's equations 38 to 40 turned round."""
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
    """Return [3, 3] on 8-bit samples: limited range has 219 levels of luma and 224 of chroma, full range 255.

    Of 10 bits shifted to 8 it has 1023 / 4.
    """
    limited = np.diag([219.0, 224.0, 224.0])
    scale = (2**bits - 1) / 2 ** (bits - 8) * np.eye(3) if full_range else limited
    step = limited @ np.linalg.inv(to_rgb(BT601)) @ to_rgb(matrix) @ np.linalg.inv(scale)
    found: Samples = step.astype(np.float32)
    return found


def to_bt601(picture: "VideoFrame", step: Samples) -> "VideoFrame":
    """Return yuv420p as the same picture in limited BT.601; step: of its matrix and range. O(pixels)."""
    import av

    samples = converted(np.asarray(picture.to_ndarray()), picture.height, step)
    found = av.VideoFrame.from_ndarray(samples, format="yuv420p")
    found.pts, found.time_base = picture.pts, picture.time_base
    return found


def converted(samples: npt.NDArray[Any], height: int, step: Samples) -> npt.NDArray[np.uint8]:
    """Convert uint8 [3/2 height, width] as PyAV lays yuv420p out, likewise."""
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
    """Round the values; those that no display shows are clipped."""
    np.rint(values, out=values)
    np.clip(values, 0, 255, out=values)
    return values.astype(np.uint8)
