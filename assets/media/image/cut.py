"""Cut photos: re-encode them upright in 8-bit sRGB at the policy's size, or keep the source's bytes."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..container import check_scratch
from ..policy import CutPolicy, ImagePolicy, bucket_of, ground_of
from ..unit import Unit, dropped, rejected
from .file_parts import behind_end
from .metadata import has_coordinates, upright
from .open import Photo, photo
from .original_bytes import reference_bytes
from .pixels import Alpha, apply_alpha
from .to_srgb import to_srgb

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_JPEG_PX = 65_500
"""Largest side in px that libjpeg supports (JPEG_MAX_DIMENSION in jmorecfg.h)."""


def cut_image(path: str, scratch: Path, policy: CutPolicy) -> list[Unit]:
    """Return one unit with the field `json` and the photo.

    The photo is in `jpg` if the policy stores only JPEGs. Otherwise `img` has the source's bytes, or a PNG.

    Raises: Unusable if the file is truncated, unreadable or too large, or if the policy excludes animations or
    transparency.
    """
    rules = policy.image
    with photo(path) as opened:
        if opened.is_animated and rules.animated == "drop":
            raise dropped(
                "probe", "animation", "it has more frames or pages than one; animated='first' takes one"
            )
        data = Path(path).read_bytes()
        source_facts = facts(opened, data)
        had_gps = has_coordinates(opened.image, data)
        colours = to_srgb(opened.image, opened.colour)
        opened.image.close()  # frees the pixels, so a large image is never in memory three times
    if rules.mode == "reference":
        stored_photo = _reference(data, opened, colours, rules)
    else:
        small, alpha = apply_alpha(_shrink(colours, rules.short_side_px), rules.alpha)
        stored_photo = _encoded(upright(small, opened.orientation.pending), alpha, rules)
    word = "jpg" if rules.mode == "canonical" and rules.alpha != "keep" else "img"
    file = scratch / f"photo.{word}"
    try:
        file.write_bytes(stored_photo.data)
    except OSError as error:
        check_scratch(error, scratch)
        raise rejected("cut", "unwritable", error) from error
    keeps_gps = had_gps and not rules.strip_gps and stored_photo.mode == "reference"
    metadata: dict[str, bool | int | float | str | None] = {
        "width_px": stored_photo.width_px,
        "height_px": stored_photo.height_px,
        "aspect_ratio": round(stored_photo.width_px / stored_photo.height_px, 6),
        "bucket": bucket_of(rules.buckets, stored_photo.width_px, stored_photo.height_px),
        "photo_mode": stored_photo.mode,
        "raw_mode": opened.mode,
        "colour": opened.colour.by,
        "alpha": stored_photo.alpha,
        "has_gps": keeps_gps,
        "gps_stripped": had_gps and not keeps_gps,
    }
    stored: dict[str, Any] = {
        "mode": stored_photo.mode,
        "format": stored_photo.format,
        "alpha": stored_photo.alpha,
    }
    if stored_photo.because:
        stored["because"] = stored_photo.because
    if stored_photo.alpha == "flattened":
        stored["ground"] = ground_of(rules.alpha)
    return [Unit(fields={word: file, "json": {**source_facts, "stored": stored}}, metadata=metadata)]


class _StoredPhoto(NamedTuple):
    """Photo as stored. format: Pillow's name; mode: 'canonical', 'reference' or 'lossless'; because: why."""

    format: str
    data: bytes
    mode: str
    width_px: int
    height_px: int
    alpha: Alpha
    because: str = ""


def _reference(data: bytes, opened: Photo, colours: "Image", rules: ImagePolicy) -> _StoredPhoto:
    flat, alpha = apply_alpha(colours, rules.alpha)
    upright_image = upright(flat, opened.orientation.pending)
    same, because = reference_bytes(data, opened, upright_image, alpha, rules.strip_gps)
    if because:
        return _encoded(upright_image, alpha, rules, because)
    return _StoredPhoto(opened.kind, same, "reference", *upright_image.size, alpha)


def _encoded(image: "Image", alpha: Alpha, rules: ImagePolicy, because: str = "") -> _StoredPhoto:
    sink = io.BytesIO()
    if max(image.size) > MAX_JPEG_PX and not because and alpha != "kept":
        raise dropped(
            "cut", "too_long", f"{image.width} x {image.height} px; a JPEG has at most {MAX_JPEG_PX} a side"
        )
    if because or alpha == "kept":
        image.save(sink, "PNG")
        form = "PNG"
    else:
        image.save(sink, "JPEG", quality=rules.jpeg_quality, subsampling="4:2:0", optimize=False)
        form = "JPEG"
    mode = "lossless" if because else "canonical"
    return _StoredPhoto(form, sink.getvalue(), mode, *image.size, alpha, because)


def facts(opened: Photo, data: bytes) -> dict[str, Any]:
    """Return the source's facts for `photo.json`. data: the whole file."""
    width_px, height_px = opened.size_px
    turn = opened.orientation
    return {
        "raw": {
            "format": opened.kind,
            "mode": opened.mode,
            "size": f"{width_px}x{height_px}",
            "orientation": {"exif": turn.exif, "xmp": turn.xmp, "by": turn.by},
            "is_animated": opened.is_animated,
            "nbytes_behind": behind_end(data) if opened.kind in ("JPEG", "MPO") else 0,
        },
        "colour": opened.colour.by,
    }


def _shrink(image: "Image", short_side_px: int) -> "Image":
    from PIL import Image

    scale = min(1.0, short_side_px / min(image.size))
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.resize(size, Image.Resampling.LANCZOS) if size != image.size else image
