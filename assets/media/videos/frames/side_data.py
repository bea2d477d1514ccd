"""What comes with a decoded frame: how it is turned, what its light means. As the loader reads it, refusals by name."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from loader.errors import DecodeFailed
from loader.modalities.video.display_matrix import matrix_of, side_data_of

from ...unit import rejected

if TYPE_CHECKING:
    from av.buffer import Buffer
    from av.video.frame import VideoFrame


def side_data(frame: "VideoFrame") -> "Mapping[str, Buffer]":
    """By FFmpeg's name of its kind. Raises: Unusable, where some of it cannot be told."""
    with _refused():
        return side_data_of(frame)


def display_matrix(frame: "VideoFrame") -> tuple[int, ...] | None:
    """a b u c d v x y w, or None. Raises: Unusable."""
    with _refused():
        return matrix_of(frame)


@contextmanager
def _refused() -> Iterator[None]:
    try:
        yield
    except DecodeFailed as error:
        raise rejected("decode", "unknown_side_data", error) from error
