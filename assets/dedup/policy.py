"""A dataset's policy for near-duplicates."""

from dataclasses import dataclass
from typing import Literal

from assets import invalid_option

from .hamming import MAX_DISTANCE

KINDS = ("image", "video")
"""Kinds of samples whose images are compared."""
TEXT = "text"
"""Kind of samples whose documents are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingMatch:
    """A second search, by embeddings, that also finds crops. Raises: InvalidSpec for an invalid field."""

    field: str = "embedding.npy"
    """Featurizer field with the embedding, float32 [d]."""
    min_cosine: float
    """Smallest cosine, above 0, at most 1."""

    def __post_init__(self) -> None:
        if not 0 < self.min_cosine <= 1:
            raise invalid_option("min_cosine", self.min_cosine, "above 0, at most 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextMatch:
    """A search among documents, by the featurizer `minhash`. Raises: InvalidSpec for an invalid field.

    Two documents are near if a band of their signatures is equal, and at least `min_similarity` of all values.
    """

    field: str = "minhash.npy"
    """Featurizer field with the signature, uint32 [112]."""
    min_similarity: float = 0.8
    """Smallest share of equal values, above 0.5, at most 1. It estimates the Jaccard similarity of the documents' sets
    of shingles, five words each, with a standard error of 0.04.
    """

    def __post_init__(self) -> None:
        # Below, bands find less than one copy in twenty.
        if not 0.5 < self.min_similarity <= 1:
            raise invalid_option("min_similarity", self.min_similarity, "above 0.5, at most 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class NearDuplicates:
    """Rules for finding and resolving near-duplicates. Raises: InvalidSpec for an invalid field."""

    max_distance: int = 8
    """Largest distance between perceptual hashes of copies: 0 to 16 of 64 bits. Recompressed or halved copies differ in
    2 on average, other images in 12 or more.
    """
    keep: Literal["better", "first"] = "better"
    """"better" keeps the better copy (see `settle`), "first" the published one, or else the first landed."""
    action: Literal["drop", "mark"] = "drop"
    """"drop" drops copies. "mark" keeps them, with the original in `dup_of`; `near_duplicates_across_splits` then
    reports copies in different splits.
    """
    mirrored: bool = True
    """True to find mirrored copies too."""
    embedding: EmbeddingMatch | None = None
    """Second search, or None."""
    text: TextMatch | None = None
    """Search among documents, or None. Without the featurizer `phash`, it is the only search."""

    def __post_init__(self) -> None:
        if not 0 <= self.max_distance <= MAX_DISTANCE:
            raise invalid_option("max_distance", self.max_distance, f"0 to {MAX_DISTANCE} bits")
        if self.keep not in ("better", "first"):
            raise invalid_option("keep", self.keep, "'better', 'first'")
        if self.action not in ("drop", "mark"):
            raise invalid_option("action", self.action, "'drop', 'mark'")

    def identity(self) -> list[str]:
        """Return strings that identify the policy, the same in every process."""
        words = [
            str(self.max_distance),
            self.keep,
            self.action,
            str(self.mirrored),
        ]
        # A search that is off adds no words, so that earlier policies keep their identity.
        if self.embedding is not None:
            words.append(self.embedding.field)
            words.append(str(self.embedding.min_cosine))
        if self.text is not None:
            words.append(TEXT)
            words.append(self.text.field)
            words.append(str(self.text.min_similarity))
        return words
