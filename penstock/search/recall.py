"""The recall of an index: the share of the nearest samples that a search with codes returns."""

import math

import numpy as np

from loader import Version
from loader.dataset.search.similarity import MOST_COMPARED
from loader.dataset.search.vectors import VectorReader, field_ordinals
from loader.dataset.versions.sample_search import search_samples

N_QUERIES = 20
N_NEAREST = 10


def measure_recall(version: Version, field: str) -> float:
    """Return the recall of the ten nearest, 0 to 1, over twenty samples spread over a version; 1 without embeddings.

    Compares at most 100,000 embeddings, evenly spread; the index searches the same samples.
    """
    ordinals = field_ordinals(version, field)
    step = math.ceil(len(ordinals) / MOST_COMPARED)
    ordinals = ordinals[:: max(1, step)]
    reader = VectorReader(version, field)
    try:
        if not len(ordinals):
            return 1.0
        spread = np.linspace(0, len(ordinals) - 1, N_QUERIES)
        chosen = np.unique(spread.astype(np.int64))  # fewer in a small version
        queries = reader.samples(ordinals[chosen])
        if not queries.is_valid.any():
            return 1.0
        rows = queries.rows[queries.is_valid]  # [queries, numbers]
        nearest = _nearest(reader, ordinals, rows)
    finally:
        reader.close()
    # The search looks among the samples that were compared: a nearer one outside them is no miss of the index.
    members = np.zeros(len(version), bool)
    members[ordinals] = True
    shares = []
    for number, query in enumerate(rows):
        result = search_samples(
            version,
            like=query,
            k=N_NEAREST,
            members=members,
            field_name=field,
        )
        common = np.intersect1d(result.ordinals, nearest[number])
        shares.append(len(common) / len(nearest[number]))
    return float(np.mean(shares))


def _nearest(
    reader: VectorReader,
    ordinals: np.ndarray,
    queries: np.ndarray,
) -> list[np.ndarray]:
    """Return each query's nearest ordinals, by all of these samples' embeddings. queries: float32 [n, numbers]."""
    best_ordinals = np.zeros((len(queries), 0), np.int64)
    best_scores = np.zeros((len(queries), 0), np.float32)
    for block, vectors in reader.blocks(ordinals):
        scores = queries @ vectors.rows.T  # [queries, block]
        scores[:, ~vectors.is_valid] = -np.inf
        best_scores = np.concatenate([best_scores, scores], axis=1)
        block_ordinals = np.broadcast_to(block, scores.shape)
        best_ordinals = np.concatenate([best_ordinals, block_ordinals], axis=1)
        # Stable: of equal cosines the lower ordinal stays, as in a search.
        order = np.argsort(-best_scores, axis=1, kind="stable")[:, :N_NEAREST]
        best_scores = np.take_along_axis(best_scores, order, axis=1)
        best_ordinals = np.take_along_axis(
            best_ordinals,
            order,
            axis=1,
        )
    # Without enough usable vectors, unusable ones are among the best.
    is_usable = np.isfinite(best_scores)
    nearest = []
    for row, usable in zip(
        best_ordinals,
        is_usable,
        strict=True,
    ):
        nearest.append(row[usable])
    return nearest
