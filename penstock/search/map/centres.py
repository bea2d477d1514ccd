"""Find centres of unit vectors by k-means, with faiss if the extra `search` is installed, else with numpy."""

from typing import Any, NamedTuple

import numpy as np

from loader.dataset.tables.parquet import Int64s

Floats = np.ndarray[Any, np.dtype[np.float32]]

_ROUNDS = 12
"""Rounds of k-means."""
_BLOCK = 8_192
"""Vectors compared with all centres at once."""


class Centres(NamedTuple):
    """Centres of vectors."""

    vectors: Floats
    """float32 [k, numbers], of length 1."""
    nearest: Int64s
    """int64 [n]: centre of each vector."""


def find_centres(
    vectors: Floats,
    k: int,
    seed: int,
) -> Centres:
    """Return k centres of unit vectors, float32 [n, numbers]; fewer if n < k, or if a centre has no vector."""
    if k >= len(vectors):
        return Centres(vectors, np.arange(len(vectors)))
    faiss = _import_faiss()
    if faiss is not None:
        means = faiss.Kmeans(
            vectors.shape[1],
            k,
            niter=_ROUNDS,
            seed=seed,
            spherical=True,
            min_points_per_centroid=1,  # no warning of few vectors
            max_points_per_centroid=len(vectors),  # by default faiss trains on 256 a centre
        )
        means.train(vectors)
        centroids: Floats = means.centroids.reshape(k, -1)
        centres = unit_rows(centroids)
    else:
        centres = _numpy_centres(
            vectors,
            k,
            seed,
        )
    nearest = nearest_rows(vectors, centres)
    # A centre may have no vector. The numbers after it move down.
    used, nearest = np.unique(nearest, return_inverse=True)
    return Centres(centres[used], nearest.astype(np.int64))


def _import_faiss() -> Any:
    """Return the module faiss, or None without the extra `search`."""
    try:
        import faiss
    except ImportError:
        return None
    return faiss


def _numpy_centres(
    vectors: Floats,
    k: int,
    seed: int,
) -> Floats:
    """Return k centres of unit vectors, float32 [k, numbers], by numpy's k-means."""
    rng = np.random.default_rng(seed)
    # Distinct vectors to begin with: two centres on one vector would never part.
    chosen = rng.choice(
        len(vectors),
        k,
        replace=False,
    )
    centres = vectors[np.sort(chosen)].copy()
    for _ in range(_ROUNDS):
        nearest = nearest_rows(vectors, centres)
        order = np.argsort(nearest, kind="stable")  # the vectors of one centre after the other
        used, first = np.unique(nearest[order], return_index=True)
        sums = np.add.reduceat(vectors[order], first)  # [used, numbers]: sum of each centre's vectors
        # A mean has the direction of the sum. A centre without vectors stays where it was.
        centres[used] = unit_rows(sums)
    return centres


def nearest_rows(vectors: Floats, centres: Floats) -> Int64s:
    """Return int64 [n]: the centre with the largest cosine, of vectors [n, numbers] and centres [k, numbers]."""
    nearest = np.empty(len(vectors), np.int64)
    for start in range(0, len(vectors), _BLOCK):
        cosines = vectors[start : start + _BLOCK] @ centres.T
        nearest[start : start + len(cosines)] = cosines.argmax(axis=1)
    return nearest


def unit_rows(rows: Floats) -> Floats:
    """Return rows [n, numbers] divided by their lengths; a row of zeros stays."""
    squares = np.square(rows).sum(axis=1)
    length = np.sqrt(squares)
    length[length == 0] = 1
    unit: Floats = rows / length[:, None]
    return unit
