"""Samples whose embeddings point the same way: an exact blocked matrix product."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from loader.errors import FieldMismatch

from .hamming import Int64s
from .pictures import EMBEDDING, Matches, merged, no_matches

Float32s = np.ndarray[Any, np.dtype[np.float32]]

ROWS_AT_ONCE = 1024
"""Rows of either side in one block of cosines, which takes 4 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Embeddings:
    """Unit vectors of n samples."""

    vectors: Float32s
    """float32 [n, d], each of length 1, or 0 for a sample without an embedding; d is 0 where no sample has one."""

    def __len__(self) -> int:
        return len(self.vectors)

    def take(self, rows: Int64s) -> "Embeddings":
        """Return the embeddings of some samples."""
        return Embeddings(vectors=self.vectors[rows])


def embeddings_of(vectors: Iterable[Float32s | None]) -> Embeddings:
    """Stack the embeddings of samples and make their lengths 1.

    vectors: one array [d] per sample, None or empty for none.

    Raises: FieldMismatch for arrays of different d, or with NaN or infinity.
    """
    rows = [None if one is None or not one.size else np.ravel(one).astype(np.float32) for one in vectors]
    sizes = sorted({len(one) for one in rows if one is not None})
    if len(sizes) > 1:
        raise FieldMismatch(
            f"embeddings of {sizes} numbers; those of a dataset have the same, from one model"
        )
    found = np.zeros((len(rows), sizes[0] if sizes else 0), np.float32)
    for position, one in enumerate(rows):
        if one is not None:
            found[position] = one
    if not np.isfinite(found).all():
        raise FieldMismatch("an embedding has NaN or infinity; compute it again")
    length = np.linalg.norm(found, axis=1, keepdims=True)
    return Embeddings(vectors=np.divide(found, length, out=np.zeros_like(found), where=length > 0))


def near_embeddings(queries: Embeddings, rows: Embeddings, min_cosine: float) -> Matches:
    """Return every pair with a cosine of at least `min_cosine`; its distance is 1 - cosine.

    O(b n d) multiplications, in blocks: memory is one block and the pairs found. Raises: FieldMismatch.
    """
    if not queries.vectors.size or not rows.vectors.size:
        return no_matches()
    if queries.vectors.shape[1] != rows.vectors.shape[1]:
        raise FieldMismatch(
            f"embeddings of {queries.vectors.shape[1]} and {rows.vectors.shape[1]} numbers cannot be compared: "
            "another model made them. Compute the published ones again, or start another dataset"
        )
    found = [no_matches()]
    for first in range(0, len(queries), ROWS_AT_ONCE):
        block = queries.vectors[first : first + ROWS_AT_ONCE]
        for other in range(0, len(rows), ROWS_AT_ONCE):
            cosine = block @ rows.vectors[other : other + ROWS_AT_ONCE].T
            query, row = np.nonzero(cosine >= min_cosine)
            if len(query):
                found.append(
                    Matches(
                        query=first + query,
                        row=other + row,
                        by=np.full(len(query), EMBEDDING, np.int64),
                        distance=1.0 - cosine[query, row].astype(np.float64),
                    )
                )
    return merged(*found)
