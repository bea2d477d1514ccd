"""Audit a raw object: decode it to its last byte and measure its media row; audit its units."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .audio.audit import audit_audio
from .clips.early_clips import EarlyClips
from .cut_audit.audio import audit_sounds
from .cut_audit.clips import audit_clips
from .cut_audit.image import audit_photo
from .cutters import MEDIA_KINDS, file_kind
from .image.file_parts import has_coordinates
from .image.open import Photo, photo
from .image.pixels import bit_depth, has_alpha
from .image.to_srgb import to_srgb
from .media_table import Row, media_row
from .policy import CutPolicy
from .text import audit_text
from .unit import Kind, Unit
from .video.audit import audit_video

if TYPE_CHECKING:
    from PIL.Image import Image


AUDITS: Mapping[Kind, Callable[[str, CutPolicy, EarlyClips | None], Row]] = {
    "image": lambda path, *_: audit_image(path),
    "video": lambda path, policy, early: audit_video(path, policy.video, early),
    "audio": lambda path, *_: audit_audio(path),
    "text": lambda path, *_: audit_text(path),
}
_POLICY = CutPolicy()


def audit(
    path: str,
    mime: str,
    kinds: Collection[Kind] = MEDIA_KINDS,
    policy: CutPolicy = _POLICY,
    early: EarlyClips | None = None,
) -> dict[str, Any]:
    """Return every column of `MEDIA` but key and sha256.

    mime: type by content. early: cuts a video's clips while it is decoded.

    Raises: Unusable, rejected for a damaged file, dropped for a healthy one that the policy excludes.
    """
    kind = file_kind(path, mime, kinds)
    facts = AUDITS[kind](path, policy, early)
    return media_row({"mime": mime, "kind": kind, "nbytes": os.path.getsize(path), **facts})


def audit_image(path: str) -> Row:
    """Return a photo's columns of the media table. Raises: Unusable."""
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
            "has_gps": has_coordinates(image, Path(path).read_bytes()),
            **_light(opened),
        }


FLAT_LEVELS = 8
"""Largest range of each band, in levels of 255 at 64 x 64 px, in a photo that shows one level."""


def _light(opened: Photo) -> Row:
    """Return mean luma and flatness, both measured on a thumbnail of 64 x 64 px."""
    thumbnail = opened.image
    if thumbnail.mode in ("L", "LA", "RGB", "RGBA", "CMYK"):
        thumbnail = _box(thumbnail)
    colours = to_srgb(thumbnail, opened.colour).convert("RGB")
    small = _box(colours)
    return {
        "luma_mean": float(np.asarray(small.convert("L")).mean()),
        "flat_ratio": float(_is_flat(opened.image, small)),
    }


def _is_flat(image: "Image", small: "Image") -> bool:
    """Return whether a photo shows one level, from its RGB thumbnail `small`.

    A photo of a covered lens has noise, which the thumbnail averages out. The values of a mask or a depth map may lie
    within a few levels. Images that may be one are flat only if all their pixels are equal.
    """
    is_mask = len(image.getbands()) == 1 and image.format != "JPEG"
    if is_mask or bit_depth(image) > 8 or has_alpha(image):
        return all(low == high for low, high in _extrema(image))
    return all(high - low <= FLAT_LEVELS for low, high in _extrema(small))


def _extrema(image: "Image") -> list[tuple[float, float]]:
    """Return (smallest, largest value) of each band."""
    if image.mode.startswith("I;16"):  # Pillow measures I;16, and refuses I;16B, of a big-endian TIFF
        levels = np.asarray(image)
        return [(int(levels.min()), int(levels.max()))]
    extrema: Any = image.getextrema()
    if isinstance(extrema[0], tuple):
        return list(extrema)
    return [extrema]


def _box(image: "Image") -> "Image":
    from PIL import Image

    return image.resize((64, 64), Image.Resampling.BOX)


def audit_units(
    path: str,
    kind: Kind,
    units: Sequence[Unit],
    row: Mapping[str, Any],
) -> None:
    """Audit all units of the raw object at `path`. row: its media row.

    Raises: Unusable, stage `cut_audit`, with a code of `findings`.
    """
    if kind == "image":
        for unit in units:
            audit_photo(path, unit)
    elif kind == "video":
        audit_clips(path, units, row.get("n_frames_decoded"))
        audit_sounds(path, [unit for unit in units if "sound.flac" in unit.fields], "sound.flac")
    elif kind == "audio":
        audit_sounds(path, units, "flac")
