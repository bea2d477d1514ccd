"""Treatment of near-duplicates in a dataset."""

from dataclasses import dataclass
from typing import Literal

from .hamming import MAX_DISTANCE

KINDS = ("image", "video")
"""Kinds that have pictures to compare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingMatch:
    """A second search for near-duplicates: pictures whose embeddings point the same way, such as crops.

    The nearness of two pictures depends on the model: measure it on pairs that you know. Raises: ValueError.
    """

    field: str = "embedding.npy"
    """Field of a featurizer, float32 [d]; only its direction counts, not its length."""
    min_cosine: float
    """Smallest cosine of two near pictures: above 0, at most 1, inclusive."""

    def __post_init__(self) -> None:
        if not 0 < self.min_cosine <= 1:
            raise ValueError(f"min_cosine={self.min_cosine}; accepted: above 0, at most 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class NearDuplicates:
    """Search for near-duplicates, and their treatment. Raises: ValueError."""

    max_distance: int = 8
    """Most bits of 64 in which the perceptual hashes of two copies differ, 0 to 16. Measured: copies recompressed
    or halved differ in 2 on average, other pictures in 12 and more."""
    keep: Literal["better", "first"] = "better"
    """"better", by `quality`, or "first": the published copy, then the copy that landed first."""
    action: Literal["drop", "mark"] = "drop"
    """"drop", or "mark": all stay, and the column `dup_of` names the sample that a copy is of. Copies in two splits
    leak then; the check `near_duplicates_across_splits` is for that."""
    mirrored: bool = True
    """True counts copies turned left to right as well."""
    embedding: EmbeddingMatch | None = None
    """Second search by embeddings; None for none."""

    def __post_init__(self) -> None:
        if not 0 <= self.max_distance <= MAX_DISTANCE:
            raise ValueError(f"max_distance={self.max_distance}; accepted: 0 to {MAX_DISTANCE} bits")
        if self.keep not in ("better", "first"):
            raise ValueError(f"keep={self.keep!r}; accepted: 'better', 'first'")
        if self.action not in ("drop", "mark"):
            raise ValueError(f"action={self.action!r}; accepted: 'drop', 'mark'")

    def identity(self) -> list[str]:
        """Return plain words that are the same for the same policy, in every process."""
        words = [str(self.max_distance), self.keep, self.action, str(self.mirrored)]
        return words + ([self.embedding.field, str(self.embedding.min_cosine)] if self.embedding else [])
