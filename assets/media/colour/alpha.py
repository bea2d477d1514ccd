"""A photo's transparency: laid on a colour, kept, or a reason to leave the photo out.

Pictures are laid on their ground as web browsers do, on the 8-bit numbers of sRGB and not on linear light.
"""

from typing import TYPE_CHECKING, Literal

from ..policy import ground_of
from ..unit import dropped

if TYPE_CHECKING:
    from PIL.Image import Image

Alpha = Literal["none", "opaque", "flattened", "kept"]


def apply_alpha(picture: "Image", rule: str) -> tuple["Image", Alpha]:
    """Return an RGB or RGBA picture under a rule of `ALPHA_RULES`, and its treatment.

    The picture is RGB, or RGBA where transparency is kept. The treatment is 'none' (no alpha channel), 'opaque' (it
    hides nothing), 'flattened' or 'kept'.

    Raises: Unusable (the rule is 'drop', and something is transparent).
    """
    from PIL import Image

    if picture.mode != "RGBA":
        return picture, "none"
    if picture.getchannel("A").getextrema() == (255, 255):
        return picture.convert("RGB"), "opaque"
    if rule == "keep":
        return picture, "kept"
    ground = ground_of(rule)
    if ground is None:
        raise dropped("cut", "transparent", "parts of it are transparent, and alpha='drop'")
    flat = Image.new("RGB", picture.size, ground)
    flat.paste(picture, mask=picture.getchannel("A"))
    return flat, "flattened"
