"""Fitted maps: neighbours stay neighbours, later samples fall into the same map, and odd inputs do not break it."""

from typing import Any

import numpy as np
import pytest

from penstock.search.map import centres
from penstock.search.map.centres import find_centres, unit_rows
from penstock.search.map.fit import MARGIN, MapFit, fit_map
from penstock.search.map.lasso import MAP_UNITS
from penstock.search.map.placement import place

Array = np.ndarray[Any, np.dtype[Any]]

N_LABELS = 40
N_SAMPLES = 3_000
WIDTH = 48


def cluster_vectors(seed: int) -> tuple[Array, Array]:
    """Return unit vectors in one cone, and the label of each."""
    rng = np.random.default_rng(seed)
    means = np.random.default_rng(7).normal(size=(N_LABELS, WIDTH)) + 2
    labels = rng.integers(0, N_LABELS, N_SAMPLES)
    vectors = means[labels] + rng.normal(size=(N_SAMPLES, WIDTH)) * 0.8
    return unit_rows(vectors.astype(np.float32)), labels


def label_share(places: Array, labels: Array) -> float:
    """Return the share of ten neighbours on a map, float64 [n, 2], that have the sample's label."""
    queries = places[:600]
    squares = np.square(queries[:, None] - places).sum(axis=2)
    neighbours = np.argsort(squares, axis=1, kind="stable")[:, 1:11]
    return float((labels[neighbours] == labels[:600, None]).mean())


def fit_places(fit: MapFit, vectors: Array) -> Array:
    placed = place(fit, vectors)
    return np.stack([placed.x, placed.y], axis=1).astype(np.float64)


@pytest.fixture(scope="module")
def fit() -> MapFit:
    vectors, _ = cluster_vectors(1)
    return fit_map(vectors[:400])


def test_neighbours_on_the_map_share_a_label_far_more_often_than_on_a_plane(fit: MapFit) -> None:
    vectors, labels = cluster_vectors(2)  # none of them was fitted
    centred = vectors - vectors.mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    plane = label_share(centred @ directions[:2].T, labels)
    on_map = label_share(fit_places(fit, vectors), labels)
    assert plane < 0.4
    assert on_map > 0.9


def test_cluster_is_the_nearest_and_its_cosine_tells_outliers(fit: MapFit) -> None:
    vectors, labels = cluster_vectors(3)
    placed = place(fit, vectors)
    purest = [
        np.bincount(labels[placed.cluster == number]).max(initial=0)
        for number in range(fit.clusters.max() + 1)
    ]
    assert sum(purest) / N_SAMPLES > 0.3
    nearest = (vectors @ fit.anchors.T).argmax(axis=1)
    assert np.array_equal(placed.cluster, fit.clusters[nearest])
    means = fit.cluster_means[placed.cluster]
    cosine = np.einsum("nd,nd->n", vectors, means)
    assert np.allclose(placed.cluster_cosine.astype(np.float32), cosine, atol=1e-3)
    strange = unit_rows(np.random.default_rng(9).normal(size=(50, WIDTH)).astype(np.float32))
    assert place(fit, strange).cluster_cosine.max() < np.percentile(placed.cluster_cosine, 5)


def test_equal_vectors_fit_and_fall_equally(fit: MapFit) -> None:
    vectors, _ = cluster_vectors(1)
    again = fit_map(vectors[:400])
    assert np.array_equal(again.x, fit.x)
    assert np.array_equal(again.clusters, fit.clusters)
    once = fit_places(fit, vectors)
    by_itself = np.concatenate([fit_places(fit, vectors[number : number + 1]) for number in range(200)])
    assert np.abs(by_itself - once[:200]).max() <= 1  # a product of another shape may round otherwise


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 40])
def test_few_vectors_have_distinct_places(n: int) -> None:
    vectors, _ = cluster_vectors(4)
    small = fit_map(vectors[:n])
    places = fit_places(small, vectors[:n])
    assert len(np.unique(places, axis=0)) == n
    assert places.min() >= MARGIN - 1
    assert places.max() <= MAP_UNITS - MARGIN
    assert len(place(small, vectors[:0]).x) == 0


def test_copies_lie_on_one_place() -> None:
    vectors, _ = cluster_vectors(5)
    copies = np.repeat(vectors[:3], 20, axis=0)
    places = fit_places(fit_map(copies), copies)
    assert len(np.unique(places, axis=0)) <= 3
    assert np.isfinite(places).all()


def test_centres_without_faiss_are_as_good(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, labels = cluster_vectors(6)
    shares = []
    for has_faiss in (True, False):
        if not has_faiss:
            monkeypatch.setattr(centres, "_import_faiss", lambda: None)
        result = find_centres(vectors, 100, seed=3)
        assert np.allclose(np.linalg.norm(result.vectors, axis=1), 1, atol=1e-5)
        assert set(result.nearest.tolist()) == set(range(len(result.vectors)))
        purity = [
            np.bincount(labels[result.nearest == number]).max() for number in range(len(result.vectors))
        ]
        shares.append(sum(purity) / N_SAMPLES)
    assert shares[1] > 0.9 * shares[0]
    assert shares[1] > 0.8
