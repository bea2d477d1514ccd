"""What a photo is: as stored, as tagged, decoded once to its last pixel."""

from typing import TYPE_CHECKING

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
    return "A" in picture.getbands() or "transparency" in picture.info


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
    small = picture.convert("RGB") if not picture.mode.startswith("I") else picture
    small = small.resize((64, 64)).convert("I")
    total = sum(level * n for n, level in small.getcolors(64 * 64) or [])  # type: ignore[misc]
    return total / 64**2 / (257 if picture.mode.startswith("I") else 1)
