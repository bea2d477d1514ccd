"""Reference photos: the bytes of the source, where a training job would see the same picture in them.

What the loader would read otherwise (a wide colour space, CMYK, transparency that is to be laid on a ground, a format
that it does not know) is to be stored as what it shows: upright, sRGB, at full size, without loss.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from loader.errors import DecodeFailed

from .alpha import Alpha
from .parts import BrokenParts
from .picture import Photo
from .stripping import stripped

if TYPE_CHECKING:
    from PIL.Image import Image

_READ_BY_LOADER = ("JPEG", "MPO", "PNG", "WEBP")

_SAME_LEVELS = 8
"""The most by which a value may differ between the arithmetic of two decoders of JPEG; another picture is far off."""


def reference_bytes(
    data: bytes, found: Photo, shown: "Image", alpha: Alpha, strip: bool
) -> tuple[bytes, str]:
    """(bytes, ""), or (b"", why the source's bytes will not do).

    data: the source's file; shown: its picture upright in sRGB, as it is to be seen, with what became of its alpha;
    strip: without metadata. The loader has then read the bytes and seen the same, and without metadata not one value
    else than with them.
    """
    kind = found.kind
    why = _unfit(kind, found, alpha)
    if why:
        return b"", why
    try:
        with_all = _read(data)
        bare = stripped(data, kind, found.orientation.told) if strip else data
        seen = _read(bare) if strip else with_all
    except (BrokenParts, DecodeFailed) as error:
        return b"", f"the loader would refuse it: {error}"
    expected = np.asarray(shown)
    if not np.array_equal(seen, with_all) or not _is_same(seen, expected):
        return b"", "the loader would see another picture"
    return bare, ""


def _unfit(kind: str, found: Photo, alpha: Alpha) -> str:
    if kind not in _READ_BY_LOADER:
        return f"{kind} is none of what the loader reads"
    if found.is_animated:
        return "it has more frames than the one that is taken"
    if found.colour.profile is not None:
        return f"its colours are not sRGB (told by: {found.colour.by})"
    if found.mode == "CMYK":
        return "it is CMYK"
    return "" if alpha in ("none", "kept") else f"it has an alpha channel ({alpha})"


def _read(data: bytes) -> "np.ndarray[Any, Any]":
    """As the loader does. Raises: DecodeFailed."""
    from loader.modalities import decoder_for

    pixels: Any = decoder_for("img")(data, None)
    return np.asarray(pixels)


def _is_same(seen: "np.ndarray[Any, Any]", expected: "np.ndarray[Any, Any]") -> bool:
    """Compared by rows, so that no third copy of the picture is made."""
    return seen.shape == expected.shape and all(
        int(np.abs(one.astype(np.int16) - other).max()) <= _SAME_LEVELS
        for one, other in zip(seen, expected, strict=True)
    )
