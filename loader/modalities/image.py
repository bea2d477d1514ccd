"""Images: the words jpg, jpeg, png, webp, and img for a field that holds any of these.

The bytes decide, not the word: a PNG in a `.jpg` field decodes as the PNG it is (wrong suffixes are common,
and are counted when data come in).

- Pixels come upright: EXIF and XMP orientation are applied.
- C is 3 (RGB; gray is repeated) or, for an image with transparency, 4 (RGB and alpha, not premultiplied):
  flattening it on some colour would be a silent choice. Cast in a transform what must have one shape.
- 16-bit samples keep their high byte (Pillow's own conversion of gray would saturate).
- CMYK JPEGs are turned into RGB without their profile; no other colour profile is applied either: stored
  images are sRGB.
- Of an animation, the first frame.
- Truncated or damaged data is refused: even what libjpeg only warns of.
"""

import contextlib
import io
import struct
import zlib

import numpy as np
import simplejpeg
from PIL import JpegImagePlugin, PngImagePlugin, WebPImagePlugin
from PIL.Image import Image

from ..errors import DecodeFailed
from .fields import Buffer
from .jpeg_header import read_header
from .orientation import turn_of, turned

# 89 million pixels, 256 MiB as RGB: the size from which Pillow warns of a decompression bomb.
MAX_IMAGE_PX = 2**28 // 3

# What Pillow's readers raise on damaged files, beside their own errors (which are OSErrors).
_DAMAGED = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    LookupError,
    TypeError,
    ArithmeticError,
    MemoryError,
    struct.error,
    zlib.error,
)


def decode(data: Buffer, rng: np.random.Generator | None = None) -> np.ndarray:
    """An image as uint8 [H, W, C], upright, C-contiguous and writable; C = 3 (RGB) or 4 (RGB and alpha).

    Raises: DecodeFailed (not JPEG, PNG or WebP; damaged; truncated; more than MAX_IMAGE_PX pixels).
    """
    start = bytes(data[:12])
    if start[:2] == b"\xff\xd8":
        return _jpeg(data)
    if start[:8] == b"\x89PNG\r\n\x1a\n":
        return _pillow(data, PngImagePlugin.PngImageFile, "png")
    if start[:4] == b"RIFF" and start[8:] == b"WEBP":
        return _pillow(data, WebPImagePlugin.WebPImageFile, "webp")
    raise DecodeFailed(f"image: begins with {start!r} ({len(data)} bytes), which is not JPEG, PNG or WebP")


def _jpeg(data: Buffer) -> np.ndarray:
    header = read_header(data)
    _check_size(header.width_px, header.height_px, "jpg")
    if header.components not in (1, 3):
        return _pillow(data, JpegImagePlugin.JpegImageFile, "jpg")
    try:
        pixels: np.ndarray = simplejpeg.decode_jpeg(data, "RGB")
    except (ValueError, MemoryError) as error:
        raise DecodeFailed(f"jpg: {error} ({len(data)} bytes)") from error
    return turned(pixels, header.turn)


def _pillow(data: Buffer, reader: type[Image], word: str) -> np.ndarray:
    """Decode with one of Pillow's readers. `Image.open` would first try others, and warn of large images."""
    try:
        with reader(io.BytesIO(data)) as image:  # type: ignore[call-arg]
            _check_size(*image.size, word)
            image.load()
            return turned(_pixels(image), turn_of(*_metadata(image)))
    except DecodeFailed:
        raise
    except _DAMAGED as error:
        raise DecodeFailed(f"{word}: {type(error).__name__}: {error} ({len(data)} bytes)") from error


def _pixels(image: Image) -> np.ndarray:
    """uint8 [H, W, 3 or 4] of a loaded image in any mode."""
    if image.mode.startswith("I"):  # 16-bit gray: I;16, or I with values up to 65535
        wide = np.asarray(image)
        gray = (wide >> 8).astype(np.uint8)
        clear = image.info.get("transparency")
        if clear is None:
            return np.repeat(gray[:, :, None], 3, axis=2)
        return np.stack([gray, gray, gray, np.where(wide == clear, 0, 255).astype(np.uint8)], axis=2)
    has_alpha = image.mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in image.info
    return np.array(image.convert("RGBA" if has_alpha else "RGB"))


def _metadata(image: Image) -> tuple[bytes | None, bytes | None]:
    """The EXIF block and the XMP packet of a loaded image, or None for each that is not there."""
    exif = image.info.get("exif")
    profile = image.info.get("Raw profile type exif")  # how older ImageMagick wrote EXIF into PNG: hex text
    if exif is None and profile is not None:
        with contextlib.suppress(ValueError):
            exif = bytes.fromhex("".join(profile.split("\n")[3:]))
    xmp = image.info.get("xmp")
    return exif, xmp.encode() if isinstance(xmp, str) else xmp


def _check_size(width_px: int, height_px: int, word: str) -> None:
    """Raises: DecodeFailed, before the pixels are allocated."""
    if width_px * height_px > MAX_IMAGE_PX:
        raise DecodeFailed(
            f"{word}: {width_px} x {height_px} px; at most {MAX_IMAGE_PX} px are decoded. Store it smaller"
        )
