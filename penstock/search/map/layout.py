"""Lay vectors out on a plane by t-SNE: neighbours stay neighbours, distances between groups mean little.

Exact gradients of all pairs, in numpy: 25 s for 1,024 vectors, 0.3 s for 100. Barnes-Hut and UMAP are faster from 5,000
vectors on, but need compiled packages; PCA keeps a tenth of the neighbours. Equal vectors and processors give equal
layouts: the start is a PCA, and no random number is drawn.
"""

from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float32]]
Doubles = np.ndarray[Any, np.dtype[np.float64]]

PERPLEXITY = 30.0
"""Neighbours of a vector that its layout follows."""
STEPS = 500
_EXAGGERATED_STEPS = 125
_EXAGGERATION = 12.0
_SPREAD = 1e-4  # of the start: small, so that groups can pass through each other
_BISECTIONS = 50
_LEAST = 1e-12
_MOST_PRECISION = 1e12


def layout(vectors: Floats) -> Doubles:
    """Return float64 [n, 2] for unit vectors, float32 [n, numbers], n at most some thousands."""
    n = len(vectors)
    if n < 3:
        line = np.zeros((n, 2))
        line[:, 0] = np.arange(n)
        return line
    perplexity = min(PERPLEXITY, (n - 1) / 3)
    affinity = _affinities(vectors, perplexity).astype(np.float32)
    places = _principal_plane(vectors)
    # van der Maaten's schedule: exaggerated attraction and little momentum first. Rate by Belkina et al. (2019).
    rate = max(n / _EXAGGERATION, 50.0)
    velocity = np.zeros_like(places)
    gain = np.ones_like(places)
    weight = np.empty((n, n), np.float32)
    for step in range(STEPS):
        is_early = step < _EXAGGERATED_STEPS
        exaggeration = 1.0
        momentum = 0.8
        if is_early:
            exaggeration = _EXAGGERATION
            momentum = 0.5
        gradient = _gradient(
            places,
            affinity,
            exaggeration,
            weight,
        )
        is_steady = np.sign(gradient) == np.sign(velocity)
        # Each number has its own rate: faster while its direction stays (Jacobs, 1988).
        gain = np.where(
            is_steady,
            gain * 0.8,
            gain + 0.2,
        )
        gain = np.maximum(gain, 0.01)
        velocity *= momentum
        velocity -= rate * gain * gradient
        places = places + velocity
        places -= places.mean(axis=0)
    return places.astype(np.float64)


def _affinities(vectors: Floats, perplexity: float) -> Doubles:
    """Return float64 [n, n] that sums to 1: how near two vectors are, in units of their own neighbourhoods."""
    exact = vectors.astype(np.float64)
    cosine = exact @ exact.T
    distance = np.maximum(0, 2 - 2 * cosine)  # squared, of unit vectors
    np.fill_diagonal(distance, np.inf)
    distance -= distance.min(axis=1, keepdims=True)
    n = len(vectors)
    target = np.log(perplexity)
    low = np.zeros(n)
    high = np.full(n, _MOST_PRECISION)
    precision = np.ones(n)
    near = np.zeros_like(distance)
    # Find each row's precision, float64 [n], whose neighbourhood has the perplexity: by doubling, then by bisection.
    for _ in range(_BISECTIONS):
        near = np.exp(-distance * precision[:, None])
        total = near.sum(axis=1)
        weighted = np.where(
            near > 0,
            distance,
            0,
        )
        weighted *= near
        mean = weighted.sum(axis=1) / total
        entropy = np.log(total) + precision * mean
        is_wide = entropy > target
        low = np.where(
            is_wide,
            precision,
            low,
        )
        high = np.where(
            is_wide,
            high,
            precision,
        )
        precision = np.where(
            high < _MOST_PRECISION,
            (low + high) / 2,
            precision * 2,
        )
        # Equal vectors never reach the target.
        precision = np.minimum(precision, _MOST_PRECISION)
    near /= near.sum(
        axis=1,
        keepdims=True,
    )
    both = (near + near.T) / (2 * n)
    return np.maximum(both, _LEAST)


def _principal_plane(vectors: Floats) -> Floats:
    """Return float32 [n, 2]: a small copy of the two directions in which the vectors differ most."""
    centred = vectors - vectors.mean(axis=0)
    rows, singular, _ = np.linalg.svd(
        centred,
        full_matrices=False,
    )
    directions = rows * singular
    n_directions = min(2, len(singular))
    plane = np.zeros((len(vectors), 2))
    plane[:, :n_directions] = directions[:, :n_directions]
    # A direction's sign is arbitrary: the largest place is positive.
    largest = np.abs(plane).argmax(axis=0)
    ends = plane[largest, [0, 1]]
    sign = np.where(
        ends < 0,
        -1,
        1,
    )
    plane *= sign
    spread = plane[:, 0].std()
    if not spread:  # all vectors are equal
        plane[:, 0] = np.arange(len(vectors))
        spread = plane[:, 0].std()
    plane *= _SPREAD / spread
    return plane.astype(np.float32)


def _gradient(
    places: Floats,
    affinity: Floats,
    exaggeration: float,
    weight: Floats,
) -> Floats:
    """Return float32 [n, 2]. weight: float32 [n, n], overwritten."""
    squares = np.square(places).sum(axis=1)
    np.matmul(
        places,
        places.T * np.float32(-2),
        out=weight,
    )
    weight += squares[:, None]
    weight += squares
    weight += 1
    np.reciprocal(weight, out=weight)  # 1 / (1 + squared distance)
    np.fill_diagonal(weight, 0)
    total = weight.sum()
    push = weight / total
    pull = affinity * np.float32(exaggeration)
    pull -= push
    pull *= weight
    own = pull.sum(axis=1)[:, None] * places
    others = pull @ places
    gradient: Floats = 4 * (own - others)
    return gradient
