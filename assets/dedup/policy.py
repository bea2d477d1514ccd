"""What a dataset does with near-duplicates."""

from dataclasses import dataclass
from typing import Literal

from .hamming import MAX_DISTANCE

KINDS = ("image", "video")
"""Kinds that have pictures to compare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingMatch:
    """Pictures whose embeddings point the same way are near-duplicates too: crops, and what else the model overlooks.

    field: of a featurizer, float32 [d]; its length does not matter, only its direction; min_cosine: above 0, at
    most 1, inclusive. What is near depends on the model: measure it on pairs that you know. Raises: ValueError.
    """

    field: str = "embedding.npy"
    min_cosine: float

    def __post_init__(self) -> None:
        if not 0 < self.min_cosine <= 1:
            raise ValueError(f"min_cosine={self.min_cosine}; accepted: above 0, at most 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class NearDuplicates:
    """max_distance: bits of 64 in which the perceptual hashes of two copies may differ, 0 to 16. Measured: copies
    recompressed or halved 2 on average, other pictures 12 and more.

    keep: "better", by `quality`, or "first": what was published, then what landed first.
    action: "drop", or "mark": all stay, and the column `dup_of` names what a sample is a copy of. Copies in two
    splits leak then; the check `near_duplicates_across_splits` is for that.
    mirrored: copies turned left to right count as well. embedding: None, or what else makes two pictures near.

    Raises: ValueError.
    """

    max_distance: int = 8
    keep: Literal["better", "first"] = "better"
    action: Literal["drop", "mark"] = "drop"
    mirrored: bool = True
    embedding: EmbeddingMatch | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.max_distance <= MAX_DISTANCE:
            raise ValueError(f"max_distance={self.max_distance}; accepted: 0 to {MAX_DISTANCE} bits")
        if self.keep not in ("better", "first"):
            raise ValueError(f"keep={self.keep!r}; accepted: 'better', 'first'")
        if self.action not in ("drop", "mark"):
            raise ValueError(f"action={self.action!r}; accepted: 'drop', 'mark'")

    def identity(self) -> list[str]:
        """Plain words that are the same for the same policy, in every process."""
        words = [str(self.max_distance), self.keep, self.action, str(self.mirrored)]
        return words + ([self.embedding.field, str(self.embedding.min_cosine)] if self.embedding else [])
