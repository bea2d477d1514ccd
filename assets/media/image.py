"""Photos: decoded whole, upright, sRGB, at the training resolution.

Upright by EXIF, XMP or the container; the colour space is applied and left out; transparency follows the policy; 16
bits are scaled to 8. No metadata are kept: no EXIF, no comment, so no place and no serial number.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .alpha import apply_alpha
from .image_colour import to_srgb
from .image_orientation import upright
from .picture import Photo, photo
from .policy import CutPolicy
from .scratch import check_scratch
from .unit import Unit, dropped, rejected

if TYPE_CHECKING:
    from PIL.Image import Image


def cut_image(path: str, scratch: Path, policy: CutPolicy) -> list[Unit]:
    """One unit with the fields `jpg` (8-bit sRGB; `png` for one whose alpha is kept) and `json`.

    Raises: Unusable for a truncated or otherwise unreadable file, for one that is too large, and for what the policy
    leaves out: animations, transparency.
    """
    rules = policy.image
    with photo(path) as found:
        if found.is_animated and rules.animated == "drop":
            raise dropped(
                "probe", "animation", "it has more frames or pages than one; animated='first' takes one"
            )
        told = facts(found)
        colours = to_srgb(found.picture, found.colour)
        found.picture.close()  # frees its pixels: a large picture is never there three times
    small, alpha = apply_alpha(_shrink(colours, rules.short_side_px), rules.alpha)
    small = upright(small, found.orientation.pending)
    word = "png" if alpha == "kept" else "jpg"
    file = scratch / f"photo.{word}"
    try:
        if word == "png":
            small.save(file, "PNG")
        else:
            small.save(file, "JPEG", quality=rules.jpeg_quality, subsampling="4:2:0", optimize=False)
    except OSError as error:
        check_scratch(error, scratch)
        raise rejected("cut", "unwritable", error) from error
    metadata: dict[str, bool | int | float | str | None] = {
        "width_px": small.width,
        "height_px": small.height,
        "raw_mode": told["raw"]["mode"],
        "colour": found.colour.by,
        "alpha": alpha,
    }
    return [Unit(fields={word: file, "json": {**told, "alpha": alpha}}, metadata=metadata)]


def facts(found: Photo) -> dict[str, Any]:
    """What a sample's `photo.json` says of the file that it came from."""
    width_px, height_px = found.size_px
    turn = found.orientation
    return {
        "raw": {
            "format": str(found.picture.format),
            "mode": found.picture.mode,
            "size": f"{width_px}x{height_px}",
            "orientation": {"exif": turn.exif, "xmp": turn.xmp, "by": turn.by},
            "is_animated": found.is_animated,
        },
        "colour": found.colour.by,
    }


def _shrink(picture: "Image", short_side_px: int) -> "Image":
    """Shorter side at most `short_side_px`, never enlarged."""
    from PIL import Image

    scale = min(1.0, short_side_px / min(picture.size))
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    return picture.resize(size, Image.Resampling.LANCZOS) if size != picture.size else picture
