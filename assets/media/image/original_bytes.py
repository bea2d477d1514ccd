"""Reference photos: the source's bytes, if the loader decodes them correctly.

Other photos (wide colour spaces, CMYK, flattened transparency, other formats) are stored losslessly: upright, sRGB,
full size. Metadata is stripped without decoding: EXIF (whose thumbnail may show cropped parts), XMP, IPTC, comments,
profiles, and everything after the image's end. The orientation is kept in a new EXIF block. Only sRGB photos are
stripped; others need their profile.
"""

import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from loader.errors import DecodeFailed

from .file_parts import PNG_START, BrokenParts, FilePart, jpeg_parts, png_parts, webp_parts
from .open import Photo
from .pixels import Alpha

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


def stripped(data: bytes, kind: str, orientation: int) -> bytes:
    """Return a single-frame file without its metadata. kind: 'JPEG' (or 'MPO'), 'PNG' or 'WEBP'.

    orientation: EXIF number to keep, 1 to 8. Raises: BrokenParts.
    """
    if kind == "PNG":
        return _png(data, orientation)
    return _webp(data, orientation) if kind == "WEBP" else _jpeg(data, orientation)


def exif_of(orientation: int) -> bytes:
    """Return the smallest EXIF block with an orientation (TIFF 6.0, section 2)."""
    entry = struct.pack(">HHIHH", _ORIENTATION, 3, 1, orientation, 0)
    return b"MM\0*" + struct.pack(">IH", 8, 1) + entry + bytes(4)


def _jpeg(data: bytes, orientation: int) -> bytes:
    out = [b"\xff\xd8"]
    has_exif = orientation == 1
    for part in jpeg_parts(data):
        if part.name == "d8":
            continue
        is_jfif = part.name == "e0" and part.body.startswith(_JFIF)
        if not has_exif and not is_jfif:  # JFIF must come first
            out.append(_segment(0xE1, b"Exif\0\0" + exif_of(orientation)))
            has_exif = True
        if is_jfif:
            out.append(_segment(0xE0, part.body[: _JFIF_BYTES - 2] + bytes(2)))
        elif part.name in _JPEG_KEPT or (part.name == "ee" and part.body.startswith(_ADOBE)):
            out.append(part.whole)
    return b"".join(out)


def _segment(marker: int, body: bytes) -> bytes:
    return bytes((0xFF, marker)) + struct.pack(">H", 2 + len(body)) + body


def _png(data: bytes, orientation: int) -> bytes:
    out = [PNG_START]
    has_exif = orientation == 1
    for part in png_parts(data):
        if part.name == "acTL":
            raise BrokenParts("an animation")
        if part.name == "IDAT" and not has_exif:
            out.append(_chunk(b"eXIf", exif_of(orientation)))
            has_exif = True
        if part.name in _PNG_KEPT:
            out.append(part.whole)
    return b"".join(out)


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def _webp(data: bytes, orientation: int) -> bytes:
    parts = list(webp_parts(data))
    if any(part.name in ("ANIM", "ANMF") for part in parts):
        raise BrokenParts("an animation")
    needed = [part for part in parts if part.name in _WEBP_KEPT]
    exif = exif_of(orientation) if orientation != 1 else b""
    if exif and needed[0].name != "VP8X":
        raise BrokenParts("an orientation in a WebP without VP8X")
    body = b"".join(_without_flags(part, bool(exif)) for part in needed)
    if exif:
        body += b"EXIF" + struct.pack("<I", len(exif)) + exif + bytes(len(exif) % 2)
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WEBP" + body


def _without_flags(part: FilePart, has_exif: bool) -> bytes:
    """Return a VP8X chunk without the flags of removed chunks (RFC 9649, 2.7.1)."""
    if part.name != "VP8X":
        return part.whole
    flags = part.body[0] & _WEBP_ALPHA | (_WEBP_EXIF if has_exif else 0)
    return part.whole[:8] + bytes([flags]) + part.whole[9:]


_READ_BY_LOADER = ("JPEG", "MPO", "PNG", "WEBP")

_SAME_LEVELS = 8  # JPEG decoders differ by at most this; another image differs far more


def reference_bytes(
    data: bytes, opened: Photo, shown: "Image", alpha: Alpha, strip: bool
) -> tuple[bytes, str]:
    """Return (bytes, ""), or (b"", why the source's bytes cannot be used).

    data: the source's file. shown: the upright sRGB image to which it must decode. alpha: how transparency was treated.
    strip: remove metadata.
    """
    kind = opened.kind
    why = _unfit(kind, opened, alpha)
    if why:
        return b"", why
    try:
        original_pixels = _read(data)
        bare = stripped(data, kind, opened.orientation.number) if strip else data
        pixels = _read(bare) if strip else original_pixels
    except (BrokenParts, DecodeFailed) as error:
        return b"", f"the loader would refuse it: {error}"
    expected = np.asarray(shown)
    if not np.array_equal(pixels, original_pixels) or not _is_same(pixels, expected):
        return b"", "the loader would see another picture"
    return bare, ""


def _unfit(kind: str, opened: Photo, alpha: Alpha) -> str:
    if kind not in _READ_BY_LOADER:
        return f"{kind} is none of what the loader reads"
    if opened.is_animated:
        return "it has more frames than the one that is taken"
    if opened.colour.profile is not None:
        return f"its colours are not sRGB (told by: {opened.colour.by})"
    if opened.mode == "CMYK":
        return "it is CMYK"
    return "" if alpha in ("none", "kept") else f"it has an alpha channel ({alpha})"


def _read(data: bytes) -> "np.ndarray[Any, Any]":
    from loader.modalities import decoder_for

    pixels: Any = decoder_for("img")(data, None)
    return np.asarray(pixels)


def _is_same(pixels: "np.ndarray[Any, Any]", expected: "np.ndarray[Any, Any]") -> bool:
    return pixels.shape == expected.shape and all(
        int(np.abs(row.astype(np.int16) - other).max()) <= _SAME_LEVELS
        for row, other in zip(pixels, expected, strict=True)
    )
