"""`version.search(like=...)` beside brute force, and queries that are refused."""

import numpy as np
import pytest

import loader
from loader.errors import FieldMismatch, FieldNotFound, InvalidRuntime, NotIndexed, SampleNotFound
from tests.refusals import refusal

from .vectors import SHAPES, nearest, read_vectors, write_vectors


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = loader.Root(tmp_path_factory.mktemp("search") / "root")
    rng = np.random.default_rng(3)
    vectors = SHAPES["clustered"](300, 16, rng)
    vectors[7] = vectors[4]  # equal ones: ties by ordinal
    vectors[290] = vectors[4]
    write_vectors(root, vectors[:200], part_samples=64)
    write_vectors(root, vectors[200:], first=200, part_samples=64)
    root.exclude("d", ["k000009", "k000250"], reason="blurred")
    return root


@pytest.fixture(scope="module")
def version(root):
    return root.open("d")


def ordinal(version, key):
    return version.keys(np.arange(len(version))).index(key)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_search_like_a_key_agrees_with_brute_force(root, number):
    version = root.open(f"d@{number + 1}")
    vectors = read_vectors(version)
    keys = version.keys(np.arange(len(version)))
    for key in ("k000004", "k000123", "k000199"):
        result = version.search(like=key, k=25)
        expected, scores = nearest(vectors, vectors[keys.index(key)], 25)
        assert result.ordinals.tolist() == expected
        assert result.scores == pytest.approx(scores, abs=1e-6)
        assert result.keys() == [keys[each] for each in expected]
        assert (result.exact, result.field, result.n_searched) == (True, "embedding.npy", len(version))


def test_equal_embeddings_come_in_version_order(version):
    result = version.search(like="k000290", k=3)
    assert result.keys() == sorted(result.keys(), key=lambda key: ordinal(version, key))
    assert set(result.keys()) == {"k000004", "k000007", "k000290"}
    assert result.scores.tolist() == [1, 1, 1]


def test_search_like_keys_compares_their_mean(version):
    vectors = read_vectors(version)
    keys = ["k000001", "k000002", "k000150"]
    mean = np.mean([vectors[ordinal(version, key)] for key in keys], axis=0)
    assert version.search(like=keys, k=20).ordinals.tolist() == nearest(vectors, mean, 20)[0]
    assert version.search(like=mean, k=20).ordinals.tolist() == nearest(vectors, mean, 20)[0]
    assert (
        version.search(like=(1000 * mean).tolist(), k=20).ordinals.tolist() == nearest(vectors, mean, 20)[0]
    )


def test_search_where_ranks_only_those_that_match(version):
    vectors = read_vectors(version)
    table = version.samples().select("third").collect()["third"].to_numpy()
    result = version.search(like="k000004", k=200, where="third = 1")
    expected, _ = nearest(vectors, vectors[ordinal(version, "k000004")], 200, table == 1)
    assert result.ordinals.tolist() == expected
    assert result.n_searched == result.n_matching == int((table == 1).sum())


def test_excluded_samples_never_appear(root, version):
    excluded = {"k000009", "k000250"}
    assert excluded & set(version.search(like="k000010", k=10_000).keys()) == set()
    assert excluded <= set(root.open("d@2").search(like="k000010", k=10_000).keys())
    for key in excluded:
        with refusal(SampleNotFound, what="like", where="d@3", given=key):
            version.search(like=key)


@pytest.mark.parametrize(
    ("vector", "fault"),
    [
        (np.full(16, np.nan), {"what": "vector", "given": "zero or not finite"}),
        (np.zeros(16), {"what": "vector", "given": "zero or not finite"}),
        ([np.inf] + [1.0] * 15, {"what": "vector", "given": "zero or not finite"}),
        (np.ones(15), {"what": "vector", "given": [15], "accepted": 16}),
        (np.ones((1, 16)), {"what": "vector", "given": [1, 16], "accepted": 16}),
        (["k000001", 3.0], {"what": "like", "given": ["k000001", 3.0], "accepted": 16}),
        ([], {"what": "vector", "given": [0], "accepted": 16}),
    ],
)
def test_vector_without_a_direction_or_of_another_width(version, vector, fault):
    with refusal(FieldMismatch, **fault):
        version.search(like=vector)


def test_queries_out_of_bounds(version):
    for k in (0, 10_001, True, 2.5):
        with refusal(InvalidRuntime, what="k", given=k, accepted="a whole number from 1 to 10,000"):
            version.search(like="k000001", k=k)
    with refusal(InvalidRuntime, what="words", given="none", accepted="words or like"):
        version.search()
    with pytest.raises(FieldNotFound, match=r"no field 'embeding\.npy', did you mean"):
        version.search(like="k000001", field="embeding.npy")
    with pytest.raises(SampleNotFound):
        version.search(like=["k000001", "nobody"])


@pytest.fixture
def hostile(tmp_path):
    """Embeddings that are not finite, zero, of another width or no numbers, between good ones."""
    root = loader.Root(tmp_path / "root")
    vectors = {
        "good": np.array([1, 2, 3], np.float16),
        "nan": np.array([1, np.nan, 3], np.float16),
        "infinite": np.array([np.inf, 1, 1], np.float16),
        "zero": np.zeros(3, np.float16),
        "wide": np.ones(5, np.float16),
        "double": np.array([1, 2, 3.5], np.float64),
        "square": np.ones((3, 3), np.float16),
        "tiny": np.array([6e-8, 0, 0], np.float16),
        "large": np.array([6e4, 6e4, 0], np.float16),
    }
    with root.write("d") as writer:
        for key, vector in vectors.items():
            writer.add(key, {"embedding.npy": vector})
    return root.open("d")


def test_samples_with_unusable_embeddings_are_skipped(hostile):
    result = hostile.search(like="good")
    usable = ["good", "large", "tiny"]
    first = hostile.keys(np.arange(1))[0]
    if first not in usable:  # the layout of the first readable embedding is the field's
        usable = None
    if usable is not None:
        assert result.keys() == usable
        assert np.isfinite(result.scores).all()
    for key in ("nan", "infinite", "zero"):
        with refusal(FieldMismatch, what="embedding.npy", where=f"sample '{key}' of d@1"):
            hostile.search(like=key)


def test_versions_without_an_index_above_the_limit_name_the_command(version, monkeypatch):
    monkeypatch.setattr("loader.dataset.search.similarity.MOST_COMPARED", 99)
    with pytest.raises(
        NotIndexed, match=r"Run penstock index d@3 --field embedding.npy \(about 1 s and 4,768 bytes\)"
    ):
        version.search(like="k000001")
    assert len(version.search(like="k000001", where="w < 90")) == 60


def test_version_without_embeddings_names_its_arrays(tmp_path):
    root = loader.Root(tmp_path / "root")
    with root.write("d") as writer:
        writer.add("a", {"mask.npy": np.ones(3)})
    with refusal(FieldNotFound, what="field", where="d@1", accepted=["embedding.npy", "appearance.npy"]):
        root.open("d").search(like="a")
