"""Compute minhash signatures of documents with rensa: near-duplicates have most of their values in common.

The share of equal values estimates the Jaccard similarity of two documents' sets of shingles. Rensa takes a 45th of
datasketch's time. Normalizing and cutting the text takes nine tenths of a signature's time.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from assets import invalid_option
from loader.errors import InvalidSpec, MissingDependency
from penstock.words import word_blocks

from ...media.unit import rejected
from ..decoding import STAGE, bytes_of, decoded, kind_field
from ..featurizer import Features, Featurizer, version_of
from .shingles import shingle_blocks

N_BANDS = 14
BAND_VALUES = 8
N_VALUES = N_BANDS * BAND_VALUES
"""Values of a signature: 112. Documents share a band with a chance of 0.9996 at similarity 0.9, of 0.05 at 0.5."""
SHINGLE_WORDS = 5
MAX_TEXT_BYTES = 2**30
NO_WORD = 2**32 - 1
"""Each value of the signature of a document without a word."""
_SEED = 1
_GOLDEN_TEXT = (
    "The quick brown fox jumps over the lazy dog. Über 2,5 Mio. naïve Füchse; быстрая лиса, 速い狐!"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MinHash(Featurizer):
    """Signature of a document, by which `NearDuplicates(text=)` finds copies. Needs the extra `texts`.

    Words are runs of letters and digits, compared in NFC and lower case; each Chinese, Japanese or Korean character is
    one. A document of fewer than five words is one shingle. The featurizer rejects a document that is missing, empty,
    too long or no UTF-8.

    Field `minhash.npy`: uint32 [112]; each value is 4294967295 if the document has no word.
    """

    text: str | None = "txt"
    """Txt field with a text sample's document; None skips texts."""
    max_bytes: int = 8 << 20
    """Length of the longest accepted text in bytes."""
    name: ClassVar[str] = "minhash"
    """Name of the featurizer."""
    output_fields: ClassVar[tuple[str, ...]] = ("minhash.npy",)

    def __post_init__(self) -> None:
        if not 1 <= self.max_bytes <= MAX_TEXT_BYTES:
            raise invalid_option("max_bytes", self.max_bytes, f"1 to {MAX_TEXT_BYTES}")
        if self.text is not None and self.text.rpartition(".")[2].lower() != "txt":
            raise InvalidSpec(
                f"field {self.text!r} is not text; accepted: names ending in txt",
                what="text",
                given=self.text,
                accepted="names ending in txt",
            )

    @property
    def version(self) -> str:
        """Version, which also changes with rensa's release and the signature that it gives to a fixed text."""
        return version_of(self.code, asdict(self), f"rensa {rensa_version()}", golden_hash())

    @property
    def facts(self) -> Mapping[str, Mapping[str, Any]]:
        return {"minhash.npy": {"dims": ["hash"], "unit": "32-bit minhash", "shingle_words": SHINGLE_WORDS}}

    def __call__(self, kind: str, sample: Mapping[str, bytes]) -> Features:
        field = kind_field(self.inputs, kind)
        n_bytes = len(bytes_of(sample, field))
        if n_bytes > self.max_bytes:
            raise rejected(
                STAGE,
                "too_large",
                f"{n_bytes} bytes of text; at most {self.max_bytes}",
                given=n_bytes,
                accepted=self.max_bytes,
            )
        signature = text_signature(decoded(sample, field))
        return Features(fields={"minhash.npy": signature}, columns={})


def text_signature(text: str) -> NDArray[np.uint32]:
    """Return uint32 [112]. Raises: MissingDependency without rensa."""
    minhash = _rensa().RMinHash(N_VALUES, _SEED)
    for block in shingle_blocks(word_blocks(text), SHINGLE_WORDS):
        minhash.update(block)
    return np.array(minhash.digest(), np.uint32)


@cache
def golden_hash() -> str:
    """Return a hash of the signature of a fixed text, which shows a rensa that computes another one."""
    return hashlib.sha256(text_signature(_GOLDEN_TEXT).tobytes()).hexdigest()


def rensa_version() -> str:
    """Return rensa's release. Raises: MissingDependency."""
    _rensa()
    return version("rensa")


def _rensa() -> Any:
    try:
        import rensa
    except ImportError as error:
        raise MissingDependency(
            "minhash signatures need the package 'rensa', which is not installed: pip install -e '.[texts]'"
        ) from error
    return rensa
