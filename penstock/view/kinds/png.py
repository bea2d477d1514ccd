"""PNG and JPEG files of pixels: exact ones, and thumbnails."""

import io
from typing import Any

import numpy as np

from .kind import Media

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
"""uint8 [H, W, C], C = 1 (gray), 3 (RGB) or 4 (RGB and alpha)."""

_JPEG_QUALITY = 85
_SPARE = 4
"""A picture is thinned to this many times the wanted size before its pixels are averaged."""


def png(pixels: Pixels) -> Media:
    """Return a PNG that holds just these pixels."""
    from PIL import Image

    sink = io.BytesIO()
    picture = Image.fromarray(
        np.ascontiguousarray(pixels[:, :, 0]) if pixels.shape[2] == 1 else interleaved(pixels)
    )
    picture.save(sink, "PNG", compress_level=1)
    return Media(type="image/png", data=sink.getvalue())


def thumbnail_of(pixels: Pixels, edge: int, height: int, width: int) -> Media:
    """Return a picture of at most `edge` pixels a side, of pixels that were `thinned` from this height and width.

    A picture that is no larger is shown pixel for pixel.
    """
    wanted = fitted(height, width, edge)
    if wanted == pixels.shape[:2]:
        return png(pixels)
    from PIL import Image

    channels = pixels.shape[2]
    plane = pixels[:, :, 0] if channels == 1 else interleaved(pixels)
    # Means of whole squares come first: a level off on average, as the JPEG's own loss, for two thirds of the time.
    picture = Image.fromarray(np.ascontiguousarray(plane)).resize(
        wanted[::-1], Image.Resampling.BILINEAR, reducing_gap=1.0
    )
    small = np.asarray(picture).reshape(*wanted, channels)
    return png(small) if channels == 4 else jpeg(small)


def jpeg(pixels: Pixels) -> Media:
    """Return a JPEG of gray or coloured pixels."""
    import simplejpeg

    space, kept = ("GRAY", "Gray") if pixels.shape[2] == 1 else ("RGB", "420")
    data = simplejpeg.encode_jpeg(
        np.ascontiguousarray(pixels), quality=_JPEG_QUALITY, colorspace=space, colorsubsampling=kept
    )
    return Media(type="image/jpeg", data=data)


def interleaved(pixels: Pixels) -> Pixels:
    """Return the pixels with the channels of each side by side in memory. Planes are copied one after the other."""
    if pixels.strides[2] <= pixels.strides[1]:
        return np.ascontiguousarray(pixels)
    whole = np.empty(pixels.shape, np.uint8)
    for channel in range(pixels.shape[2]):
        whole[:, :, channel] = pixels[:, :, channel]
    return whole


def thinned(array: np.ndarray[Any, Any], edge: int) -> np.ndarray[Any, Any]:
    """Return a view of every n-th row and column of [H, W, ...]: no more than a thumbnail needs is copied."""
    rows, columns = (max(1, side // (_SPARE * edge)) for side in array.shape[:2])
    return array[::rows, ::columns]


def fitted(height: int, width: int, edge: int) -> tuple[int, int]:
    """Return (height, width) of the same shape with a longer side of at most `edge`, each at least 1."""
    scale = min(1.0, edge / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))
