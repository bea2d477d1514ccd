"""Clusters told by labels and words, odd labels, and groups of near-duplicates beside brute force."""

import numpy as np
import pytest

from penstock.search.map.centres import unit_rows
from penstock.search.map.clusters import clusters, copy_groups, label_shares, near_duplicate_groups
from penstock.search.map.version_map import VersionMap


def version_map(cluster, cosine, has_place=None):
    n = len(cluster)
    if has_place is None:
        has_place = np.ones(n, bool)
    return VersionMap(
        field="appearance.npy",
        x=np.arange(n).astype(np.uint16) * 10,
        y=np.arange(n).astype(np.uint16),
        cluster=np.array(cluster, np.uint16),
        cluster_cosine=np.array(cosine, np.float16),
        has_place=np.array(has_place),
        damaged={},
    )


def test_cluster_has_its_label_words_and_example():
    places = version_map([0, 0, 0, 2, 2, 2], [0.5, 0.75, 0.25, 0.5, 0.5, 1], [True] * 5 + [False])
    labels = np.array([7, 7, 3, 1, -1, 1])
    texts = ["a grey cat sits", "The CAT runs", "a dog", "an owl flies", "an owl"]
    first, second = clusters(places, labels, dict(enumerate(texts)))
    assert (first.number, first.n, first.label, first.label_share) == (0, 3, 7, pytest.approx(2 / 3))
    assert first.words == ("cat",)
    assert (first.cosine, first.example, first.x, first.y) == (0.5, 1, 10, 1)
    assert (second.number, second.n, second.label, second.label_share) == (2, 2, 1, 0.5)
    assert second.words == ("owl",)
    (bare, _) = clusters(places)
    assert (bare.label, bare.label_share, bare.words) == (-1, 0, ())


def test_odd_label_has_the_smallest_share():
    cluster = np.array([0, 0, 0, 0, 1, 1, 1], np.uint16)
    labels = np.array([5, 5, 5, 2, 2, -1, 2])
    has_place = np.array([True] * 6 + [False])
    shares = label_shares(cluster, has_place, labels)
    assert shares[:5].tolist() == [0.75, 0.75, 0.75, 0.25, 1]
    assert np.isnan(shares[5:]).all()
    assert np.isnan(label_shares(cluster, has_place, np.full(7, -1))).all()


@pytest.mark.parametrize("seed", range(4))
def test_groups_are_components_of_near_pairs(seed):
    rng = np.random.default_rng(seed)
    vectors = unit_rows(rng.normal(size=(120, 3)).astype(np.float32))
    groups = near_duplicate_groups(vectors, 0.97)
    near = vectors @ vectors.T >= 0.97
    reach = near.copy()
    for _ in range(7):
        reach = (reach.astype(int) @ reach.astype(int)) > 0
    assert np.array_equal(groups, reach.argmax(axis=1))


def test_thousands_of_equal_vectors_are_one_group():
    vectors = unit_rows(np.ones((1_500, 8), np.float32))
    assert not near_duplicate_groups(vectors, 0.99).any()


def test_copies_are_grouped_by_their_original():
    keys = ["a", "b", "c", "d", "e"]
    assert copy_groups(keys, [None, "a", "b", "gone", "gone"]).tolist() == [0, 0, 0, 3, 3]
    assert copy_groups(keys, ["b", None, None, "", "a"]).tolist() == [0, 0, 2, 3, 0]
