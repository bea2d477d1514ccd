"""Read a video's display matrix, which turns its frames upright. Importing this module does not import PyAV.

Nine int32, [a b u; c d v; x y w], which move a pixel at (x, y) to (ax + cy, bx + dy) (ISO/IEC 14496-12, 6.2.2;
libavutil/display.h).
"""

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from ...errors import DecodeFailed
from ..image.crop import UPRIGHT, PixelTurn

if TYPE_CHECKING:
    import av
    from av.buffer import Buffer


def frame_side_data(frame: "av.VideoFrame") -> "Mapping[str, Buffer]":
    """Return a decoded frame's side data: FFmpeg's name of the kind -> data.

    Raises: DecodeFailed if a kind is newer than PyAV, which then returns no side data, not even the matrix.
    """
    try:
        return cast("Mapping[str, Buffer]", frame.side_data)  # av's stub declares a TypedDict
    except ValueError as error:
        raise DecodeFailed(
            f"video: PyAV cannot read what comes with its frames: {error}", what="side data", given=str(error)
        ) from error


def frame_matrix(frame: "av.VideoFrame") -> tuple[int, ...] | None:
    """Return the display matrix of a decoded frame, nine numbers, or None. Raises: DecodeFailed."""
    matrix = frame_side_data(frame).get("DISPLAYMATRIX")
    if matrix is None:
        return None
    return struct.unpack_from("=9i", bytes(matrix))


def turn_of_matrix(matrix: tuple[int, ...] | None) -> PixelTurn:
    """Return the turn for a display matrix, which may be None. Raises: DecodeFailed if it is not a quarter turn."""
    if not matrix:
        return UPRIGHT
    a, b, _, c, d, *_ = matrix
    if b == c == 0 and a and d:
        return PixelTurn(False, d < 0, a < 0)
    if a == d == 0 and b and c:
        return PixelTurn(True, b < 0, c < 0)
    raise DecodeFailed(
        f"video: the display matrix {a, b, c, d} is not a quarter turn; re-encode the clip upright",
        what="display matrix",
        given=[a, b, c, d],
        accepted="a quarter turn",
    )
