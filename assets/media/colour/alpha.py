"""Transparency of a photo: flattened on a colour, kept, or refused."""

from typing import TYPE_CHECKING, Literal

from ..policy import ground_of
from ..unit import dropped

if TYPE_CHECKING:
    from PIL.Image import Image

Alpha = Literal["none", "opaque", "flattened", "kept"]


def apply_alpha(image: "Image", rule: str) -> tuple["Image", Alpha]:
    """Return an RGB image, RGBA if transparency is kept, and the treatment under a rule of `ALPHA_RULES`.

    Treatments: 'none' (no alpha channel), 'opaque' (nothing transparent), 'flattened', 'kept'.

    Raises: Unusable if the rule is 'drop' and something is transparent.
    """
    from PIL import Image

    if image.mode != "RGBA":
        return image, "none"
    if image.getchannel("A").getextrema() == (255, 255):
        return image.convert("RGB"), "opaque"
    if rule == "keep":
        return image, "kept"
    ground = ground_of(rule)
    if ground is None:
        raise dropped("cut", "transparent", "parts of it are transparent, and alpha='drop'")
    # As web browsers do: on 8-bit sRGB values, not in linear light.
    flat = Image.new("RGB", image.size, ground)
    flat.paste(image, mask=image.getchannel("A"))
    return flat, "flattened"
