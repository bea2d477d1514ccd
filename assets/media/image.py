"""Photos: decoded whole, upright, sRGB, at the training resolution.

Upright by EXIF or XMP; an embedded profile is applied and left out; transparency is laid on white; 16 bits are
scaled to 8; CMYK becomes RGB by its profile, or by plain arithmetic without one. No EXIF is kept, so no GPS.
"""

import io
from pathlib import Path
from typing import TYPE_CHECKING

from .image_audit import from_lab, has_alpha
from .picture import loaded
from .policy import CutPolicy
from .scratch import check_scratch
from .unit import Unit, rejected

if TYPE_CHECKING:
    from PIL.Image import Image


def cut_image(path: str, scratch: Path, policy: CutPolicy) -> list[Unit]:
    """One unit with the fields `jpg` (8-bit sRGB, EXIF orientation applied, alpha laid on white) and `json`.

    Raises: Unusable for a truncated or otherwise unreadable file, for one that is too large, for an animation.
    """
    from PIL import ImageOps

    with loaded(path) as source:
        size = f"{source.width}x{source.height}"
        raw = {"format": str(source.format), "mode": source.mode, "size": size}
        picture, colour = _srgb(ImageOps.exif_transpose(source), source.info.get("icc_profile"))
    small = _shrink(picture, policy.image.short_side_px)
    file = scratch / "photo.jpg"
    try:
        small.save(file, "JPEG", quality=policy.image.jpeg_quality, subsampling="4:2:0", optimize=False)
    except OSError as error:
        check_scratch(error, scratch)
        raise rejected("cut", "unwritable", error) from error
    metadata: dict[str, bool | int | float | str | None]
    metadata = {"width_px": small.width, "height_px": small.height, "raw_mode": raw["mode"], "colour": colour}
    return [Unit(fields={"jpg": file, "json": {"raw": raw, "colour": colour}}, metadata=metadata)]


def _srgb(picture: "Image", profile: bytes | None) -> tuple["Image", str]:
    """RGB in sRGB, and how it came about: 'icc', 'lab', 'assumed' or 'icc_unusable'."""
    from PIL import Image, ImageCms

    if picture.mode.startswith(("I;16", "I")):
        # Pillow's convert("L") clips 16-bit values at 255 instead of scaling them.
        picture = picture.convert("I").point(lambda value: value / 257).convert("L")
    if picture.mode == "LAB":
        return from_lab(picture), "lab"
    if has_alpha(picture):
        layer = picture.convert("RGBA")
        ground = Image.new("RGBA", layer.size, "white")
        picture = Image.alpha_composite(ground, layer).convert("RGB")
    if picture.mode not in ("RGB", "CMYK", "L"):
        picture = picture.convert("RGB")
    if not profile:
        return picture.convert("RGB"), "assumed"
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        converted = ImageCms.profileToProfile(
            picture, source, ImageCms.createProfile("sRGB"), outputMode="RGB"
        )
    except (ImageCms.PyCMSError, OSError, ValueError):  # a broken profile, or one for another mode
        return picture.convert("RGB"), "icc_unusable"
    return (converted or picture).convert("RGB"), "icc"


def _shrink(picture: "Image", short_side_px: int) -> "Image":
    """Shorter side at most `short_side_px`, never enlarged. Carries no EXIF, so no GPS."""
    from PIL import Image

    scale = min(1.0, short_side_px / min(picture.size))
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    return picture.resize(size, Image.Resampling.LANCZOS) if size != picture.size else picture.copy()
