"""Opening a photo: decoded whole, or refused with the reason."""

import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .unit import dropped, rejected

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_PX = 80_000_000
"""A larger picture is taken for a decompression bomb; a 60 Mpx camera fits."""

_STILL_WITH_MORE = ("MPO", "HEIF")
"""Phones store a preview, a depth map or a gain map behind a photo."""

DAMAGE = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    MemoryError,
    RuntimeError,  # of libavif and libheif
    LookupError,
    ArithmeticError,
    struct.error,
)
"""What Pillow's decoders and metadata readers raise for damaged files."""


@contextmanager
def loaded(path: str) -> Iterator["Image"]:
    """The picture at `path`, as stored, all its pixels decoded.

    Raises: Unusable for a truncated or otherwise unreadable file, for one above `MAX_PX`, for an animation
    (dropped: a photo has one frame, and which of several is meant nobody says), inside the block too.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd metadata, which are not used
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as source:
                _check(source)
                source.load()
                yield source
    except UnidentifiedImageError as error:
        raise rejected("probe", "unreadable", "no decoder recognises it as a picture") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise rejected("probe", "too_large", error) from error
    except DAMAGE as error:
        raise rejected("decode", "undecodable", error) from error


def _check(picture: "Image") -> None:
    if picture.width * picture.height > MAX_PX:
        raise rejected("probe", "too_large", f"{picture.width} x {picture.height} px; at most {MAX_PX} px")
    n_frames = getattr(picture, "n_frames", 1)
    if n_frames > 1 and picture.format not in _STILL_WITH_MORE:
        raise dropped("probe", "animation", f"{n_frames} frames or pages; a photo has one")


def read_heif() -> None:
    """Let Pillow open HEIC. Raises: Unusable without the optional package."""
    try:
        import pi_heif  # type: ignore[import-untyped]
    except ImportError as error:
        raise dropped(
            "probe", "type_not_taken", "HEIC needs a decoder: pip install pi-heif, and run the batch again"
        ) from error
    pi_heif.register_heif_opener()
