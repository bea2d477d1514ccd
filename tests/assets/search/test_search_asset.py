"""The asset `search`: an index after each version, and a check of its recall that blocks nothing."""

import dagster as dg
import numpy as np
import pytest

import loader
from assets.search import search_asset as module
from assets.search.search_asset import index_newest, search_asset
from assets.search_settings import Search
from assets.spec import DatasetSpec, Feature
from loader.errors import InvalidSpec
from penstock.search.map.version_map import read_map
from resources.storage import RootResource
from tests.dataset.search.vectors import SHAPES, write_vectors
from tests.refusals import refusal

SEARCH = Search(like=("appearance.npy",), words=("caption.txt",))
SPEC = DatasetSpec(name="d", features=(Feature(name="appearance"),), search=SEARCH)


@pytest.fixture
def root(tmp_path):
    root = loader.Root(tmp_path / "root")
    write_vectors(root, SHAPES["clustered"](400, 12, np.random.default_rng(1)))
    return root


def materialize_search(root, search, instance):
    result = dg.materialize(
        [search_asset(SPEC, search)],
        instance=instance,
        resources={"root": RootResource(url=root.url)},
        run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
    )
    assert result.success
    (check,) = result.get_asset_check_evaluations()
    return check


def test_newest_version_is_indexed_and_its_recall_is_measured(root, instance):
    search = Search(like=("embedding.npy",), words=("caption.txt",))
    check = materialize_search(root, search, instance)
    assert check.passed
    assert check.metadata["recall of embedding.npy"].value >= 0.99
    assert check.metadata["bytes"].value > 400 * 12
    assert check.metadata["version"].value == "d@1"
    assert not root.open("d").search(like="k000001").exact
    assert len(list(root.store.list("search/"))) == 4


def test_recall_below_the_limit_warns_and_blocks_nothing(root, instance, monkeypatch):
    monkeypatch.setattr(module, "measure_recall", lambda version, field: 0.94)
    check = materialize_search(root, Search(like=("embedding.npy",)), instance)
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert not check.blocking


def test_codes_that_do_not_rank_have_a_low_recall(root, instance, monkeypatch):
    monkeypatch.setattr(
        "penstock.search.index_build.encode", lambda vectors, how: np.zeros(vectors.shape, np.uint8)
    )
    check = materialize_search(root, Search(like=("embedding.npy",)), instance)
    assert not check.passed
    assert check.metadata["recall of embedding.npy"].value < 0.6


def test_field_that_the_version_lacks_is_named(root, instance):
    check = materialize_search(root, SEARCH, instance)
    assert not check.passed
    assert "has no field 'appearance.npy'" in check.metadata["not indexed: appearance.npy"].value
    assert index_newest(root, "d", SEARCH).recall == {}


def test_map_is_made_after_each_version_on_the_same_fit(root, instance):
    search = Search(like=("embedding.npy",), map=True)
    check = materialize_search(root, search, instance)
    assert check.passed
    assert check.metadata["samples on the map"].value == 400
    fit = [info.key for info in root.store.list("maps/") if info.key.endswith("/fit.parquet")]
    stored = root.store.get(fit[0]).data
    write_vectors(root, SHAPES["clustered"](50, 12, np.random.default_rng(2)), first=400)
    assert index_newest(root, "d", search).n_mapped == 450
    assert read_map(root.open("d")).has_place.all()
    assert root.store.get(fit[0]).data == stored


def test_no_map_is_made_unless_the_spec_asks_for_one(root, instance):
    check = materialize_search(root, Search(like=("embedding.npy",)), instance)
    assert "samples on the map" not in check.metadata
    assert not list(root.store.list("maps/"))


def test_damaged_fit_is_named_and_the_fields_are_indexed(root):
    search = Search(like=("embedding.npy",), map=True)
    index_newest(root, "d", search)
    (fit,) = [info.key for info in root.store.list("maps/") if info.key.endswith("/fit.parquet")]
    root.store.put(fit, b"no table")
    indexed = index_newest(root, "d", search)
    assert not indexed.passed
    assert fit in indexed.left_out["map"]
    assert indexed.recall["embedding.npy"] >= 0.99
    assert indexed.n_mapped is None


def test_dataset_without_a_version_has_no_index(tmp_path, instance):
    root = loader.Root(tmp_path / "root")
    root.create()
    check = materialize_search(root, SEARCH, instance)
    assert check.passed
    assert check.metadata["version"].value == "none yet"


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"like": (), "words": ()}, {"what": "like and words"}),
        ({"like": "embedding.npy"}, {"what": "like", "given": "embedding.npy"}),
        ({"like": ("caption.txt",)}, {"what": "like", "given": "caption.txt"}),
        (
            {"like": ("dino.npy",), "map": True},
            {"what": "map", "given": ("dino.npy",)},
        ),
        ({"words": ("embedding.npy",)}, {"what": "words", "given": "embedding.npy"}),
    ],
)
def test_settings_that_are_refused(settings, fault):
    with refusal(InvalidSpec, where="Search", **fault):
        Search(**settings)


def test_spec_refuses_an_embedding_that_no_featurizer_makes():
    with refusal(InvalidSpec, what="like", where="d", given="embedding.npy"):
        DatasetSpec(name="d", features=(Feature(name="appearance"),), search=Search())
    assert DatasetSpec(name="d").search is None
