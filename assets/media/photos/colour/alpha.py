"""What becomes of a photo's transparency: laid on a colour, kept, or a reason to leave the photo out.

Pictures are laid on their ground as web browsers do, on the 8-bit numbers of sRGB and not on linear light.
"""

import re
from typing import TYPE_CHECKING, Literal

from ...unit import dropped

if TYPE_CHECKING:
    from PIL.Image import Image

Alpha = Literal["none", "opaque", "flattened", "kept"]

GROUNDS = {"white": (255, 255, 255), "black": (0, 0, 0)}
RULES = (*GROUNDS, "#rrggbb", "drop", "keep")
_HEX = re.compile(r"#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})", re.I)


def ground_of(rule: str) -> tuple[int, int, int] | None:
    """RGB that a rule lays transparent pixels on; None for 'drop' and 'keep'. Raises: ValueError."""
    if rule in ("drop", "keep"):
        return None
    found = _HEX.fullmatch(rule)
    if rule not in GROUNDS and not found:
        raise ValueError(f"alpha={rule!r}; accepted: {', '.join(RULES)}")
    return (int(found[1], 16), int(found[2], 16), int(found[3], 16)) if found else GROUNDS[rule]


def apply_alpha(picture: "Image", rule: str) -> tuple["Image", Alpha]:
    """An RGB or RGBA picture under a rule of `RULES`, as RGB, or as RGBA where it is kept; and what became of it:
    'none' (no alpha channel), 'opaque' (one that hides nothing), 'flattened', 'kept'.

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
