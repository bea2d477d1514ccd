"""Cut photos: re-encode them upright in 8-bit sRGB at the policy's size, or keep the source's bytes.

Bytes are kept if the loader decodes them correctly; others (wide colour spaces, CMYK, flattened transparency, other
formats) are stored losslessly: upright, sRGB, full size. Metadata of sRGB photos is stripped without decoding: EXIF
(whose thumbnail may show cropped parts), XMP, IPTC, comments, profiles, and all after the image's end.
"""

import io
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from loader.errors import DecodeFailed
from loader.modalities.container_parts import riff_chunk

from ..container import check_scratch
from ..policy import CutPolicy, ImagePolicy, alpha_ground, image_bucket
from ..unit import Unit, dropped, rejected
from .file_parts import (
    PNG_START,
    BrokenParts,
    FilePart,
    behind_end,
    has_coordinates,
    jpeg_parts,
    png_parts,
    upright,
    webp_parts,
)
from .open import Photo, photo
from .pixels import Alpha, apply_alpha, bit_depth, is_deep_gray
from .to_srgb import to_srgb

if TYPE_CHECKING:
    from PIL.Image import Image


# ITU-T T.81 markers that decoding needs: frames, tables, scans, restarts, number of lines.
_JPEG_KEPT = frozenset(
    f"{marker:02x}" for marker in (*range(0xC0, 0xD0), 0xD8, 0xD9, 0xDA, 0xDB, 0xDC, 0xDD) if marker != 0xC8
)
_JFIF, _ADOBE = b"JFIF\0", b"Adobe"
_JFIF_BYTES = 14  # without a thumbnail
_PNG_KEPT = ("IHDR", "PLTE", "tRNS", "sRGB", "IDAT", "IEND")
_WEBP_KEPT = ("VP8X", "ALPH", "VP8 ", "VP8L")
_WEBP_ALPHA, _WEBP_EXIF = 0x10, 0x08  # flags of VP8X
_ORIENTATION = 0x0112


def strip_metadata(data: bytes, kind: str, orientation: int) -> bytes:
    """Return a single-frame file without its metadata. kind: 'JPEG' (or 'MPO'), 'PNG' or 'WEBP'.

    orientation: EXIF number to keep, 1 to 8. Raises: BrokenParts.
    """
    if kind == "PNG":
        return _png(data, orientation)
    if kind == "WEBP":
        return _webp(data, orientation)
    return _jpeg(data, orientation)


def orientation_exif(orientation: int) -> bytes:
    """Return the smallest EXIF block with an orientation (TIFF 6.0, section 2)."""
    entry = struct.pack(">HHIHH", _ORIENTATION, 3, 1, orientation, 0)
    return b"MM\0*" + struct.pack(">IH", 8, 1) + entry + bytes(4)


def _jpeg(data: bytes, orientation: int) -> bytes:
    """Return a JPEG without metadata but this orientation. Raises: BrokenParts."""
    out = [b"\xff\xd8"]
    has_exif = orientation == 1  # True once it is written, or if none is needed
    for part in jpeg_parts(data):
        if part.name == "d8":
            continue
        is_jfif = part.name == "e0" and part.body.startswith(_JFIF)
        if not has_exif and not is_jfif:  # JFIF must come first
            out.append(_segment(0xE1, b"Exif\0\0" + orientation_exif(orientation)))
            has_exif = True
        if is_jfif:
            out.append(_segment(0xE0, part.body[: _JFIF_BYTES - 2] + bytes(2)))
        elif part.name in _JPEG_KEPT or (part.name == "ee" and part.body.startswith(_ADOBE)):
            out.append(part.whole)
    return b"".join(out)


def _segment(marker: int, body: bytes) -> bytes:
    return bytes((0xFF, marker)) + struct.pack(">H", 2 + len(body)) + body


def _png(data: bytes, orientation: int) -> bytes:
    """Return a PNG without metadata but this orientation. Raises: BrokenParts."""
    out = [PNG_START]
    has_exif = orientation == 1
    for part in png_parts(data):
        if part.name == "acTL":
            raise BrokenParts("an animation")
        if part.name == "IDAT" and not has_exif:
            out.append(_chunk(b"eXIf", orientation_exif(orientation)))
            has_exif = True
        if part.name in _PNG_KEPT:
            out.append(part.whole)
    return b"".join(out)


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def _webp(data: bytes, orientation: int) -> bytes:
    """Return a WebP without metadata but this orientation. Raises: BrokenParts."""
    parts = list(webp_parts(data))
    if any(part.name in ("ANIM", "ANMF") for part in parts):
        raise BrokenParts("an animation")
    needed = [part for part in parts if part.name in _WEBP_KEPT]
    exif = b""
    if orientation != 1:
        exif = orientation_exif(orientation)
    if exif and needed[0].name != "VP8X":
        raise BrokenParts("an orientation in a WebP without VP8X")
    body = b"".join(_without_flags(part, bool(exif)) for part in needed)
    if exif:
        body += riff_chunk(b"EXIF", exif) + bytes(len(exif) % 2)
    return riff_chunk(b"RIFF", b"WEBP" + body)


def _without_flags(part: FilePart, has_exif: bool) -> bytes:
    """Return a VP8X chunk without the flags of removed chunks (RFC 9649, 2.7.1)."""
    if part.name != "VP8X":
        return part.whole
    flags = part.body[0] & _WEBP_ALPHA | (_WEBP_EXIF if has_exif else 0)
    return part.whole[:8] + bytes([flags]) + part.whole[9:]


_READ_BY_LOADER = ("JPEG", "MPO", "PNG", "WEBP")

_SAME_LEVELS = 8  # JPEG decoders differ by at most this; another image differs far more


def reference_bytes(
    data: bytes,
    opened: Photo,
    shown: "Image",
    alpha: Alpha,
    strip: bool,
) -> tuple[bytes, str]:
    """Return (bytes, ""), or (b"", why the source's bytes cannot be used).

    data: the file. shown: the upright sRGB image to which it must decode. alpha: treatment. strip: remove metadata.
    """
    kind = opened.kind
    why = _unfit(kind, opened, alpha)
    if why:
        return b"", why
    try:
        original_pixels = _read(data)
        bare = data
        pixels = original_pixels
        if strip:
            bare = strip_metadata(data, kind, opened.orientation.number)
            pixels = _read(bare)
    except (BrokenParts, DecodeFailed) as error:
        return b"", f"the loader would refuse it: {error}"
    expected = np.asarray(shown)
    if not np.array_equal(pixels, original_pixels) or not _is_same(pixels, expected):
        return b"", "the loader would see another picture"
    return bare, ""


def _unfit(kind: str, opened: Photo, alpha: Alpha) -> str:
    """Return why the source's bytes cannot be kept; "" if the loader decodes them correctly."""
    if kind not in _READ_BY_LOADER:
        return f"{kind} is none of what the loader reads"
    if opened.is_animated:
        return "it has more frames than the one that is taken"
    if opened.colour.profile is not None:
        return f"its colours are not sRGB (told by: {opened.colour.by})"
    if opened.mode == "CMYK":
        return "it is CMYK"
    if alpha in ("none", "kept"):
        return ""
    return f"it has an alpha channel ({alpha})"


def _read(data: bytes) -> "np.ndarray[Any, Any]":
    from loader.modalities import find_decoder

    pixels: Any = find_decoder("img", bits=8)(data, None)
    return np.asarray(pixels)


def _is_same(pixels: "np.ndarray[Any, Any]", expected: "np.ndarray[Any, Any]") -> bool:
    return pixels.shape == expected.shape and all(
        int(np.abs(row.astype(np.int16) - other).max()) <= _SAME_LEVELS
        for row, other in zip(pixels, expected, strict=True)
    )


MAX_JPEG_PX = 65_500
"""Largest side in px that libjpeg supports (JPEG_MAX_DIMENSION in jmorecfg.h)."""


def cut_image(path: str, scratch: Path, policy: CutPolicy) -> list[Unit]:
    """Return one unit with the field `json` and the photo.

    That is `jpg` if the policy stores only JPEGs, else `img`: the source's bytes, or a PNG.

    Raises: Unusable if the file is damaged or too large, or if the policy excludes animations, transparency, or gray of
    more than 8 bits.
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
        bits = bit_depth(opened.image)
        loses_bits = is_deep_gray(opened.image)
        colours = to_srgb(opened.image, opened.colour)
        opened.image.close()  # frees the pixels, so a large image is never in memory three times
    if rules.mode == "reference":
        stored_photo = _reference(data, opened, colours, rules)
    else:
        small, alpha = apply_alpha(_shrink(colours, rules.short_side_px), rules.alpha)
        stored_photo = _encode_photo(upright(small, opened.orientation.pending), alpha, rules)
    if loses_bits and stored_photo.mode != "reference" and rules.deep == "drop":
        reason = f"gray of {bits} bits, which may be depth; deep='reduce' scales it to 8, mode='reference' keeps a PNG"
        raise dropped("cut", "bit_depth", reason, given=bits, accepted=8)
    word = "img"
    if rules.mode == "canonical" and rules.alpha != "keep":
        word = "jpg"
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
        "bucket": image_bucket(rules.buckets, stored_photo.width_px, stored_photo.height_px),
        "photo_mode": stored_photo.mode,
        "raw_mode": opened.mode,
        "colour": opened.colour.by,
        "alpha": stored_photo.alpha,
        "has_gps": keeps_gps,
        "gps_stripped": had_gps and not keeps_gps,
    }
    columns = {**source_facts, "stored": _stored_facts(stored_photo, rules)}
    return [Unit(fields={word: file, "json": columns}, metadata=metadata)]


class _StoredPhoto(NamedTuple):
    """Photo as stored. format: Pillow's name; mode: 'canonical', 'reference' or 'lossless'; because: why."""

    format: str
    data: bytes
    mode: str
    width_px: int
    height_px: int
    alpha: Alpha
    because: str = ""


def _stored_facts(photo: _StoredPhoto, rules: ImagePolicy) -> dict[str, Any]:
    stored: dict[str, Any] = {"mode": photo.mode, "format": photo.format, "alpha": photo.alpha}
    if photo.because:
        stored["because"] = photo.because
    if photo.alpha == "flattened":
        stored["ground"] = alpha_ground(rules.alpha)
    return stored


def _reference(
    data: bytes,
    opened: Photo,
    colours: "Image",
    rules: ImagePolicy,
) -> _StoredPhoto:
    """Return the source's bytes without metadata, or a lossless photo if the loader would not decode them correctly."""
    flat, alpha = apply_alpha(colours, rules.alpha)
    upright_image = upright(flat, opened.orientation.pending)
    same, because = reference_bytes(data, opened, upright_image, alpha, rules.strip_gps)
    if because:
        return _encode_photo(upright_image, alpha, rules, because)
    return _StoredPhoto(opened.kind, same, "reference", *upright_image.size, alpha)


def _encode_photo(
    image: "Image",
    alpha: Alpha,
    rules: ImagePolicy,
    because: str = "",
) -> _StoredPhoto:
    """Return an encoded photo: PNG for a reason (`because`) or alpha that is kept, else JPEG. Raises: Unusable."""
    sink = io.BytesIO()
    if max(image.size) > MAX_JPEG_PX and not because and alpha != "kept":
        raise dropped(
            "cut",
            "too_long",
            f"{image.width} x {image.height} px; a JPEG has at most {MAX_JPEG_PX} a side",
            given=(image.width, image.height),
            accepted=MAX_JPEG_PX,
        )
    if because or alpha == "kept":
        image.save(sink, "PNG")
        form = "PNG"
    else:
        image.save(
            sink,
            "JPEG",
            quality=rules.jpeg_quality,
            subsampling="4:2:0",
            optimize=False,
        )
        form = "JPEG"
    mode = "canonical"
    if because:
        mode = "lossless"
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
    if size != image.size:
        return image.resize(size, Image.Resampling.LANCZOS)
    return image
