"""Convert decoded video frames to one RGB array: colour, crop, size, rotation.

- Colour follows the stream's matrix and range. Untagged streams are read as limited-range BT.601, as in all decoders.
  High dynamic range is not tone-mapped; 10-bit samples become 8-bit.
- Rotation and mirroring by the display matrix are applied; pixel aspect ratio and interlacing are ignored.
"""

import threading
from fractions import Fraction
from itertools import pairwise
from typing import Any

import av
import av.filter
import numpy as np
from av.video.reformatter import ColorRange, Colorspace, Interpolation, VideoReformatter

from ...errors import DecodeFailed
from ...limits import MAX_CLIP_BYTES
from ..fields import Place, nowhere
from ..image.crop import UPRIGHT, Box, CropGeometry, Framing, Size, turned
from .display_matrix import matrix_of, turn_of_matrix

# AVCOL_SPC_UNSPECIFIED and AVCOL_RANGE_UNSPECIFIED in FFmpeg's libavutil/pixfmt.h.
_NO_MATRIX, _NO_RANGE = 2, 0
# Bilinear over the whole source area (swscale widens the filter when shrinking, which prevents aliasing). Without
# FULL_CHR_H_INT values are up to 2 levels too dark.
_RESIZE = int(
    Interpolation.BILINEAR
    | Interpolation.ACCURATE_RND
    | Interpolation.BITEXACT
    | Interpolation.FULL_CHR_H_INT
)
# Without a resize these flags would cost 8x: swscale's usual fast converter is used instead.
_CONVERT = int(Interpolation.BILINEAR)

# As numbers: PyAV takes twice as long with its own enumerations.
_ITU601, _LIMITED, _FULL = int(Colorspace.ITU601), int(ColorRange.MPEG), int(ColorRange.JPEG)

_UINT8 = np.dtype(np.uint8)
_ANY_TIME_BASE = Fraction(1, 1000)  # a filter graph needs one; frame times are not used here


class _Converters(threading.local):
    """A thread's converters: one per step, configured for the last sizes."""

    def __init__(self) -> None:
        self.resize, self.pack, self.convert = VideoReformatter(), VideoReformatter(), VideoReformatter()


_CONVERTERS = _Converters()


class ClipBuilder:
    """Takes a clip's frames one by one, in any order; `upright()` returns uint8 [T, H, W, 3].

    display_matrix: the stream's, () if it has none; None if the frames carry it. place: offers memory for an upright
    clip.
    """

    def __init__(
        self,
        n_frames: int,
        framing: Framing,
        display_matrix: tuple[int, ...] | None,
        place: Place = nowhere,
    ) -> None:
        self._n_frames, self._framing, self._place = n_frames, framing, place
        self._turn = UPRIGHT if display_matrix is None else turn_of_matrix(display_matrix)
        self._turn_is_known = display_matrix is not None
        self._cropper: Cropper | None = None
        self._layout: tuple[Size, CropGeometry, np.ndarray] | None = None
        self._out: np.ndarray | None = None

    def put(self, places: list[int], frame: av.VideoFrame) -> None:
        """Convert `frame` and store it at these positions in the clip.

        Raises: DecodeFailed if the size differs from the first frame's, the rotation is not a quarter turn, or the crop
        does not fit.
        """
        if not self._turn_is_known:
            self._turn, self._turn_is_known = turn_of_matrix(matrix_of(frame)), True
        stored = (frame.height, frame.width)
        if self._layout is None or self._layout[0] != stored:
            layout = self._framing.layout(stored, self._turn)
            self._layout = stored, layout, self._allocated(layout.kept[2:], stored)
        _, layout, out = self._layout
        if layout.source != (0, 0, *stored):
            if self._cropper is None or not self._cropper.is_for(frame):
                self._cropper = Cropper(frame, layout.source)
            frame = self._cropper.apply(frame)
        self._convert(frame, layout, out[places[0]])
        for place in places[1:]:
            out[place] = out[places[0]]

    def upright(self) -> np.ndarray:
        """Return the clip, turned by its display matrix. Call it after every position was put."""
        if self._out is None:
            raise DecodeFailed("video: no frames were decoded")
        return turned(self._out, self._turn)

    def _convert(self, frame: av.VideoFrame, layout: CropGeometry, out: np.ndarray) -> None:
        height, width = layout.scaled
        colour = {
            "src_colorspace": _ITU601 if frame.colorspace == _NO_MATRIX else None,
            "src_color_range": _range(frame),
        }
        if (frame.height, frame.width) == (height, width):
            picture = _CONVERTERS.convert.reformat(
                frame, format="rgb24", interpolation=_CONVERT, threads=1, **colour
            )
        else:
            # Planes are converted, then interleaved: the same values as rgb24 in half the time. (When enlarging, 1 in
            # 400 differs by 1, because swscale's rgb24 takes a shortcut.)
            planes = _CONVERTERS.resize.reformat(
                frame, width=width, height=height, format="gbrp", interpolation=_RESIZE, threads=1, **colour
            )
            picture = _CONVERTERS.pack.reformat(planes, format="rgb24", interpolation=_CONVERT, threads=1)
        top, left, high, wide = layout.kept
        plane: Any = picture.planes[0]
        rows = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)  # including padding
        out.reshape(high, wide * 3)[:] = rows[top : top + high, left * 3 : (left + wide) * 3]

    def _allocated(self, size: tuple[int, ...], stored: Size) -> np.ndarray:
        height, width = size
        out = self._out
        if out is None:
            nbytes = self._n_frames * height * width * 3
            if nbytes > MAX_CLIP_BYTES:
                raise DecodeFailed(
                    f"video: {self._n_frames} frames of {width} x {height} px take {nbytes} bytes, more than "
                    f"{MAX_CLIP_BYTES}; ask for fewer or smaller ones with loader.video"
                )
            shape = (self._n_frames, height, width, 3)
            out = self._place(shape, _UINT8) if self._turn == UPRIGHT else None
            self._out = out = np.empty(shape, _UINT8) if out is None else out
        elif out.shape[1:3] != (height, width):
            raise DecodeFailed(
                f"video: the frame size changes from {out.shape[2]} x {out.shape[1]} to {stored[1]} x {stored[0]} px; "
                "give loader.video a size"
            )
        return out


class Cropper:
    """Cuts a box out of frames of one size and format with FFmpeg's crop filter, without copying."""

    def __init__(self, frame: av.VideoFrame, box: Box) -> None:
        """Create the filter. Raises: DecodeFailed if the box splits colour samples (4:2:0 has one per 2 x 2 px)."""
        top, left, height, width = box
        across, down = 16 // frame.format.chroma_width(16), 16 // frame.format.chroma_height(16)
        if left % across or top % down:
            raise DecodeFailed(
                f"video: in {frame.format.name} a crop that is resized begins at a multiple of {down} px down and "
                f"{across} px across, in stored pixels; got {top} and {left}"
            )
        self._made_for = (frame.height, frame.width, frame.format.name)
        self._graph = av.filter.Graph()
        self._graph.threads = 1
        chain = [
            self._graph.add_buffer(
                width=frame.width, height=frame.height, format=frame.format, time_base=_ANY_TIME_BASE
            ),
            self._graph.add("crop", f"{width}:{height}:{left}:{top}:exact=1"),
            self._graph.add("buffersink"),
        ]
        for before, after in pairwise(chain):
            before.link_to(after)
        self._graph.configure()

    def is_for(self, frame: av.VideoFrame) -> bool:
        return self._made_for == (frame.height, frame.width, frame.format.name)

    def apply(self, frame: av.VideoFrame) -> av.VideoFrame:
        self._graph.push(frame)
        cut: Any = self._graph.pull()
        picture: av.VideoFrame = cut
        return picture


def _range(frame: av.VideoFrame) -> int | None:
    """Return limited range for an untagged frame, unless its format implies full range."""
    if frame.color_range != _NO_RANGE or not frame.format.name.startswith("yuv"):
        return None
    return _FULL if frame.format.name.startswith("yuvj") else _LIMITED
