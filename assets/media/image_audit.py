"""What a photo is: as stored, as tagged, decoded once to its last pixel."""

from typing import TYPE_CHECKING

import numpy as np

from .media_table import Row
from .picture import loaded

if TYPE_CHECKING:
    from PIL.Image import Image

_ORIENTATION, _GPS = 0x0112, 0x8825  # EXIF tags
_SIDEWAYS = (5, 6, 7, 8)


def audit_image(path: str) -> Row:
    """Columns of the media table. Raises: Unusable."""
    with loaded(path) as picture:
        tag = _orientation(picture)
        width_px, height_px = picture.size
        if tag in _SIDEWAYS:
            width_px, height_px = height_px, width_px
        return {
            "container": picture.format,
            "codec": (picture.format or "").lower() or None,
            "width_px": picture.width,
            "height_px": picture.height,
            "upright_width_px": width_px,
            "upright_height_px": height_px,
            "image_mode": picture.mode,
            "bit_depth": _bit_depth(picture),
            "exif_orientation": tag,
            "has_icc": bool(picture.info.get("icc_profile")),
            "has_alpha": has_alpha(picture),
            "is_animated": False,  # an animation is dropped
            "has_gps": bool(picture.getexif().get_ifd(_GPS)),
            "luma_mean": _luma_mean(picture),
        }


def has_alpha(picture: "Image") -> bool:
    """Whether anything of it may be transparent."""
    return picture.mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in picture.info


def _orientation(picture: "Image") -> int | None:
    tag = picture.getexif().get(_ORIENTATION)  # Pillow looks into XMP as well
    return tag if isinstance(tag, int) and 1 <= tag <= 8 else None


def _bit_depth(picture: "Image") -> int:
    """Of a stored component, where Pillow's mode or the file's header tells it."""
    if picture.mode == "1":
        return 1
    if picture.mode.startswith("I"):
        return 16
    return int(picture.info.get("bit_depth", 8))


def _luma_mean(picture: "Image") -> float:
    """0 to 255, of the stored pixels, whatever they are transparent to."""
    deep = picture.mode.startswith("I")
    levels = picture if deep else from_lab(picture).convert("RGB").convert("L")
    return float(np.asarray(levels.resize((64, 64))).mean()) / (257 if deep else 1)


def from_lab(picture: "Image") -> "Image":
    """CIE L*a*b* as sRGB, which Pillow's own `convert` does not do; any other mode as it is."""
    from PIL import ImageCms

    if picture.mode != "LAB":
        return picture
    lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
    converted: Image | None = ImageCms.profileToProfile(picture, lab, srgb, outputMode="RGB")
    return picture if converted is None else converted
