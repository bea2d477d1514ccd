"""Compute 64-bit perceptual hashes with ImageHash; near-duplicates differ in few bits.

An image is shrunk to 32 x 32 px gray. A bit is set if one of the 8 x 8 lowest frequencies exceeds their median. A
recompressed copy differs in at most 8 bits, another image in 12 or more.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from loader.errors import MissingDependency

from .decoding import Array, frames, kind_field, photo, three_frames
from .featurizer import Features, Featurizer

FLAT_STD = 2.0
"""Standard deviation of the gray image, in 8-bit steps at 32 x 32 px, below which a hash is noise."""

MIN_DECIDED = 32
"""Bits that more than noise must decide. Photos have 43 to 64; flat drawings and smooth gradients 8 to 25."""

_NOISE = 1.0  # distance from the median, in 8-bit steps of gray, within which the coding decides the bit

_SIDE, _LOW = 32, 8
# ImageHash's DCT-II, scaled so that noise of 1 per pixel is 1 per frequency.
_COSINES = np.sqrt(2 / _SIDE) * np.cos(
    np.pi * np.arange(_LOW)[:, None] * (2 * np.arange(_SIDE) + 1)[None, :] / (2 * _SIDE)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PerceptualHash(Featurizer):
    """Field `phash.npy`: uint64 [1], for a clip [3]: first, middle and last frame, repeated if fewer.

    Columns:

    - phash: the same in 16 hexadecimal digits each, joined by `-`; the most significant bit is the lowest
      frequency.
    - phash_mirrored: hashes of the images mirrored left to right.
    - phash_flat: every hashed image is nearly one colour or has too few distinct frequencies, and must not be matched.
    - phash_flat_mask: images for which phash_flat holds, bit i for the i-th.
    """

    image: str | None = "jpg"
    """Field of photos; None skips them."""
    video: str | None = "mp4"
    """Field of clips; None skips them."""
    name: ClassVar[str] = "phash"
    """Name of the featurizer."""
    code: ClassVar[int] = 2
    output_fields: ClassVar[tuple[str, ...]] = ("phash.npy",)
    output_columns: ClassVar[tuple[str, ...]] = ("phash", "phash_mirrored", "phash_flat", "phash_flat_mask")

    @property
    def facts(self) -> Mapping[str, Mapping[str, Any]]:
        return {"phash.npy": {"dims": ["frame"], "unit": "64-bit hash"}}

    def __call__(self, kind: str, sample: Mapping[str, bytes]) -> Features:
        field = kind_field(self.inputs, kind)
        if kind == "image":
            images = [photo(sample, field)]
        else:
            three = list(frames(sample, field, three_frames))
            images = [three[0], three[len(three) // 2], three[-1]]
        hashed = [phash(image) for image in images]
        mirrored = [phash(image[:, ::-1])[0] for image in images]
        values = [value for value, _ in hashed]
        flat = [flat for _, flat in hashed]
        return Features(
            fields={"phash.npy": np.array(values, np.uint64)},
            columns={
                "phash": _text(values),
                "phash_mirrored": _text(mirrored),
                "phash_flat": all(flat),
                "phash_flat_mask": sum(is_flat << position for position, is_flat in enumerate(flat)),
            },
        )


def _text(values: list[int]) -> str:
    return "-".join(f"{value:016x}" for value in values)


def phash(pixels: Array) -> tuple[int, bool]:
    """Return (64-bit hash, whether it is noise) of uint8 RGB [H, W, 3]. Raises: MissingDependency."""
    from PIL import Image

    try:
        import imagehash
    except ImportError as error:
        raise MissingDependency(
            "perceptual hashes need the package 'ImageHash', which is not installed: "
            "pip install -e '.[pipeline]'"
        ) from error
    gray = Image.fromarray(np.ascontiguousarray(pixels)).convert("L")
    return int(str(imagehash.phash(gray)), 16), _is_flat(
        np.asarray(gray.resize((_SIDE, _SIDE), Image.Resampling.BOX)),
        np.asarray(gray.resize((_SIDE, _SIDE), Image.Resampling.LANCZOS)),
    )


def _is_flat(means: Array, hashed: Array) -> bool:
    low = _COSINES @ hashed.astype(np.float64) @ _COSINES.T
    decided = np.abs(low - np.median(low)) > _NOISE
    return bool(means.std() < FLAT_STD or np.count_nonzero(decided) < MIN_DECIDED)
