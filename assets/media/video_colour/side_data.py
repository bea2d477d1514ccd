"""Side data of a decoded frame: its turn, the meaning of its light."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from loader.errors import DecodeFailed
from loader.modalities.video.display_matrix import matrix_of, side_data_of

from ..unit import rejected

if TYPE_CHECKING:
    from av.buffer import Buffer
    from av.video.frame import VideoFrame


def side_data(frame: "VideoFrame") -> "Mapping[str, Buffer]":
    """Return the side data by FFmpeg's names. Raises: Unusable for unknown data."""
    with _refused():
        return side_data_of(frame)


def display_matrix(frame: "VideoFrame") -> tuple[int, ...] | None:
    """Return the display matrix a b u c d v x y w, or None. Raises: Unusable."""
    with _refused():
        return matrix_of(frame)


@contextmanager
def _refused() -> Iterator[None]:
    try:
        yield
    except DecodeFailed as error:
        raise rejected("decode", "unknown_side_data", error) from error
