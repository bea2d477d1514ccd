"""From a decoded frame to what a viewer sees, small: orientation, square pixels, size, colour."""

import struct
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from .unit import rejected

if TYPE_CHECKING:
    from av.buffer import Buffer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream


class PictureFilter:
    """One FFmpeg filter graph, made anew whenever the stream changes its size or pixel format."""

    def __init__(self, stream: "VideoStream", short_side_px: int) -> None:
        self._stream, self._short_side_px = stream, short_side_px
        self._graph: Any = None
        self._made_for: tuple[int, int, str] | None = None
        self._size: tuple[int, int] | None = None

    def apply(self, frame: "VideoFrame") -> "VideoFrame":
        """The frame upright, yuv420p, shorter side at most `short_side_px`, both sides even.

        Raises: Unusable when the picture changes its shape in mid-clip.
        """
        now = (frame.width, frame.height, frame.format.name)
        if self._made_for != now:
            self._graph = self._make(frame)
            self._made_for = now
        self._graph.push(frame)
        picture: VideoFrame = self._graph.pull()
        if self._size not in (None, (picture.width, picture.height)):
            raise rejected(
                "cut", "shape_change", f"{self._size} px becomes {picture.width, picture.height} px"
            )
        self._size = (picture.width, picture.height)
        return picture

    def _make(self, frame: "VideoFrame") -> Any:
        import av.filter

        turns, swapped = turns_of(display_matrix(frame))
        aspect = self._stream.sample_aspect_ratio or 1
        width_px, height_px = float(frame.width * aspect), float(frame.height)
        if swapped:
            width_px, height_px = height_px, width_px
        width, height = fit(width_px, height_px, self._short_side_px)
        graph = av.filter.Graph()
        # Untagged video is read as limited BT.601 by every common decoder; that is what we write as well.
        scale = f"{width}:{height}:flags=bicubic+accurate_rnd:out_color_matrix=bt601:out_range=tv"
        chain = [
            graph.add_buffer(
                template=self._stream, width=frame.width, height=frame.height, format=frame.format
            )
        ]
        chain += [graph.add(name, options) for name, options in turns]
        chain += [graph.add("scale", scale), graph.add("setsar", "1"), graph.add("format", "yuv420p")]
        chain += [graph.add("buffersink")]
        for before, after in pairwise(chain):
            before.link_to(after)
        graph.configure()
        return graph


def fit(width_px: float, height_px: float, short_side_px: int) -> tuple[int, int]:
    """The even size nearest to this shape with a shorter side of at most `short_side_px`, never enlarged."""
    scale = min(1.0, short_side_px / min(width_px, height_px))
    return max(2, 2 * round(width_px * scale / 2)), max(2, 2 * round(height_px * scale / 2))


def display_matrix(frame: "VideoFrame") -> tuple[int, ...] | None:
    sides = cast("Mapping[str, Buffer]", frame.side_data)  # PyAV's stub lists only one of its kinds
    matrix = sides.get("DISPLAYMATRIX")
    return struct.unpack("=9i", bytes(matrix)[:36]) if matrix is not None else None


def turns_of(matrix: tuple[int, ...] | None) -> tuple[list[tuple[str, str]], bool]:
    """Filters that apply a display matrix (a b u c d v x y w), and whether width and height change places.

    a, b, c, d as in x' = a x + c y, y' = b x + d y, y pointing down; multiples of 90 degrees and mirrors only
    (others are left as they are, which no camera writes).
    """
    if matrix is None:
        return [], False
    a, b, c, d = (value / 65536 for value in (matrix[0], matrix[1], matrix[3], matrix[4]))
    if abs(a) < 0.1 and abs(d) < 0.1 and abs(b) > 0.1 and abs(c) > 0.1:
        # 1 clock, 2 cclock; 0 cclock_flip and 3 clock_flip are the mirrored ones
        turn = {(True, False): "1", (False, True): "2", (True, True): "0", (False, False): "3"}[b > 0, c > 0]
        return [("transpose", turn)], True
    flips = [("hflip", "")] if a < -0.1 else []
    return flips + ([("vflip", "")] if d < -0.1 else []), False
