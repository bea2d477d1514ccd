"""Photos: decoded whole, upright, sRGB, at the training resolution."""

import io
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from .unit import CutPolicy, Unit, dropped, rejected

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_PX = 80_000_000
"""A larger picture is taken for a decompression bomb; a 60 Mpx camera fits."""


def cut_image(path: str, scratch: Path, policy: CutPolicy) -> list[Unit]:
    """One unit with the fields `jpg` (8-bit sRGB, EXIF orientation applied, alpha laid on white) and `json`.

    Raises: Unusable for a truncated or otherwise unreadable file, for one above `MAX_PX`, for an animation.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            source = Image.open(path)
        with source:
            if source.width * source.height > MAX_PX:
                raise rejected(
                    "probe", "too_large", f"{source.width} x {source.height} px; at most {MAX_PX} px"
                )
            n_frames = getattr(source, "n_frames", 1)
            if (
                n_frames > 1 and source.format != "MPO"
            ):  # phones store a preview or a depth map behind a photo
                raise dropped("probe", "animation", f"{n_frames} frames or pages; a photo has one")
            source.load()
            raw = {
                "format": str(source.format),
                "mode": source.mode,
                "size": f"{source.width}x{source.height}",
            }
            upright = ImageOps.exif_transpose(source)
            picture, colour = _srgb(upright, source.info.get("icc_profile"))
    except UnidentifiedImageError as error:
        raise rejected("probe", "unreadable", "no decoder recognises it as a picture") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise rejected("probe", "too_large", error) from error
    except (OSError, SyntaxError, ValueError, EOFError, MemoryError) as error:  # what Pillow's decoders raise
        raise rejected("decode", "undecodable", error) from error
    small = _shrink(picture, policy.short_side_px)
    file = scratch / "photo.jpg"
    small.save(file, "JPEG", quality=policy.jpeg_quality, subsampling="4:2:0", optimize=False)
    metadata: dict[str, bool | int | float | str | None]
    metadata = {"width_px": small.width, "height_px": small.height, "raw_mode": raw["mode"], "colour": colour}
    return [Unit(fields={"jpg": file, "json": {"raw": raw, "colour": colour}}, metadata=metadata)]


def _srgb(picture: "Image", profile: bytes | None) -> tuple["Image", str]:
    """RGB in sRGB, and how it came about: 'icc', 'assumed' or 'icc_unusable'."""
    from PIL import Image, ImageCms

    if picture.mode.startswith(("I;16", "I")):
        # Pillow's convert("L") clips 16-bit values at 255 instead of scaling them.
        picture = picture.convert("I").point(lambda value: value / 257).convert("L")
    if "A" in picture.getbands() or "transparency" in picture.info:
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
