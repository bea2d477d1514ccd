"""What comes with a decoded frame: how it is turned, what its light means."""

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING

from loader.errors import DecodeFailed
from loader.modalities.display_matrix import side_data_of

from ..unit import rejected

if TYPE_CHECKING:
    from av.buffer import Buffer
    from av.video.frame import VideoFrame


def side_data(frame: "VideoFrame") -> "Mapping[str, Buffer]":
    """By FFmpeg's name of its kind. Raises: Unusable, where some of it cannot be told."""
    try:
        return side_data_of(frame)
    except DecodeFailed as error:
        raise rejected("decode", "unknown_side_data", error) from error


def display_matrix(frame: "VideoFrame") -> tuple[int, ...] | None:
    """a b u c d v x y w, or None. Raises: Unusable."""
    matrix = side_data(frame).get("DISPLAYMATRIX")
    return struct.unpack("=9i", bytes(matrix)[:36]) if matrix is not None else None
