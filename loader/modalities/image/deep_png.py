"""Read PNG of 16 bits per sample without loss.

Pillow reads 16-bit gray whole, and only the high bytes of 16-bit colour ("RGB;16B"). Read as little-endian
("RGB;16L"), the same data gives the low bytes, so colour is decoded twice, with all of Pillow's checks.
"""

import io
from typing import Any

import numpy as np
from PIL import PngImagePlugin

from ...errors import DecodeFailed
from ..fields import Buffer

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_DEPTH_AT = 24  # after the signature, and IHDR's length, name, width and height
_KIND_AT = 25
_HEADER_BYTES = 26
_GRAY, _RGB = 0, 2  # colour types of PNG
_WAYS = "loader.image(bits=8) or loader.random_resized_crop(bits=8) decodes it to 8 bits"


def is_deep_png(data: Buffer) -> bool:
    """Return whether the bytes begin as a PNG of 16 bits per sample."""
    header = bytes(data[:_HEADER_BYTES])
    return len(header) == _HEADER_BYTES and header.startswith(SIGNATURE) and header[_DEPTH_AT] == 16


def bit_depth(data: Buffer) -> int:
    """Return a PNG's bits per sample."""
    return data[_DEPTH_AT]


def needs_bits(data: Buffer) -> bool:
    """Return whether the bytes begin as a deep PNG in colour or with alpha, which no decoder takes without `bits`."""
    return is_deep_png(data) and data[_KIND_AT] != _GRAY


def check_deep(data: Buffer, *, colour: bool) -> None:
    """Raise DecodeFailed for a deep PNG with alpha, or for one in colour unless `colour`."""
    kind = data[_KIND_AT]
    if kind not in (_GRAY, _RGB):
        raise DecodeFailed(
            f"png: 16 bits per sample with an alpha channel; {_WAYS}, or store it without alpha",
            what="png",
            given="an alpha channel",
        )
    if kind == _RGB and not colour:
        raise DecodeFailed(
            "png: colour of 16 bits per sample; loader.image(bits=16) or loader.random_resized_crop(bits=16) keeps "
            f"them, and {_WAYS}",
            what="png",
            given="colour of 16 bits",
        )


def sixteen_bits(image: PngImagePlugin.PngImageFile, data: Buffer) -> np.ndarray:
    """Return uint16 [H, W, C] of an open deep PNG, as stored; C = 1 (gray) or 3 (RGB).

    Raises: DecodeFailed if one value is transparent.
    """
    image.load()
    if "transparency" in image.info:
        raise DecodeFailed(
            f"png: 16 bits per sample of which one value is transparent; {_WAYS}",
            what="png",
            given="a transparent value",
        )
    high: np.ndarray[Any, Any] = np.asarray(image)
    if high.ndim == 2:
        return high.astype(np.uint16)[:, :, None]
    with PngImagePlugin.PngImageFile(io.BytesIO(data)) as again:
        again.tile = [tile._replace(args="RGB;16L") for tile in again.tile]
        low = np.asarray(again)
    deep: np.ndarray[Any, Any] = high.astype(np.uint16) << 8 | low
    return deep
