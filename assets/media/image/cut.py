"""Photos: decoded whole, upright, sRGB, at the training resolution; or the source's bytes, where they show the same.

Upright by EXIF, XMP or the container; the colour space is applied and left out; transparency follows the policy; 16
bits are scaled to 8. No metadata are kept: no EXIF, no comment, so no place and no serial number. (A reference photo
keeps them where the policy says so.)
"""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..colour.alpha import Alpha, apply_alpha
from ..colour.file_parts import behind_end
from ..colour.to_srgb import to_srgb
from ..policy import CutPolicy, ImagePolicy, bucket_of, ground_of
from ..scratch import check_scratch
from ..unit import Unit, dropped, rejected
from .exif import tells_place
from .open import Photo, photo
from .orientation import upright
from .original_bytes import reference_bytes

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_JPEG_PX = 65_500
"""Most pixels of either side, in libjpeg (JPEG_MAX_DIMENSION of jmorecfg.h)."""


def cut_image(path: str, scratch: Path, policy: CutPolicy) -> list[Unit]:
    """Return one unit with `json` and the photo.

    The photo is in the field `jpg` where the policy makes all photos JPEGs, else in `img`. In `img` a reference photo
    is as it was; a photo whose alpha is kept or that is stored without loss is a PNG.

    Raises: Unusable for a truncated or otherwise unreadable file, for one that is too large, and for animations and
    transparency where the policy leaves them out.
    """
    rules = policy.image
    with photo(path) as found:
        if found.is_animated and rules.animated == "drop":
            raise dropped(
                "probe", "animation", "it has more frames or pages than one; animated='first' takes one"
            )
        data = Path(path).read_bytes()
        told = facts(found, data)
        had_gps = tells_place(found.picture, data)
        colours = to_srgb(found.picture, found.colour)
        found.picture.close()  # frees its pixels: a large picture is never there three times
    if rules.mode == "reference":
        made = _reference(data, found, colours, rules)
    else:
        small, alpha = apply_alpha(_shrink(colours, rules.short_side_px), rules.alpha)
        made = _encoded(upright(small, found.orientation.pending), alpha, rules)
    word = "jpg" if rules.mode == "canonical" and rules.alpha != "keep" else "img"
    file = scratch / f"photo.{word}"
    try:
        file.write_bytes(made.data)
    except OSError as error:
        check_scratch(error, scratch)
        raise rejected("cut", "unwritable", error) from error
    keeps_gps = had_gps and not rules.strip_gps and made.mode == "reference"
    metadata: dict[str, bool | int | float | str | None] = {
        "width_px": made.width_px,
        "height_px": made.height_px,
        "aspect_ratio": round(made.width_px / made.height_px, 6),
        "bucket": bucket_of(rules.buckets, made.width_px, made.height_px),
        "photo_mode": made.mode,
        "raw_mode": found.mode,
        "colour": found.colour.by,
        "alpha": made.alpha,
        "has_gps": keeps_gps,
        "gps_stripped": had_gps and not keeps_gps,
    }
    stored: dict[str, Any] = {"mode": made.mode, "format": made.format, "alpha": made.alpha}
    if made.because:
        stored["because"] = made.because
    if made.alpha == "flattened":
        stored["ground"] = ground_of(rules.alpha)
    return [Unit(fields={word: file, "json": {**told, "stored": stored}}, metadata=metadata)]


class _Made(NamedTuple):
    """A photo as it is stored. format: Pillow's name; mode: 'canonical', 'reference', or 'lossless' and why."""

    format: str
    data: bytes
    mode: str
    width_px: int
    height_px: int
    alpha: Alpha
    because: str = ""


def _reference(data: bytes, found: Photo, colours: "Image", rules: ImagePolicy) -> _Made:
    flat, alpha = apply_alpha(colours, rules.alpha)
    shown = upright(flat, found.orientation.pending)
    same, because = reference_bytes(data, found, shown, alpha, rules.strip_gps)
    if because:
        return _encoded(shown, alpha, rules, because)
    return _Made(found.kind, same, "reference", *shown.size, alpha)


def _encoded(shown: "Image", alpha: Alpha, rules: ImagePolicy, because: str = "") -> _Made:
    sink = io.BytesIO()
    if max(shown.size) > MAX_JPEG_PX and not because and alpha != "kept":
        raise dropped(
            "cut", "too_long", f"{shown.width} x {shown.height} px; a JPEG has at most {MAX_JPEG_PX} a side"
        )
    if because or alpha == "kept":
        shown.save(sink, "PNG")
        form = "PNG"
    else:
        shown.save(sink, "JPEG", quality=rules.jpeg_quality, subsampling="4:2:0", optimize=False)
        form = "JPEG"
    mode = "lossless" if because else "canonical"
    return _Made(form, sink.getvalue(), mode, *shown.size, alpha, because)


def facts(found: Photo, data: bytes) -> dict[str, Any]:
    """Return the facts in a sample's `photo.json` about the file that it came from. data: all of the file."""
    width_px, height_px = found.size_px
    turn = found.orientation
    return {
        "raw": {
            "format": found.kind,
            "mode": found.mode,
            "size": f"{width_px}x{height_px}",
            "orientation": {"exif": turn.exif, "xmp": turn.xmp, "by": turn.by},
            "is_animated": found.is_animated,
            "nbytes_behind": behind_end(data) if found.kind in ("JPEG", "MPO") else 0,
        },
        "colour": found.colour.by,
    }


def _shrink(picture: "Image", short_side_px: int) -> "Image":
    """Shrink to a shorter side of at most `short_side_px`, never enlarged."""
    from PIL import Image

    scale = min(1.0, short_side_px / min(picture.size))
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    return picture.resize(size, Image.Resampling.LANCZOS) if size != picture.size else picture
