"""A photo's stored numbers brought to 8 bits each, never cut off at 255 and never read upside down.

Pillow's own conversion of 16-bit gray saturates: all above 255 of 65535 becomes white. Its reader of 16-bit RGB
keeps the high bytes, at most one level of 255 off.
"""

from typing import TYPE_CHECKING

import numpy as np

from ..unit import dropped

if TYPE_CHECKING:
    from PIL.Image import Image

_PHOTOMETRIC, _BITS_PER_SAMPLE = 262, 258  # TIFF tags
_WHITE_IS_ZERO = 0

_PREMULTIPLIED = {"RGBa": "RGBA", "La": "LA"}


def eight_bits(picture: "Image", area: tuple[int, int, int, int]) -> "Image":
    """Return the area (left, top, right, bottom) of a picture in 8 bits, as L, LA, RGB, RGBA, CMYK or LAB.

    A transparent colour becomes alpha. Raises: Unusable (floats and signed numbers: their white is not known).
    """
    band = picture.crop(area)
    mode = picture.mode
    if mode.startswith("I;16"):
        return _from_sixteen(picture, band)
    if mode in ("I", "F"):
        raise dropped(
            "decode",
            "no_white",
            f"pixels of type {mode}: no file says which number is white; store 8 or 16 bits",
        )
    if mode in _PREMULTIPLIED:
        return band.convert(_PREMULTIPLIED[mode])
    clear = picture.info.get("transparency")
    if mode == "1":
        return _with_key(band.convert("L"), clear)
    if mode in ("P", "PA"):
        return band.convert("RGBA" if mode == "PA" or clear is not None else "RGB")
    if mode in ("L", "RGB") and clear is not None:
        return _with_key(band, _key_of_eight(picture, clear))
    return band if mode in ("L", "LA", "RGB", "RGBA", "CMYK", "LAB") else band.convert("RGB")


def has_alpha(picture: "Image") -> bool:
    """Return whether anything of it may be transparent."""
    return picture.mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in picture.info


def bit_depth(picture: "Image") -> int:
    """Return the bits of a stored component, where Pillow's mode or the file's header tells them; else 8."""
    if picture.mode == "1":
        return 1
    bits = getattr(picture, "tag_v2", {}).get(_BITS_PER_SAMPLE)
    if bits:
        return int(bits[0] if isinstance(bits, tuple) else bits)
    if picture.mode.startswith("I;16"):
        return 16
    if picture.mode in ("I", "F"):
        return 32
    return int(picture.info.get("bit_depth", 8))


def _from_sixteen(picture: "Image", band: "Image") -> "Image":
    """Return gray of 9 to 16 bits in 8: the full scale of its depth becomes 255, rounded."""
    from PIL import Image

    wide = np.asarray(band).astype(np.uint32)
    full = 2 ** bit_depth(picture) - 1
    levels = ((wide * 255 + full // 2) // full).clip(0, 255).astype(np.uint8)
    if getattr(picture, "tag_v2", {}).get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        levels = 255 - levels
    gray = Image.fromarray(levels)
    clear = picture.info.get("transparency")
    if isinstance(clear, int):
        gray.putalpha(Image.fromarray(np.where(wide == clear, 0, 255).astype(np.uint8)))
    return gray


def _key_of_eight(picture: "Image", clear: object) -> object:
    """Return a PNG's transparent colour, told in the file's own depth, in that of the pixels as Pillow gives them.

    Raises: Unusable (a colour of 16 bits, of which the pixels have only the high 8).
    """
    depth = bit_depth(picture)
    if picture.mode == "RGB" and depth == 16:
        raise dropped(
            "decode", "deep_colour_key", "a PNG of 16 bits with a transparent colour; store it with alpha"
        )
    return clear * (255 // (2**depth - 1)) if picture.mode == "L" and isinstance(clear, int) else clear


def _with_key(band: "Image", clear: object) -> "Image":
    """Return a band with alpha: pixels of exactly the colour `clear` (PNG, 11.3.1.1) are transparent, no others."""
    from PIL import Image

    if clear is None:
        return band
    pixels = np.asarray(band)
    key = np.array(clear if isinstance(clear, tuple) else (clear,))
    same = (pixels.reshape(*pixels.shape[:2], -1) == key).all(axis=-1)
    out = band.copy()
    out.putalpha(Image.fromarray(np.where(same, 0, 255).astype(np.uint8)))
    return out
