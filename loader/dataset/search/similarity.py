"""The samples most similar to a query: all embeddings compared, or the best codes compared again.

With codes, the best 2k + 100 by code are compared with their stored embeddings. At least 0.99 of the ten nearest
neighbours are among them, for clustered vectors, vectors in one cone and vectors without structure.
"""

import os
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...errors import FieldMismatch, NotIndexed
from ..shards.bitmap import Bools
from ..tables.parquet import Int64s
from .embedding_index import CodeIndex
from .index_record import SQ8, field_index_record, read_index_record
from .vectors import VectorReader, unit_vector

if TYPE_CHECKING:
    from ..reading.sample_places import VersionData

MOST_COMPARED = 100_000
"""Most embeddings that a query compares without an index: 0.7 s of 512 numbers."""
RESCORED_PER_RESULT = 2
RESCORED = 100
"""Candidates beside `RESCORED_PER_RESULT` for each result."""
_ROWS_PER_S = 125_000
"""Embeddings of 512 numbers that one core indexes in a second."""


class Nearest(NamedTuple):
    """Samples most similar to a query, the best first; ties by ordinal."""

    ordinals: Int64s
    """int64 [n]."""
    scores: np.ndarray
    """float64 [n]: cosines with the stored embeddings."""
    exact: bool
    """True if every embedding was compared."""
    n_searched: int
    """Embeddings or codes that were compared."""
    damaged: dict[str, str]
    """Path of a segment that was left out -> what is wrong with it."""


class Similarity:
    """Similarity search in one field of a version. Not thread-safe: each thread opens its own."""

    def __init__(
        self,
        version: "VersionData",
        field: str,
        cache: str | os.PathLike[str] | None = None,
    ) -> None:
        """cache: folder for local files of codes; None is one of this process."""
        self._version = version
        self.field = field
        """Field that is compared."""
        self._reader = VectorReader(version, field)
        self._index: CodeIndex | None = None
        group = version.group_of(field)
        parts = version.parts
        self._has_field = parts.has_live_group(group)  # bool [len(version)]
        self.numbers = self._width()
        """Numbers of an embedding; 0 if none is readable."""
        if self.numbers:
            record = field_index_record(
                version,
                field,
                SQ8,
                self.numbers,
            )
            stored = read_index_record(version.store, record)
            if stored is not None:
                self._index = CodeIndex(version, stored, cache)

    def _width(self) -> int:
        ordinals = np.flatnonzero(self._has_field)
        for _, _vectors in self._reader.blocks(ordinals[:4096]):
            if self._reader.width:
                break
        return self._reader.width

    @property
    def n_uncoded(self) -> int:
        """Embeddings without a code: each query compares them all."""
        uncoded = self._has_field
        if self._index is not None:
            uncoded = self._has_field & ~self._index.has_code
        return int(np.count_nonzero(uncoded))

    def close(self) -> None:
        self._reader.close()

    def mean_direction(self, ordinals: Int64s, names: list[str]) -> np.ndarray:
        """Return the mean direction of samples' embeddings, float64 [numbers]. names: keys, for messages.

        Raises: FieldMismatch for a sample without a usable embedding, or samples without a common direction.
        """
        is_present = self._has_field[ordinals]
        vectors = np.zeros((len(ordinals), self.numbers), np.float64)
        is_usable = np.zeros(len(ordinals), bool)
        if is_present.any() and self.numbers:
            stored = self._reader.samples(ordinals[is_present])
            vectors[is_present] = stored.rows
            is_usable[is_present] = stored.is_valid
        if not is_usable.all():
            name = names[int(np.argmin(is_usable))]
            raise FieldMismatch(
                f"sample {name!r} of {self._version.name} has no usable {self.field!r}: it is missing, zero, not "
                "finite, or of another width. Pass another sample",
                what=self.field,
                where=f"sample {name!r} of {self._version.name}",
            )
        return unit_vector(vectors.mean(axis=0), self.numbers, self.field)

    def direction(self, vector: object) -> np.ndarray:
        """Return a query as float64 [numbers] of length 1. Raises: FieldMismatch."""
        return unit_vector(vector, self.numbers, self.field)

    def nearest(
        self,
        query: np.ndarray,
        k: int,
        members: Bools,
    ) -> Nearest:
        """Return the `k` members most similar to a query, float64 [numbers] of length 1. members: bool [len(version)].

        Raises: NotIndexed; MissingDependency.
        """
        members = members & self._has_field
        n_candidates = RESCORED_PER_RESULT * k + RESCORED
        damaged: dict[str, str] = {}
        chosen = np.zeros(0, np.int64)
        compared = members
        n_scanned = 0
        if self._index is not None:
            damaged = self._index.damaged
            has_code = members & self._index.has_code
            candidates = self._index.best(query, n_candidates, has_code)
            chosen = candidates.ordinals
            n_scanned = candidates.n_scanned
            compared = members & ~has_code
        others = np.flatnonzero(compared)
        if len(others) > MOST_COMPARED:
            raise self._not_indexed(len(others))
        ordinals = np.union1d(chosen, others)
        ordinals, scores, n_compared = self._best(query, k, ordinals)
        is_exact = len(chosen) == n_scanned
        n_searched = n_scanned + max(0, n_compared - len(chosen))
        return Nearest(
            ordinals,
            scores,
            is_exact,
            n_searched,
            damaged,
        )

    def _best(
        self,
        query: np.ndarray,
        k: int,
        ordinals: Int64s,
    ) -> tuple[Int64s, np.ndarray, int]:
        """Return (ordinals, cosines, embeddings compared) of the best `k` of some samples, the best first."""
        best_ordinals = np.zeros(0, np.int64)
        best_scores = np.zeros(0, np.float64)
        n_compared = 0
        for block, vectors in self._reader.blocks(ordinals):
            is_valid = vectors.is_valid
            valid = block[is_valid]
            n_compared += len(valid)
            rows = vectors.rows[is_valid].astype(np.float64)
            # `einsum` and not `@`: equal embeddings have equal scores, wherever they are in the block.
            lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))  # 1, but for the rounding of float32
            scores = (
                np.einsum(
                    "ij,j->i",
                    rows,
                    query,
                )
                / lengths
            )
            best_ordinals = np.concatenate([best_ordinals, valid])
            best_scores = np.concatenate([best_scores, np.round(scores, 9)])
            order = np.lexsort((best_ordinals, -best_scores))[:k]
            best_ordinals = best_ordinals[order]
            best_scores = best_scores[order]
        return best_ordinals, best_scores, n_compared

    def _not_indexed(self, n: int) -> NotIndexed:
        name = self._version.name
        n_numbers = n * self.numbers
        seconds = max(1, round(n_numbers / 512 / _ROWS_PER_S))
        return NotIndexed(
            f"{name} has {n:,} samples whose {self.field!r} is not indexed; a query compares at most "
            f"{MOST_COMPARED:,} without an index. Run penstock index {name} --field {self.field} (about {seconds:,} s "
            f"and {n_numbers:,} bytes), or pass a where that leaves fewer samples",
            what=self.field,
            where=name,
            given=n,
            accepted=MOST_COMPARED,
        )
