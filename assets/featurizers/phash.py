"""A 64-bit perceptual hash by the ImageHash library: near-duplicates differ in few bits.

ImageHash's phash: 32 x 32 px of gray, a cosine transform, which of its 8 x 8 lowest frequencies lie above
their median. Measured: a recompressed copy is at most 8 bits away, another picture 12 or more.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import ClassVar

import numpy as np

from loader.errors import MissingDependency

from .decoding import Array, field_of, frames, inputs_of, photo, three_of
from .featurizer import Features, version_of

CODE = 1

FLAT_STD = 2.0
"""Standard deviation of gray, in 8-bit steps at 32 x 32 px, below which the hash is one of noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerceptualHash:
    """image, video: the field to read of samples of that kind, None to leave the kind out.

    Field `phash.npy`: uint64 [1] of a photo, uint64 [3] of a clip: its first, middle and last frame (the same
    frame again where it has fewer than three).

    Columns: phash, the same in 16 hexadecimal digits each, joined by `-` (the most significant bit is the
    lowest frequency); phash_flat: every picture hashed was all but one colour, so that its hash says nothing
    and must not be matched.
    """

    image: str | None = "jpg"
    video: str | None = "mp4"
    name: ClassVar[str] = "phash"

    @property
    def version(self) -> str:
        return version_of(CODE, asdict(self))

    @property
    def inputs(self) -> Mapping[str, tuple[str, ...]]:
        return inputs_of(image=self.image, video=self.video)

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset(self.inputs)

    @property
    def outputs(self) -> Mapping[str, tuple[str, ...]]:
        return dict.fromkeys(self.inputs, ("phash.npy",))

    @property
    def columns(self) -> Mapping[str, tuple[str, ...]]:
        return dict.fromkeys(self.inputs, ("phash", "phash_flat"))

    def __call__(self, kind: str, sample: Mapping[str, bytes]) -> Features:
        field = field_of(self.inputs, kind)
        if kind == "image":
            pictures = [photo(sample, field)]
        else:
            some = list(frames(sample, field, three_of))
            pictures = [some[0], some[len(some) // 2], some[-1]]
        hashed = [phash(picture) for picture in pictures]
        values = [value for value, _ in hashed]
        return Features(
            fields={"phash.npy": np.array(values, np.uint64)},
            columns={
                "phash": "-".join(f"{value:016x}" for value in values),
                "phash_flat": all(flat for _, flat in hashed),
            },
        )


def phash(pixels: Array) -> tuple[int, bool]:
    """(64 bits, whether they mean nothing) of uint8 RGB [H, W, 3]. Raises: MissingDependency."""
    from PIL import Image

    try:
        import imagehash
    except ImportError as error:
        raise MissingDependency(
            "perceptual hashes need the package 'ImageHash', which is not installed: "
            "pip install -e '.[pipeline]'"
        ) from error
    gray = Image.fromarray(pixels).convert("L")
    small = np.asarray(gray.resize((32, 32), Image.Resampling.BOX))
    return int(str(imagehash.phash(gray)), 16), float(small.std()) < FLAT_STD
