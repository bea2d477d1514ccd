"""Decode images: the words jpg, jpeg, png, webp, and img for any of these. The bytes determine the format.

- Pixels come upright: EXIF and XMP orientation are applied.
- C is 3 (RGB; gray is repeated) or, with transparency, 4 (RGB and alpha, not premultiplied).
- PNG of 16 bits: gray keeps its numbers, colour is decoded on request (`deep_png`).
- CMYK JPEGs become RGB without their profile; no other colour profile is applied: stored images are sRGB.
- An animation gives its first frame.
- Truncated or damaged data is rejected, even if libjpeg only warns.
"""

from __future__ import annotations

import contextlib
import io
import struct
import zlib
from collections.abc import Callable

import numpy as np
import simplejpeg
from PIL import Image, JpegImagePlugin, PngImagePlugin, WebPImagePlugin
from PIL.Image import Resampling

from ...errors import DecodeFailed
from ...limits import MAX_IMAGE_PX, limit_message
from ...native import resample
from ...native.python import MAX_SIDE
from ..fields import Buffer, Place, is_machine_fault, nowhere
from .crop import (
    FLIPPED,
    UPRIGHT,
    Bits,
    Box,
    CropGeometry,
    Framing,
    PixelTurn,
    Size,
    apply_turn,
    metadata_turn,
    nearest,
    stored_coordinates,
)
from .deep_png import SIGNATURE, bit_depth, check_deep, is_deep_png, sixteen_bits
from .jpeg_header import JpegHeader, check_scans, read_header

# Least size, relative to the result, of a JPEG scaled while decoding: with 2 the error is 0.2 to 0.3 levels on
# average and 5 for the worst pixel in a thousand; with 1 it is 1 and 16.
_SPARE = 2

_UINT8 = np.dtype(np.uint8)

# Errors that Pillow's readers raise for damaged files, besides their own (which are OSErrors).
_DAMAGED = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    LookupError,
    TypeError,
    ArithmeticError,
    Image.DecompressionBombError,  # for a WebP canvas
    struct.error,
    zlib.error,
)


def decode(data: Buffer, rng: np.random.Generator | None = None, place: Place = nowhere) -> np.ndarray:
    """Return an image as uint8 [H, W, C], upright, C-contiguous and writable; C = 3 (RGB) or 4 (RGB and alpha).

    Gray PNG of 16 bits is data, such as depth: uint16 [H, W, 1], as stored. A JPEG that is stored upright uses the
    memory from `place`. Raises: DecodeFailed if the bytes are not JPEG, PNG or WebP, or are damaged or truncated, or
    there are more than MAX_IMAGE_PX pixels; for a PNG of 16 bits in colour or with alpha.
    """
    if bytes(data[:2]) == b"\xff\xd8":  # first: most images are JPEG, and each call counts
        return _jpeg(data, place)
    if is_deep_png(data):
        return decode_deep(data, colour=False)
    return decode_8(data, rng, place)


def decode_deep(data: Buffer, *, colour: bool) -> np.ndarray:
    """Return a PNG of 16 bits as uint16 [H, W, C], upright; C = 1 (gray) or 3 (RGB, if `colour`).

    Raises: as `decode`; DecodeFailed for an image of 8 bits.
    """
    if not is_deep_png(data):
        raise DecodeFailed(
            f"image: begins with {bytes(data[:12])!r} ({len(data)} bytes), which is not a PNG of 16 bits; bits=16 "
            "reads only these. Leave bits out",
            what="bits",
            given=f"{bytes(data[:12])!r}",
            accepted="a PNG of 16 bits",
        )
    check_deep(data, colour=colour)
    return _pillow(data, PngImagePlugin.PngImageFile, "png", is_deep=True)


def decode_8(data: Buffer, rng: np.random.Generator | None = None, place: Place = nowhere) -> np.ndarray:
    """Return an image as `decode`, 16-bit samples by their high byte."""
    start = bytes(data[:12])
    if start[:2] == b"\xff\xd8":
        return _jpeg(data, place)
    if start[:8] == SIGNATURE:
        return _pillow(data, PngImagePlugin.PngImageFile, "png")
    if start[:4] == b"RIFF" and start[8:] == b"WEBP":
        return _pillow(data, WebPImagePlugin.WebPImageFile, "webp")
    raise DecodeFailed(f"image: begins with {start!r} ({len(data)} bytes), which is not JPEG, PNG or WebP")


def decode_framed(data: Buffer, framing: Framing, alpha: str) -> np.ndarray:
    """Return an image cut and scaled by `framing`, as uint8 [H, W, 3], or [H, W, 4] with alpha="keep".

    Upright, C-contiguous, writable. alpha="white" or "black" is the background of transparent pixels. PNG of 16 bits
    becomes uint16 by `framing.bits`, scaled by nearest neighbour.
    """
    if _keeps_sixteen(data, framing.bits):
        deep = decode_deep(data, colour=framing.bits == 16)
        layout = framing.layout(deep.shape[:2], UPRIGHT)
        return nearest(deep, layout.source, layout.scaled, layout.kept)
    if bytes(data[:2]) == b"\xff\xd8":
        header = _check_header(data)
        if header.components in (1, 3):  # gray or colour; Pillow decodes CMYK
            layout = framing.layout((header.height_px, header.width_px), header.turn)
            divisor = _divisor(layout.source, layout.scaled)
            shrunk = _plain_jpeg(data, header, divisor)
            part = apply_turn(_part(shrunk, layout, divisor), header.turn)
            return _with_alpha(part, alpha)
    pixels = decode_8(data)
    layout = framing.layout(pixels.shape[:2], UPRIGHT)
    return _with_alpha(_part(pixels, layout, 1), alpha)


def _keeps_sixteen(data: Buffer, bits: Bits | None) -> bool:
    return bits == 16 or (bits is None and is_deep_png(data))


def decode_box(
    data: Buffer,
    choose: Callable[[Size], tuple[Box, bool]],
    size: Size,
    alpha: str,
    place: Place = nowhere,
    bits: Bits | None = None,
) -> np.ndarray:
    """Return a box of an image, resampled to `size`, in memory from `place` if offered.

    choose: (height, width) of the upright image -> (box, whether to flip). PNG of 16 bits becomes uint16 by `bits`,
    scaled by nearest neighbour.
    """
    is_jpeg = bytes(data[:2]) == b"\xff\xd8"
    if bits == 16 or (not is_jpeg and _keeps_sixteen(data, bits)):
        deep = decode_deep(data, colour=bits == 16)
        deep_box, is_flipped = choose((deep.shape[0], deep.shape[1]))
        part = nearest(deep, deep_box, size, (0, 0, *size))
        if is_flipped:
            return np.ascontiguousarray(part[:, ::-1])
        return part
    if is_jpeg:
        header = _check_header(data)
        if header.components in (1, 3):  # gray or colour; Pillow decodes CMYK
            upright = (header.height_px, header.width_px)
            scaled = size
            turn = header.turn
            if turn == UPRIGHT:  # most images, for which each call counts
                box, flip = choose(upright)
                if flip:
                    turned_by = FLIPPED
                else:
                    turned_by = UPRIGHT
            else:
                if turn.transpose:
                    upright = upright[::-1]
                    scaled = size[::-1]
                box, flip = choose(upright)
                box = stored_coordinates(box, upright, turn)
                turned_by = PixelTurn(turn.transpose, turn.flip_y, turn.flip_x != flip)
            divisor = _divisor(box, scaled)
            pixels = _plain_jpeg(data, header, divisor)
            if alpha == "keep":
                pixels = _with_alpha(pixels, alpha)
            return _filter(pixels, divisor, box, size, turned_by, place)
    pixels = decode_8(data)
    side = max(pixels.shape[:2])
    if side > MAX_SIDE:
        message = limit_message("image", side, "px in a row", MAX_SIDE, "Store it smaller")
        raise DecodeFailed(message, what="px in a row", given=side, accepted=MAX_SIDE)
    (top, left, height, width), flip = choose((pixels.shape[0], pixels.shape[1]))
    part = np.ascontiguousarray(pixels[top : top + height, left : left + width])
    turn = PixelTurn(False, False, flip)
    if alpha == "keep" and part.shape[2] == 4:
        # Premultiplied: otherwise colours of transparent pixels bleed into others.
        clear = np.array(Image.fromarray(part).convert("RGBa"))
        clear = _filter(clear, 1, (0, 0, height, width), size, turn, nowhere)
        return np.array(Image.frombuffer("RGBa", size[::-1], clear).convert("RGBA"))
    return _filter(_with_alpha(part, alpha), 1, (0, 0, height, width), size, turn, place)


def _filter(
    pixels: np.ndarray, divisor: int, box: Box, size: Size, turn: PixelTurn, place: Place
) -> np.ndarray:
    out = place((*size, pixels.shape[2]), _UINT8)
    if out is None:
        out = np.empty((*size, pixels.shape[2]), np.uint8)
    if not turn.transpose and not turn.flip_y:
        resample(pixels, pixels.shape, divisor, box, out, size, turn.flip_x)
        return out
    if turn.transpose:
        scaled = size[::-1]
    else:
        scaled = size
    aside = np.empty((*scaled, pixels.shape[2]), np.uint8)
    resample(pixels, pixels.shape, divisor, box, aside, scaled, False)
    out[:] = apply_turn(aside, turn)
    return out


def _jpeg(data: Buffer, place: Place) -> np.ndarray:
    header = _check_header(data)
    if header.components not in (1, 3):  # such as CMYK
        return _pillow(data, JpegImagePlugin.JpegImageFile, "jpg")
    out = None
    if header.turn == UPRIGHT:
        out = place((header.height_px, header.width_px, 3), _UINT8)
    pixels = _plain_jpeg(data, header, 1, out)
    if out is None:
        return apply_turn(pixels, header.turn)
    return out


def _check_header(data: Buffer) -> JpegHeader:
    header = read_header(data)
    n_px = header.width_px * header.height_px
    if n_px > MAX_IMAGE_PX:
        _check_size(header.width_px, header.height_px, "jpg")
    if header.is_multiscan:
        check_scans(data, n_px)
    return header


def _plain_jpeg(data: Buffer, header: JpegHeader, divisor: int, out: np.ndarray | None = None) -> np.ndarray:
    """Return uint8 [ceil(H / divisor), ceil(W / divisor), 3] in stored orientation, scaled in the inverse DCT."""
    # out: memory for the result.
    least = {}
    if divisor > 1:
        least = {"min_height": -(-header.height_px // divisor), "min_width": -(-header.width_px // divisor)}
    try:
        pixels: np.ndarray = simplejpeg.decode_jpeg(data, "RGB", buffer=out, **least)
    except ValueError as error:
        raise DecodeFailed(f"jpg: {error} ({len(data)} bytes)", what="jpg", given=str(error)) from error
    return pixels


def _divisor(box: Box, scaled: Size) -> int:
    """Return 1, 2, 4 or 8: the largest shrink factor that leaves a box with at least twice the requested size."""
    _, _, height, width = box
    divisor = 1
    while (
        divisor < 8
        and height >= 2 * divisor * _SPARE * scaled[0]
        and width >= 2 * divisor * _SPARE * scaled[1]
    ):
        divisor *= 2
    return divisor


def _part(pixels: np.ndarray, layout: CropGeometry, divisor: int) -> np.ndarray:
    """Return the layout's part of stored pixels (already shrunk by `divisor`), scaled."""
    (top, left, height, width), scaled, kept = layout
    if scaled == (height, width) and divisor == 1:
        top = top + kept[0]
        left = left + kept[1]
        return np.ascontiguousarray(pixels[top : top + kept[2], left : left + kept[3]])
    # source px per result px
    y = height / scaled[0] / divisor
    x = width / scaled[1] / divisor
    box = (
        left / divisor + kept[1] * x,
        top / divisor + kept[0] * y,
        min(pixels.shape[1], left / divisor + (kept[1] + kept[3]) * x),
        min(pixels.shape[0], top / divisor + (kept[0] + kept[2]) * y),
    )
    return np.array(Image.fromarray(pixels).resize((kept[3], kept[2]), Resampling.BICUBIC, box=box))


def _with_alpha(pixels: np.ndarray, alpha: str) -> np.ndarray:
    if alpha == "keep":
        if pixels.shape[2] == 4:
            return pixels
        return np.concatenate([pixels, np.full((*pixels.shape[:2], 1), 255, np.uint8)], axis=2)
    if pixels.shape[2] == 3:
        return pixels
    picture = Image.fromarray(pixels)
    flat = Image.new("RGB", picture.size, alpha)
    flat.paste(picture, mask=picture.getchannel("A"))
    return np.array(flat)


def _pillow(data: Buffer, reader: type[Image.Image], word: str, is_deep: bool = False) -> np.ndarray:
    """Decode with one Pillow reader: `Image.open` would try others and warn about large images."""
    try:
        with reader(io.BytesIO(data)) as image:  # type: ignore[call-arg]
            _check_size(*image.size, word)
            if is_deep:
                return apply_turn(sixteen_bits(image, data), metadata_turn(*_metadata(image)))  # type: ignore[arg-type]
            image.load()
            if word == "png" and "transparency" in image.info:
                image.info["transparency"] = _key(image, bit_depth(data))
            return apply_turn(_pixels(image), metadata_turn(*_metadata(image)))
    except DecodeFailed:
        raise
    except _DAMAGED as error:
        if is_machine_fault(error):
            raise
        raise DecodeFailed(
            f"{word}: {type(error).__name__}: {error} ({len(data)} bytes)",
            what=word,
            given=type(error).__name__,
        ) from error


def _key(image: Image.Image, depth: int) -> object:
    key = image.info["transparency"]
    if image.mode == "RGB" and depth == 16:
        raise DecodeFailed(
            "png: 16-bit colours of which one is transparent; store it with an alpha channel",
            what="png",
            given="16-bit colours of which one is transparent",
        )
    if image.mode == "L" and isinstance(key, int):
        return key * (255 // (2**depth - 1))
    return key


def _pixels(image: Image.Image) -> np.ndarray:
    if image.mode.startswith("I"):  # 16-bit gray: I;16, or I with values up to 65535
        wide = np.asarray(image)
        gray = (wide >> 8).astype(np.uint8)
        clear = image.info.get("transparency")
        if clear is None:
            return np.repeat(gray[:, :, None], 3, axis=2)
        return np.stack([gray, gray, gray, np.where(wide == clear, 0, 255).astype(np.uint8)], axis=2)
    has_alpha = image.mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in image.info
    return np.array(image.convert("RGBA" if has_alpha else "RGB"))


def _metadata(image: Image.Image) -> tuple[bytes | None, bytes | None]:
    exif = image.info.get("exif")
    profile = image.info.get("Raw profile type exif")  # older ImageMagick wrote EXIF into PNG as hex text
    if exif is None and profile is not None:
        with contextlib.suppress(ValueError):
            exif = bytes.fromhex("".join(profile.split("\n")[3:]))
    xmp = image.info.get("xmp")
    return exif, xmp.encode() if isinstance(xmp, str) else xmp


def _check_size(width_px: int, height_px: int, word: str) -> None:
    if width_px * height_px > MAX_IMAGE_PX:
        raise DecodeFailed(
            limit_message(
                f"{word} of {width_px} x {height_px} px",
                width_px * height_px,
                "px",
                MAX_IMAGE_PX,
                "Store it smaller",
            ),
            what="px",
            given=[width_px, height_px],
            accepted=MAX_IMAGE_PX,
        )
