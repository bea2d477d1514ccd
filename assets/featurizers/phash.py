"""A 64-bit perceptual hash by the ImageHash library: near-duplicates differ in few bits.

ImageHash's phash: 32 x 32 px of gray, a cosine transform, a bit for each of its 8 x 8 lowest frequencies that lies
above their median. Measured: a recompressed copy is at most 8 bits away, another picture 12 or more.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from loader.errors import MissingDependency

from .decoding import Array, field_of, frames, photo, three_of
from .featurizer import Features, Featurizer

FLAT_STD = 2.0
"""Standard deviation of gray, in 8-bit steps at 32 x 32 px, below which the hash is one of noise."""

MIN_DECIDED = 32
"""Bits that must be more than noise for a hash to say something. Photos have 43 to 64 of them. Drawings of a few flat
areas and smooth gradients have 8 to 25, and the hashes of their copies lie up to 32 bits apart."""

_NOISE = 1.0
"""A frequency this near to the median, in 8-bit steps of gray, is above or below it by the coding alone."""

_SIDE, _LOW = 32, 8
_COSINES = np.sqrt(2 / _SIDE) * np.cos(
    np.pi * np.arange(_LOW)[:, None] * (2 * np.arange(_SIDE) + 1)[None, :] / (2 * _SIDE)
)
"""DCT-II, as ImageHash takes it but for the scale: here noise of 1 per pixel is 1 per frequency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerceptualHash(Featurizer):
    """Field `phash.npy`: uint64 [1] of a photo, uint64 [3] of a clip.

    The hashes of a clip are of its first, middle and last frame (the same frame again where it has fewer than three).

    Columns:

    - phash: the same in 16 hexadecimal digits each, joined by `-`; the most significant bit is the lowest frequency.
    - phash_mirrored: that of the pictures turned left to right, by which a mirrored copy is found.
    - phash_flat: every picture hashed was all but one colour, or had too few frequencies to tell it from others. Its
      hash says nothing and must not be matched.
    - phash_flat_mask: the pictures for which that holds, bit i for the i-th.
    """

    image: str | None = "jpg"
    """Field to read of photos; None to leave photos out."""
    video: str | None = "mp4"
    """Field to read of clips; None to leave clips out."""
    name: ClassVar[str] = "phash"
    """Name of the featurizer."""
    code: ClassVar[int] = 2
    output_fields: ClassVar[tuple[str, ...]] = ("phash.npy",)
    output_columns: ClassVar[tuple[str, ...]] = ("phash", "phash_mirrored", "phash_flat", "phash_flat_mask")

    @property
    def facts(self) -> Mapping[str, Mapping[str, Any]]:
        return {"phash.npy": {"dims": ["frame"], "unit": "64-bit hash"}}

    def __call__(self, kind: str, sample: Mapping[str, bytes]) -> Features:
        field = field_of(self.inputs, kind)
        if kind == "image":
            pictures = [photo(sample, field)]
        else:
            some = list(frames(sample, field, three_of))
            pictures = [some[0], some[len(some) // 2], some[-1]]
        hashed = [phash(picture) for picture in pictures]
        mirrored = [phash(picture[:, ::-1])[0] for picture in pictures]
        values, flat = [value for value, _ in hashed], [flat for _, flat in hashed]
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
    """Return (64 bits, whether they mean nothing) of uint8 RGB [H, W, 3]. Raises: MissingDependency."""
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
    """Return whether a hash is one of noise.

    means: uint8 [32, 32], the means of areas; hashed: the array that the hash is made of.
    """
    low = _COSINES @ hashed.astype(np.float64) @ _COSINES.T
    decided = np.abs(low - np.median(low)) > _NOISE
    return bool(means.std() < FLAT_STD or np.count_nonzero(decided) < MIN_DECIDED)
