"""Properties of a photo: as stored, as tagged, decoded once to its last pixel."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..colour.depth import bit_depth, has_alpha
from ..colour.to_srgb import to_srgb
from ..media_table import Row
from .exif import tells_place
from .open import Photo, photo

if TYPE_CHECKING:
    from PIL.Image import Image


def audit_image(path: str) -> Row:
    """Return the columns of the media table. Raises: Unusable."""
    with photo(path) as found:
        picture = found.picture
        turn = found.orientation
        return {
            "container": picture.format,
            "codec": (picture.format or "").lower() or None,
            "width_px": found.size_px[0],
            "height_px": found.size_px[1],
            "upright_width_px": found.upright_size_px[0],
            "upright_height_px": found.upright_size_px[1],
            "image_mode": picture.mode,
            "bit_depth": bit_depth(picture),
            "exif_orientation": turn.exif,
            "xmp_orientation": turn.xmp,
            "orientation_by": turn.by,
            "colour_by": found.colour.by,
            "has_icc": bool(picture.info.get("icc_profile")),
            "has_alpha": has_alpha(picture),
            "is_animated": found.is_animated,
            "decode_warning": found.warning,
            "has_gps": tells_place(picture, Path(path).read_bytes()),
            "luma_mean": _luma_mean(found),
        }


def _luma_mean(found: Photo) -> float:
    """Return the mean luma in 0 to 255, of the pixels in sRGB, whatever they are transparent to.

    Raises: Unusable (no number is white).
    """
    small = found.picture
    if small.mode in ("L", "LA", "RGB", "RGBA", "CMYK"):
        small = _boxed(small)
    colours = to_srgb(small, found.colour).convert("RGB")
    return float(np.asarray(_boxed(colours).convert("L")).mean())


def _boxed(picture: "Image") -> "Image":
    from PIL import Image

    return picture.resize((64, 64), Image.Resampling.BOX)
