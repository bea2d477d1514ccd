"""Decoded video frames to one RGB array: colour, size, rotation.

- Colour follows the stream's matrix and range. An untagged stream is read as limited-range BT.601, as all
  decoders do; high dynamic range is not tone-mapped, and 10-bit samples become 8.
- Rotation and mirroring of the display matrix are applied; the pixel aspect ratio is not, and interlaced
  frames are not deinterlaced: stored clips have square pixels and progressive frames.
"""

import struct
from typing import Any

import av
import numpy as np
from av.video.reformatter import ColorRange, Colorspace, Interpolation, VideoReformatter

from ..errors import DecodeFailed
from .orientation import UPRIGHT, Turn, turned

# A decoded clip above this is a mistake or an attack: 16 frames at 8K are 1.6 GB.
MAX_CLIP_BYTES = 2**32

# AVCOL_SPC_UNSPECIFIED and AVCOL_RANGE_UNSPECIFIED of FFmpeg's libavutil/pixfmt.h.
_NO_MATRIX, _NO_RANGE = 2, 0
# Bilinear over the whole source area (swscale widens the filter when it shrinks, so nothing aliases). Without
# FULL_CHR_H_INT every value comes out up to 2 levels too dark. The flags cost little here; without a resize they
# would cost 8x: there swscale's fast converter is used, which is right.
_RESIZE = (
    Interpolation.BILINEAR
    | Interpolation.ACCURATE_RND
    | Interpolation.BITEXACT
    | Interpolation.FULL_CHR_H_INT
)
_CONVERT = Interpolation.BILINEAR


class ClipBuilder:
    """Takes a clip's frames one by one, in any order; `upright()` gives uint8 [T, H, W, 3].

    size: (height, width) in px of the upright clip, or None for the size of the frames. One converter
    serves the whole clip.
    """

    def __init__(self, n_frames: int, size: tuple[int, int] | None) -> None:
        self._n_frames = n_frames
        self._size = size
        self._reformatter = VideoReformatter()
        self._turn = UPRIGHT
        self._out: np.ndarray | None = None

    def put(self, place: int, frame: av.VideoFrame) -> None:
        """Convert `frame` into place `place` of the clip.

        Raises: DecodeFailed (a frame of another size than the first, an angle that is no quarter turn).
        """
        if self._out is None:
            self._turn = display_turn(frame)
            self._out = self._allocate(frame)
        out = self._out
        height, width = out.shape[1:3]
        if self._size is None and (frame.height, frame.width) != (height, width):
            raise DecodeFailed(
                f"mp4: the frame size changes from {width} x {height} to {frame.width} x {frame.height} px; "
                "give loader.video a size"
            )
        rgb = self._reformatter.reformat(
            frame,
            width=width,
            height=height,
            format="rgb24",
            src_colorspace=Colorspace.ITU601 if frame.colorspace == _NO_MATRIX else None,
            src_color_range=_range(frame),
            interpolation=_CONVERT if self._size is None else _RESIZE,
            threads=1,
        )
        plane = rgb.planes[0]
        rows = np.frombuffer(memoryview(plane), np.uint8).reshape(-1, plane.line_size)[:height, : width * 3]
        out[place].reshape(height, width * 3)[:] = rows

    def upright(self) -> np.ndarray:
        """The clip, turned as its display matrix says. Every place has been put."""
        if self._out is None:
            raise DecodeFailed("mp4: no frames were decoded")
        return turned(self._out, self._turn)

    def _allocate(self, frame: av.VideoFrame) -> np.ndarray:
        height, width = frame.height, frame.width
        if self._size is not None:
            height, width = self._size[::-1] if self._turn.transpose else self._size
        nbytes = self._n_frames * height * width * 3
        if nbytes > MAX_CLIP_BYTES:
            raise DecodeFailed(
                f"mp4: {self._n_frames} frames of {width} x {height} px take {nbytes} bytes, more than "
                f"{MAX_CLIP_BYTES}; ask for fewer or smaller ones with loader.video"
            )
        return np.empty((self._n_frames, height, width, 3), np.uint8)


def display_turn(frame: av.VideoFrame) -> Turn:
    """The turn that the frame's display matrix asks for.

    The matrix is nine int32, [a b u; c d v; x y w], and moves a pixel at (x, y) to (ax + cy, bx + dy)
    (ISO/IEC 14496-12, 6.2.2; libavutil/display.h).

    Raises: DecodeFailed (an angle that is no quarter turn).
    """
    side_data: Any = frame.side_data  # av's stub makes a TypedDict of it
    matrix = side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return UPRIGHT
    a, b, _, c, d = struct.unpack_from("=5i", bytes(matrix))
    if b == c == 0 and a and d:
        return Turn(False, d < 0, a < 0)
    if a == d == 0 and b and c:
        return Turn(True, b < 0, c < 0)
    raise DecodeFailed(f"mp4: the display matrix {a, b, c, d} is no quarter turn; re-encode the clip upright")


def _range(frame: av.VideoFrame) -> ColorRange | None:
    """Limited for an untagged frame, unless its format (yuvj420p, rgb24 ...) implies full range."""
    if frame.color_range != _NO_RANGE or not frame.format.name.startswith("yuv"):
        return None
    return ColorRange.JPEG if frame.format.name.startswith("yuvj") else ColorRange.MPEG
