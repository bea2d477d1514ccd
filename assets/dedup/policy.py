"""Policy of a dataset on near-duplicates."""

from dataclasses import dataclass
from typing import Literal

from .hamming import MAX_DISTANCE

KINDS = ("image", "video")
"""Kinds with images to compare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingMatch:
    """A second search, by embeddings, that also finds crops.

    The right `min_cosine` depends on the model: measure it on pairs that you know. Raises: ValueError.
    """

    field: str = "embedding.npy"
    """Field of a featurizer, float32 [d]; only its direction counts."""
    min_cosine: float
    """Smallest cosine of near images: above 0, at most 1."""

    def __post_init__(self) -> None:
        if not 0 < self.min_cosine <= 1:
            raise ValueError(f"min_cosine={self.min_cosine}; accepted: above 0, at most 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class NearDuplicates:
    """Search for near-duplicates, and their treatment. Raises: ValueError."""

    max_distance: int = 8
    """Most bits, 0 to 16 of 64, between copies' perceptual hashes. Measured: recompressed or halved copies differ in 2
    on average, other images in 12 and more."""
    keep: Literal["better", "first"] = "better"
    """"better" keeps the better copy, see `settle`; "first" keeps the published copy, then the one that landed first.
    """
    action: Literal["drop", "mark"] = "drop"
    """"drop" drops copies. "mark" keeps all, and the column `dup_of` names the original; copies in two splits then
    leak, which the check `near_duplicates_across_splits` finds."""
    mirrored: bool = True
    """True also finds mirrored copies."""
    embedding: EmbeddingMatch | None = None
    """Second search; None for none."""

    def __post_init__(self) -> None:
        if not 0 <= self.max_distance <= MAX_DISTANCE:
            raise ValueError(f"max_distance={self.max_distance}; accepted: 0 to {MAX_DISTANCE} bits")
        if self.keep not in ("better", "first"):
            raise ValueError(f"keep={self.keep!r}; accepted: 'better', 'first'")
        if self.action not in ("drop", "mark"):
            raise ValueError(f"action={self.action!r}; accepted: 'drop', 'mark'")

    def identity(self) -> list[str]:
        """Return words that identify the policy in every process."""
        words = [str(self.max_distance), self.keep, self.action, str(self.mirrored)]
        return words + ([self.embedding.field, str(self.embedding.min_cosine)] if self.embedding else [])
