"""Decide what a frame's samples become: RGB, or gray as stored."""

import re
from functools import lru_cache
from typing import Any, NamedTuple

import av
import numpy as np

from ...errors import DecodeFailed
from ..image.crop import Bits

_DEEPEST_BITS = 16
_FLOAT = re.compile(r"f(16|32)(le|be)$")


class FramePixels(NamedTuple):
    """Samples of the result."""

    dtype: np.dtype[Any]
    """uint8 or uint16."""
    channels: int
    """3 for RGB, 1 for gray."""
    stored: str
    """numpy's dtype of stored samples that stay as they are; "" for samples that become RGB."""


_RGB = FramePixels(np.dtype(np.uint8), 3, "")
_DEEP_RGB = FramePixels(np.dtype(np.uint16), 3, "")


@lru_cache(maxsize=64)
def frame_pixels(pix_fmt: str, bits: Bits | None) -> FramePixels:
    """Return what frames of a pixel format (FFmpeg's name) become.

    Colour becomes RGB, uint8 or for bits=16 uint16. Gray of more than 8 bits is data, such as depth: it keeps its
    numbers as uint16 unless bits=8. Raises: DecodeFailed for floats, and for deep gray with alpha unless bits=8.
    """
    depth = max((component.bits for component in av.VideoFormat(pix_fmt).components), default=8)
    if depth > _DEEPEST_BITS or _FLOAT.search(pix_fmt):
        raise DecodeFailed(
            f"video: frames of {pix_fmt} have floats or samples of {depth} bits; integers of up to {_DEEPEST_BITS} "
            "bits are decoded. Store the frames as a .npy array",
            what="pix_fmt",
            given=pix_fmt,
            accepted=_DEEPEST_BITS,
        )
    if bits == 8:
        return _RGB
    if depth > 8 and pix_fmt.startswith("ya"):
        raise DecodeFailed(
            f"video: frames of {pix_fmt} are gray of {depth} bits with alpha; store gray and alpha apart, or decode "
            "with loader.video(bits=8)",
            what="pix_fmt",
            given=pix_fmt,
            accepted="gray without alpha",
        )
    if is_deep_gray(pix_fmt):
        order = "<"
        if pix_fmt.endswith("be"):
            order = ">"
        return FramePixels(np.dtype(np.uint16), 1, f"{order}u2")
    if bits == 16:
        return _DEEP_RGB
    return _RGB


@lru_cache(maxsize=64)
def is_deep_gray(pix_fmt: str) -> bool:
    """Return whether a pixel format (FFmpeg's name) is gray of more than 8 bits, without alpha."""
    if not pix_fmt.startswith("gray"):
        return False
    return max(component.bits for component in av.VideoFormat(pix_fmt).components) > 8


def plane_samples(frame: av.VideoFrame, stored: str) -> np.ndarray:
    """Return the first plane of a frame, [H, W, 1] of the dtype `stored`, in the frame's memory."""
    plane: Any = frame.planes[0]
    rows = np.frombuffer(plane, stored).reshape(-1, plane.line_size // 2)  # including padding
    return rows[: frame.height, : frame.width, None]
