"""Measure brightness, contrast, colour and sharpness of photos and clips, and motion of clips."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from ..media.video.colour import weighted_rgb
from .decoding import Array, frames, kind_field, photo, shrink, small_frames, three_frames
from .featurizer import Column, Features, Featurizer

SERIES = (36, 64)
"""Height and width in px to which images are shrink; only sharpness uses more."""

SHARPNESS_PX = 256
"""Shorter side in px at which sharpness is measured."""

MAX_FRAMES = 20_000
"""Longest accepted clip in frames."""

LUMA = np.array([0.299, 0.587, 0.114], np.float32)
"""Weights of R'G'B' in luma, from ITU-R BT.601-7, 2.5.1."""

# FFmpeg's blackdetect: a pixel is black up to 0.10 of full luma, a frame when 0.98 of its pixels are.
_BLACK_PIXEL = 0.10
_BLACK_SHARE = 0.98
# FFmpeg's freezedetect: frozen when the mean absolute difference is at most -60 dB of full scale.
_FROZEN = 0.001

STILL = (
    "luma_mean_ratio",
    "luma_std_ratio",
    "luma_contrast_ratio",
    "chroma_mean_ratio",
    "sharpness_laplacian_var",
)
MOVING = ("motion_mean_ratio", "frozen_ratio", "black_ratio")


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture(Featurizer):
    """Brightness, contrast, colour and sharpness of photos and clips, and motion of clips.

    Columns are ratios of full range, 0 to 1 (limited-range video is expanded), of the 64 x 36 px series:

    - luma_mean_ratio, luma_std_ratio; luma_contrast_ratio: from the 5th to the 95th percentile of luma.
    - chroma_mean_ratio: max - min over R'G'B', so 0 for gray; includes dark noise.
    - sharpness_laplacian_var: variance of the 4-neighbour Laplacian of 8-bit luma, as in OpenCV; for a clip the
      mean over first, middle and last frame. None below 3 x 3 px.
    - motion_mean_ratio, video only: mean absolute luma difference of consecutive frames; None for a single frame.
    - frozen_ratio, video only: share of frame pairs without motion; None for a single frame.
    - black_ratio, video only: share of black frames.
    """

    image: str | None = "jpg"
    """Field of photos; None skips them."""
    video: str | None = "mp4"
    """Field of clips; None skips them."""
    name: ClassVar[str] = "picture"

    @property
    def columns(self) -> Mapping[str, tuple[str, ...]]:
        columns: dict[str, tuple[str, ...]] = dict.fromkeys(self.inputs, (*STILL, *MOVING))
        if "image" in columns:
            columns["image"] = STILL
        return columns

    def __call__(self, kind: str, sample: Mapping[str, bytes]) -> Features:
        field = kind_field(self.inputs, kind)
        if kind == "image":
            pixels = photo(sample, field)
            small = shrink(pixels, SERIES)
            return Features(fields={}, columns=_still(small[None], [pixels]))
        series = small_frames(sample, field, SERIES, MAX_FRAMES)
        full_size = frames(sample, field, three_frames)
        columns = _still(series, full_size)
        columns |= _moving(luma_of(series))
        return Features(fields={}, columns=columns)


def luma_of(pixels: Array) -> Array:
    """Return luma, float32 [...] from 0 to 1, of uint8 RGB [..., 3]."""
    return weighted_rgb(pixels, LUMA / np.float32(255))


def laplacian_variance(luma: Array) -> float | None:
    """Return the Laplacian's variance in squared 8-bit steps; None below 3 x 3 px. luma: [H, W], 0 to 1."""
    if min(luma.shape) < 3:
        return None
    y = luma * np.float32(255)
    above = y[:-2, 1:-1]
    below = y[2:, 1:-1]
    before = y[1:-1, :-2]
    after = y[1:-1, 2:]
    edges = above + below + before + after - 4 * y[1:-1, 1:-1]  # [H - 2, W - 2]
    return float(edges.var(dtype=np.float64))


def _still(series: Array, full_size: Sequence[Array] | Array) -> dict[str, Column]:
    """Return the columns of `STILL`. series: uint8 [frames, 36, 64, 3]; full_size: frames for sharpness."""
    luma = luma_of(series)
    low, high = np.percentile(luma, (5, 95))
    chroma = series.max(axis=-1) - series.min(axis=-1)  # [frames, 36, 64]
    sharpness = []
    for pixels in full_size:
        variance = laplacian_variance(_at_most(luma_of(pixels)))
        if variance is not None:
            sharpness.append(variance)
    mean_sharpness = None
    if sharpness:
        mean_sharpness = _round_six(np.mean(sharpness))
    values = (
        _round_six(luma.mean(dtype=np.float64)),
        _round_six(luma.std(dtype=np.float64)),
        _round_six(high - low),
        _round_six(chroma.mean(dtype=np.float64) / 255),
        mean_sharpness,
    )
    return dict(zip(STILL, values, strict=True))


def _moving(luma: Array) -> dict[str, Column]:
    """Return the columns of `MOVING`. luma: float32 [frames, 36, 64]."""
    black_share = (luma <= _BLACK_PIXEL).mean(axis=(1, 2))  # [frames]
    is_black = black_share >= _BLACK_SHARE
    # Pair by pair: the differences of all frames at once would double the memory.
    motion = np.array([np.abs(after - before).mean() for before, after in pairwise(luma)])
    mean_motion = None
    frozen = None
    if motion.size:
        is_frozen = motion <= _FROZEN
        mean_motion = _round_six(motion.mean())
        frozen = _round_six(is_frozen.mean())
    values = (mean_motion, frozen, _round_six(is_black.mean()))
    return dict(zip(MOVING, values, strict=True))


def _at_most(luma: Array) -> Array:
    from PIL import Image

    scale = SHARPNESS_PX / min(luma.shape)
    if scale >= 1:
        return luma
    height = round(luma.shape[0] * scale)
    width = round(luma.shape[1] * scale)
    image = Image.fromarray(luma)
    return np.asarray(image.resize((width, height), Image.Resampling.LANCZOS))


def _round_six(value: Any) -> float:
    """Round to six decimals: the rest depends on the machine's order of summation."""
    return round(float(value), 6)
