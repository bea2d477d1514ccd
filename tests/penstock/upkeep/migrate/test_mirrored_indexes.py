"""Indexes and maps on a mirror: it searches with them, and has none that the primary dropped."""

import numpy as np
import pytest

import loader
from loader.errors import Conflict
from loader.storage import open_store
from penstock.search.index_build import drop_index, make_index
from penstock.search.map.stored_map import drop_map, make_map
from penstock.search.map.version_map import read_map
from penstock.upkeep.copying.items import Pace
from penstock.upkeep.migrate.mirror_update import migrate
from penstock.upkeep.verify.root import verify_root
from tests.dataset.search.vectors import SHAPES, write_vectors
from tests.refusals import refusal


@pytest.fixture
def root(tmp_path):
    root = loader.Root(tmp_path / "root")
    vectors = SHAPES["clustered"](60, 12, np.random.default_rng(1))
    write_vectors(root, vectors[:40])
    make_index(root, "d")
    make_map(root, "d")
    write_vectors(root, vectors[40:], first=40)
    return root


@pytest.fixture
def place(tmp_path):
    return open_store(str(tmp_path / "mirror"))


def derived_objects(store):
    return {
        info.key: store.get(info.key).data for prefix in ("search/", "maps/") for info in store.list(prefix)
    }


def test_mirror_searches_with_the_primarys_indexes(root, place, monkeypatch):
    assert migrate(root, place, Pace()).failures == {}
    make_index(root, "d")
    make_map(root, "d")
    assert migrate(root, place, Pace()).failures == {}
    assert derived_objects(place) == derived_objects(root.store)
    mirror = loader.Root(place.url)
    version = mirror.open("d")
    monkeypatch.setattr("loader.dataset.search.similarity.MOST_COMPARED", 0)
    monkeypatch.setattr("loader.dataset.search.text_index.MOST_READ", 0)
    result = version.search(like="k000005", k=60)
    assert result.keys() == root.open("d").search(like="k000005", k=60).keys()
    assert version.search("red cup").keys() == root.open("d").search("red cup").keys()
    assert read_map(version).x.tolist() == read_map(root.open("d")).x.tolist()
    report = verify_root(mirror, full=True)
    assert (report.problems, report.n_foreign) == ([], 0)
    for change in (make_index, make_map, drop_index, drop_map):
        with refusal(Conflict, what="mirror", where=mirror.url, accepted=root.url):
            change(mirror, "d")


def test_mirror_has_no_segment_of_a_map_that_was_dropped(root, place):
    migrate(root, place, Pace())
    before = derived_objects(place)
    drop_map(root, "d")
    make_map(root, "d")
    drop_index(root, "d", "caption.txt")
    migrate(root, place, Pace())
    assert derived_objects(place) == derived_objects(root.store)
    assert before.keys() != derived_objects(place).keys()
