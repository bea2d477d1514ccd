"""Video: the word mp4. Which frames of a clip are wanted; `clip` reads them."""

import operator
from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np

from ..errors import DecodeFailed, InvalidRuntime
from .fields import Buffer
from .lazy import load


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoDecoder:
    """Decodes `frames` frames, every `stride`-th displayed one, to uint8 [T, H, W, 3] RGB.

    frames, stride: at least 1. size: (height, width) in px of the upright result, or None for the stored
    size. start: the first frame's number in display order, or None for a place drawn uniformly from the
    sample's generator over every start from which the clip fits (frame 0 where there is no generator).
    """

    frames: int = 16
    stride: int = 1
    size: tuple[int, int] | None = None
    start: int | None = None

    def __post_init__(self) -> None:
        if self.frames < 1 or self.stride < 1:
            raise InvalidRuntime(f"video(frames={self.frames}, stride={self.stride}): both are at least 1")
        if self.size is not None and (len(self.size) != 2 or min(self.size) < 1):
            raise InvalidRuntime(f"video(size={self.size}): (height, width) in px, each at least 1, or None")
        if self.start is not None and self.start < 0:
            raise InvalidRuntime(
                f"video(start={self.start}): a frame number from 0, or None for a drawn place"
            )

    def __call__(self, data: Buffer, rng: np.random.Generator | None = None) -> np.ndarray:
        """The clip. Raises: DecodeFailed (damaged, not mp4, too few frames); MissingDependency (av)."""
        clip: np.ndarray = load("clip:read_clip")(data, lambda n: self.wanted(n, rng), self.size)
        return clip

    def wanted(self, n_frames: int, rng: np.random.Generator | None) -> range:
        """Numbers in display order of the frames to decode, of a video with `n_frames`.

        Raises: DecodeFailed (too few: nothing is repeated to fill a clip).
        """
        span = (self.frames - 1) * self.stride + 1
        n_starts = n_frames - span + 1
        needed = span + (self.start or 0)
        if needed > n_frames:
            raise DecodeFailed(
                f"mp4: {n_frames} frames, but {self.frames} of stride {self.stride} from frame "
                f"{self.start or 0} on take {needed}. Filter by length, or ask for fewer with loader.video"
            )
        start = self.start
        if start is None:
            start = 0 if rng is None else int(rng.integers(n_starts))
        return range(start, start + span, self.stride)


def video(
    frames: SupportsIndex = 16,
    stride: SupportsIndex = 1,
    size: tuple[SupportsIndex, SupportsIndex] | None = None,
    start: SupportsIndex | None = None,
) -> VideoDecoder:
    """A decoder for an mp4 field: `Loader(plan, decode={"mp4": loader.video(frames=16, stride=2)})`.

    The arguments are those of `VideoDecoder`. Raises: InvalidRuntime.
    """
    try:
        return VideoDecoder(
            frames=operator.index(frames),
            stride=operator.index(stride),
            size=None if size is None else _height_width(*map(operator.index, size)),
            start=None if start is None else operator.index(start),
        )
    except TypeError as error:
        raise InvalidRuntime(f"video({frames!r}, {stride!r}, {size!r}, {start!r}): {error}") from error


def _height_width(height_px: int, width_px: int) -> tuple[int, int]:
    return height_px, width_px


DEFAULT = video()
