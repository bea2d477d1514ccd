"""The display matrix of a video: how to turn its pictures.

Nine int32, [a b u; c d v; x y w], that move a pixel at (x, y) to (ax + cy, bx + dy) (ISO/IEC 14496-12, 6.2.2;
libavutil/display.h).
"""

import struct
from typing import TYPE_CHECKING, Any

from ..errors import DecodeFailed
from .orientation import UPRIGHT, Turn

if TYPE_CHECKING:
    import av


def matrix_of(frame: "av.VideoFrame") -> tuple[int, ...] | None:
    """The nine numbers that came with a decoded frame, or None."""
    side_data: Any = frame.side_data  # av's stub makes a TypedDict of it
    matrix = side_data.get("DISPLAYMATRIX")
    return None if matrix is None else struct.unpack_from("=9i", bytes(matrix))


def turn_of_matrix(matrix: tuple[int, ...] | None) -> Turn:
    """The turn that a display matrix asks for; none where there is no matrix.

    Raises: DecodeFailed (an angle that is no quarter turn).
    """
    if not matrix:
        return UPRIGHT
    a, b, _, c, d, *_ = matrix
    if b == c == 0 and a and d:
        return Turn(False, d < 0, a < 0)
    if a == d == 0 and b and c:
        return Turn(True, b < 0, c < 0)
    raise DecodeFailed(
        f"video: the display matrix {a, b, c, d} is no quarter turn; re-encode the clip upright"
    )
