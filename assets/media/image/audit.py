"""Audit of a photo: as stored, as tagged, decoded to its last pixel."""

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
    with photo(path) as opened:
        image = opened.image
        turn = opened.orientation
        return {
            "container": image.format,
            "codec": (image.format or "").lower() or None,
            "width_px": opened.size_px[0],
            "height_px": opened.size_px[1],
            "upright_width_px": opened.upright_size_px[0],
            "upright_height_px": opened.upright_size_px[1],
            "image_mode": image.mode,
            "bit_depth": bit_depth(image),
            "exif_orientation": turn.exif,
            "xmp_orientation": turn.xmp,
            "orientation_by": turn.by,
            "colour_by": opened.colour.by,
            "has_icc": bool(image.info.get("icc_profile")),
            "has_alpha": has_alpha(image),
            "is_animated": opened.is_animated,
            "decode_warning": opened.warning,
            "has_gps": tells_place(image, Path(path).read_bytes()),
            "luma_mean": _luma_mean(opened),
        }


def _luma_mean(opened: Photo) -> float:
    """Return the mean luma of the sRGB pixels, 0 to 255, ignoring alpha. Raises: Unusable."""
    thumbnail = opened.image
    if thumbnail.mode in ("L", "LA", "RGB", "RGBA", "CMYK"):
        thumbnail = _boxed(thumbnail)
    colours = to_srgb(thumbnail, opened.colour).convert("RGB")
    return float(np.asarray(_boxed(colours).convert("L")).mean())


def _boxed(image: "Image") -> "Image":
    from PIL import Image

    return image.resize((64, 64), Image.Resampling.BOX)
