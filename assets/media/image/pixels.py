"""Convert photos' pixel values to 8 bits, and apply transparency rules."""

from typing import TYPE_CHECKING, Literal

import numpy as np

from ..policy import alpha_ground
from ..unit import dropped

if TYPE_CHECKING:
    from PIL.Image import Image

_PHOTOMETRIC, _BITS_PER_SAMPLE = 262, 258  # TIFF tags
_WHITE_IS_ZERO = 0

_PREMULTIPLIED = {"RGBa": "RGBA", "La": "LA"}


def eight_bits(image: "Image", area: tuple[int, int, int, int]) -> "Image":
    """Return an area (left, top, right, bottom) in 8 bits, as L, LA, RGB, RGBA, CMYK or LAB.

    A transparent colour becomes alpha. Raises: Unusable for float or signed values.
    """
    band = image.crop(area)
    mode = image.mode
    if mode.startswith("I;16"):
        return _from_sixteen(image, band)
    if mode in ("I", "F"):
        raise dropped(
            "decode",
            "no_white",
            f"pixels of type {mode}: no file says which number is white; store 8 or 16 bits",
            given=mode,
        )
    if mode in _PREMULTIPLIED:
        return band.convert(_PREMULTIPLIED[mode])
    clear = image.info.get("transparency")
    if mode == "1":
        return _with_key(band.convert("L"), clear)
    if mode in ("P", "PA"):
        has_clear_colour = mode == "PA" or clear is not None
        return band.convert("RGBA" if has_clear_colour else "RGB")
    if mode in ("L", "RGB") and clear is not None:
        return _with_key(band, _key_of_eight(image, clear))
    if mode in ("L", "LA", "RGB", "RGBA", "CMYK", "LAB"):
        return band
    return band.convert("RGB")


def has_alpha(image: "Image") -> bool:
    """Return whether any pixel may be transparent."""
    return image.mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in image.info


def bit_depth(image: "Image") -> int:
    """Return the stored bits per component, from Pillow's mode or the header; 8 if unknown."""
    if image.mode == "1":
        return 1
    bits = getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE)
    if isinstance(bits, tuple) and bits:  # one per component
        return int(bits[0])
    if bits:
        return int(bits)
    if image.mode.startswith("I;16"):
        return 16
    if image.mode in ("I", "F"):
        return 32
    return int(image.info.get("bit_depth", 8))


def is_deep_gray(image: "Image") -> bool:
    """Return whether an image is gray, with or without alpha, of more than 8 bits."""
    is_gray = image.mode.startswith("I;16") or image.mode in ("L", "LA", "La")
    return is_gray and bit_depth(image) > 8


def _from_sixteen(image: "Image", band: "Image") -> "Image":
    """Return 9- to 16-bit gray in 8 bits; Pillow's own conversion clips at 255."""
    from PIL import Image

    wide = np.asarray(band).astype(np.uint32)
    full = 2 ** bit_depth(image) - 1
    levels = ((wide * 255 + full // 2) // full).clip(0, 255).astype(np.uint8)
    if getattr(image, "tag_v2", {}).get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        levels = 255 - levels
    gray = Image.fromarray(levels)
    clear = image.info.get("transparency")
    if isinstance(clear, int):
        gray.putalpha(Image.fromarray(np.where(wide == clear, 0, 255).astype(np.uint8)))
    return gray


def _key_of_eight(image: "Image", clear: object) -> object:
    """Return a PNG's transparent colour in 8 bits. clear: as the file has it, in its own depth. Raises: Unusable."""
    depth = bit_depth(image)
    if image.mode == "RGB" and depth == 16:
        raise dropped(
            "decode",
            "deep_colour_key",
            "a PNG of 16 bits with a transparent colour; store it with alpha",
            given=depth,
        )
    if image.mode == "L" and isinstance(clear, int):
        return clear * (255 // (2**depth - 1))
    return clear


def _with_key(band: "Image", clear: object) -> "Image":
    """Only the exact colour is transparent (PNG, 11.3.1.1)."""
    from PIL import Image

    if clear is None:
        return band
    pixels = np.asarray(band)
    key = np.atleast_1d(np.array(clear))  # [components]
    components = pixels.reshape(*pixels.shape[:2], -1)  # [H, W, components]
    is_clear = (components == key).all(axis=-1)
    alpha = np.where(is_clear, 0, 255).astype(np.uint8)
    out = band.copy()
    out.putalpha(Image.fromarray(alpha))
    return out


Alpha = Literal["none", "opaque", "flattened", "kept"]


def apply_alpha(image: "Image", rule: str) -> tuple["Image", Alpha]:
    """Apply a rule of `ALPHA_RULES`; return the image, RGBA only if transparency is kept, and the treatment.

    Treatments: 'none' (no alpha), 'opaque', 'flattened', 'kept'. Raises: Unusable if 'drop' forbids its transparency.
    """
    from PIL import Image

    if image.mode != "RGBA":
        return image, "none"
    if image.getchannel("A").getextrema() == (255, 255):
        return image.convert("RGB"), "opaque"
    if rule == "keep":
        return image, "kept"
    ground = alpha_ground(rule)
    if ground is None:
        raise dropped("cut", "transparent", "parts of it are transparent, and alpha='drop'")
    # Like web browsers, on 8-bit sRGB values, not in linear light.
    flat = Image.new("RGB", image.size, ground)
    flat.paste(image, mask=image.getchannel("A"))
    return flat, "flattened"
