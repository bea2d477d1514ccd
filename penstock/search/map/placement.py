"""Place samples on a fitted map: beside the nearest anchor, towards the next ones."""

from typing import Any, NamedTuple

import numpy as np

from loader.dataset.tables.parquet import Int64s

from .centres import Floats
from .fit import MapFit
from .lasso import Places

Halves = np.ndarray[Any, np.dtype[np.float16]]

NEIGHBOURS = 8
"""Anchors that pull a sample."""
_SHARPNESS = 8.0
"""A pull falls by e for each eighth of the way from the nearest to the farthest of these anchors' cosines."""
_REACH = 2.0
"""Longest way from the nearest anchor, in distances between neighbouring anchors."""
_BLOCK = 4_096


class Placed(NamedTuple):
    """Places of samples."""

    x: Places
    """uint16 [n]: from left to right."""
    y: Places
    """uint16 [n]: from top to bottom."""
    cluster: Places
    """uint16 [n]: number of the cluster."""
    cluster_cosine: Halves
    """float16 [n]: cosine between the sample and its cluster's mean; outliers have the lowest."""


def place(fit: MapFit, vectors: Floats) -> Placed:
    """Return the places of unit vectors, float32 [n, numbers]. 35 s per 1e6 of 512 numbers on one core."""
    n = len(vectors)
    placed = Placed(
        x=np.empty(n, np.uint16),
        y=np.empty(n, np.uint16),
        cluster=np.empty(n, np.uint16),
        cluster_cosine=np.empty(n, np.float16),
    )
    for start in range(0, n, _BLOCK):
        block = vectors[start : start + _BLOCK]
        columns = zip(
            placed,
            _place_block(fit, block),
            strict=True,
        )
        for column, values in columns:
            column[start : start + len(block)] = values
    return placed


def _place_block(fit: MapFit, vectors: Floats) -> Placed:
    """Return the places of unit vectors: each near its nearest anchor, pulled towards the next ones."""
    cosines = vectors @ fit.anchors.T  # [n, anchors]
    n_near = min(NEIGHBOURS, len(fit.anchors))
    near, near_cosines = _best(cosines, n_near)  # [n, n_near], best first
    first = near[:, 0]

    behind = near_cosines[:, :1] - near_cosines  # 0 for the nearest
    farthest = np.maximum(behind[:, -1:], 1e-9)
    # Relative to the farthest: cosines of one network differ by 0.5, of another by 0.05.
    share = behind / farthest
    pull = np.exp(-_SHARPNESS * share)
    pull /= pull.sum(
        axis=1,
        keepdims=True,
    )
    nearest = fit.places[first]  # [n, 2]
    others = fit.places[near]  # [n, n_near, 2]
    pulled = np.einsum(
        "nk,nkd->nd",
        pull,
        others,
    )
    move = pulled - nearest
    squares = np.square(move).sum(axis=1)
    distance = np.maximum(np.sqrt(squares), 1e-9)
    # Anchors that are alike may lie far apart on a plane: halfway between them is nowhere.
    longest = _REACH * fit.spacing[first]
    shortened = np.minimum(1, longest / distance)
    places = nearest + move * shortened[:, None]
    places = np.rint(places).astype(np.uint16)

    cluster = fit.clusters[first]
    means = fit.cluster_means[cluster]  # [n, numbers]
    cosine = np.einsum(
        "nd,nd->n",
        vectors,
        means,
    )
    return Placed(
        x=places[:, 0],
        y=places[:, 1],
        cluster=cluster,
        cluster_cosine=cosine.astype(np.float16),
    )


def _best(cosines: Floats, n_best: int) -> tuple[Int64s, Floats]:
    """Return (columns, cosines), [n, n_best] each, of the largest of each row, the largest first."""
    columns = np.argpartition(
        -cosines,
        n_best - 1,
        axis=1,
    )[:, :n_best]
    values = np.take_along_axis(
        cosines,
        columns,
        axis=1,
    )
    # Ties by column, so that equal vectors lie on one place.
    order = np.lexsort((columns, -values), axis=1)
    columns = np.take_along_axis(
        columns,
        order,
        axis=1,
    )
    values = np.take_along_axis(
        values,
        order,
        axis=1,
    )
    return columns, values
