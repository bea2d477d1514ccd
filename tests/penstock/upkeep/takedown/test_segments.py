"""A takedown of samples whose embeddings and texts are indexed."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import loader
from loader.cache.pages import make_place
from loader.dataset.search.index_record import parse_index_record
from loader.dataset.search.segment_reads import merge_segments, read_segment
from loader.errors import SampleNotFound
from loader.storage import open_store
from penstock.denied.record import read_record
from penstock.search import index_build
from penstock.search.index_build import make_index
from penstock.search.map.stored_fit import read_fit
from penstock.search.map.stored_map import make_map
from penstock.search.map.version_map import map_index_record, read_map
from penstock.upkeep.copying.items import Pace
from penstock.upkeep.gc.derived_segments import segment_kind
from penstock.upkeep.migrate.mirror_update import migrate
from penstock.upkeep.takedown.mirrors import purge_mirror
from penstock.upkeep.takedown.remains import cache_places, purge_cache
from penstock.upkeep.verify.root import verify_root

SECRET = "ZQALICEZQ"


@pytest.fixture
def root(tmp_path):
    root = loader.Root(tmp_path / "root")
    rng = np.random.default_rng(3)
    for first in (0, 8):
        with root.write("photos", part_samples=4) as writer:
            for i in range(first, first + 8):
                subject = SECRET if i == 5 else "bob"
                fields = {
                    "embedding.npy": rng.normal(size=6).astype(np.float32),
                    "caption.txt": f"cup {subject} {i}",
                }
                writer.add(f"k{i}", fields, {"w": i}, {"subject": subject})
    make_index(root, "photos")
    return root


def index_values(root):
    """Return every code and text that is stored under `search/`."""
    values = []
    for info in root.store.list("search/"):
        if info.key.endswith(".parquet"):
            table = pq.read_table(f"{root.url}/{info.key}")
            values += [value for value in table.column(2).to_pylist() if value is not None]
    return values


def test_codes_and_texts_lose_the_sample_and_the_others_are_indexed_again(kit, root):
    before = index_values(root)
    codes = {value for value in before if isinstance(value, bytes)}
    n = kit.deny(root)
    kit.take_down(root, n)
    kit.sweep(root)
    assert kit.found(root, SECRET) == []
    assert kit.prove(root, n)["result"] == "complete"
    version = root.open("photos")
    after = index_values(root)
    assert len(after) == len(before) - 2
    assert len(codes - set(after)) == 1
    index, texts = make_index(root, "photos").fields
    assert (index.n_new, texts.n_new) == (0, 0)
    result = version.search(like="k1", k=100)
    assert len(result) == 15
    assert len(version.search("cup")) == 15
    with pytest.raises(SampleNotFound):
        version.search(like="k5")


def test_segment_of_a_maker_that_was_late_makes_the_proof_incomplete(kit, root):
    stored = {info.key: root.store.get(info.key).data for info in root.store.list("search/")}
    n = kit.deny(root)
    kit.take_down(root, n)
    kit.sweep(root)
    late = [key for key in stored if not list(root.store.list(key))]
    assert len(late) == 2  # codes and texts of the transaction with the sample
    for key in late:
        root.store.put(key, stored[key])
    proof = kit.prove(root, n)
    assert proof["result"] == "incomplete"
    assert sorted(one["path"] for one in proof["places"] if not one["clean"]) == sorted({*late})
    kit.take_down(root, n)
    assert kit.prove(root, n)["result"] == "complete"


def test_proof_searches_segments_that_no_run_recorded(kit, root):
    """A maker that merged two segments while the takedown ran."""
    paths = [info.key for info in root.store.list("search/") if info.key.endswith(".texts.parquet")]
    folder = paths[0].rpartition("/")[0] + "/"
    kind = segment_kind(paths[0])
    kind = replace(kind, columns=pa.schema([("text", pa.string())]))
    segments = [read_segment(root.store, path, kind) for path in paths]
    ((merged, data),) = merge_segments(segments, folder, kind)
    n = kit.deny(root)
    kit.take_down(root, n)
    kit.sweep(root)
    root.store.put(merged, data)
    proof = kit.prove(root, n)
    assert [one["path"] for one in proof["places"] if not one["clean"]] == [merged]
    kit.take_down(root, n)
    assert kit.prove(root, n)["result"] == "complete"
    assert len(root.open("photos").search("cup")) == 15


def test_unreadable_segments_go_as_they_cannot_be_searched(kit, root):
    key = next(info.key for info in root.store.list("search/") if info.key.endswith(".texts.parquet"))
    root.store.put(key, b"PAR1" + SECRET.encode())
    n = kit.deny(root)
    kit.take_down(root, n)
    kit.sweep(root)
    assert kit.found(root, SECRET) == []
    assert kit.prove(root, n)["result"] == "complete"


def test_fields_without_an_index_get_none(kit, root):
    index_build.drop_index(root, "photos")
    n = kit.deny(root)
    kit.take_down(root, n)
    assert not list(root.store.list("search/"))


def test_local_codes_of_the_sample_go_from_a_node_cache(kit, root, tmp_path):
    folder = tmp_path / "cache"
    make_place(str(folder))
    root.open("photos").search(like="k1", cache=folder)
    before = set((folder / "search").iterdir())
    n = kit.deny(root)
    kit.take_down(root, n)
    record = read_record(root.store, n)
    assert purge_cache(str(folder), record, root) == 2
    assert len(before - set((folder / "search").iterdir())) == 2
    assert all(place["clean"] for place in cache_places(record, [str(folder)], root))
    assert root.open("photos").search(like="k1", cache=folder).ordinals[0] >= 0


@pytest.fixture
def extreme(tmp_path):
    """A root whose denied sample alone has the largest first number, as the end of a range shows."""
    root = loader.Root(tmp_path / "extreme")
    rng = np.random.default_rng(4)
    for first in (0, 8):
        with root.write("photos", part_samples=4) as writer:
            for i in range(first, first + 8):
                vector = rng.normal(size=6)
                vector[0] = 100 if i == 5 else -abs(vector[0])
                fields = {"embedding.npy": vector.astype(np.float32)}
                writer.add(f"k{i}", fields, {}, {"subject": SECRET if i == 5 else "bob"})
    make_index(root, "photos")
    return root


def record_of_index(root):
    (path,) = [info.key for info in root.store.list("search/") if info.key.endswith("/how.json")]
    return parse_index_record(root.store.get(path).data, path)


def index_objects(root):
    return {info.key: root.store.get(info.key).data for info in root.store.list("search/")}


def unclean(proof):
    return [one["path"] for one in proof["places"] if not one["clean"]]


def test_ranges_are_made_again_because_their_ends_are_numbers_of_samples(kit, extreme):
    before = record_of_index(extreme)
    stored = extreme.store.get(before.path).data
    assert before.high[0] > 0.99
    n = kit.deny(extreme)
    kit.take_down(extreme, n)
    kit.sweep(extreme)
    after = record_of_index(extreme)
    assert after.high[0] < 0.1
    assert after.version == extreme.open("photos").id
    assert kit.prove(extreme, n)["result"] == "complete"
    made = index_objects(extreme)
    index_build.drop_index(extreme, "photos")
    make_index(extreme, "photos")
    assert index_objects(extreme) == made, "an index made anew is the same"
    extreme.store.put(before.path, stored)
    assert unclean(kit.prove(extreme, n)) == [before.path]
    kit.take_down(extreme, n)
    assert kit.prove(extreme, n)["result"] == "complete"
    assert index_objects(extreme) == made


def test_ranges_of_an_earlier_release_name_no_version_and_are_made_again(kit, extreme):
    how = record_of_index(extreme)
    stored = replace(how, version="").to_bytes()
    assert b"version" not in stored
    n = kit.deny(extreme)
    kit.take_down(extreme, n)
    kit.sweep(extreme)
    extreme.store.put(how.path, stored)
    assert unclean(kit.prove(extreme, n)) == [how.path]
    kit.take_down(extreme, n)
    assert record_of_index(extreme).high[0] < 0.1


def test_index_of_another_dataset_stays(kit, extreme):
    with extreme.write("other") as writer:
        writer.add("a", {"embedding.npy": np.arange(6, dtype=np.float32)})
    make_index(extreme, "other")
    before = index_objects(extreme)
    n = kit.deny(extreme)
    kit.take_down(extreme, n)
    kept = [path for path, data in index_objects(extreme).items() if before.get(path) == data]
    assert len(kept) == 2


@pytest.mark.parametrize("n_deleted", [1, 2])
def test_killed_takedown_leaves_no_codes_under_other_ranges(kit, extreme, monkeypatch, n_deleted):
    n = kit.deny(extreme)
    delete_many = type(extreme.store).delete_many

    def delete_then_interrupt(store, paths):
        if not any(path.startswith("search/") for path in paths):
            return delete_many(store, paths)
        delete_many(store, paths[:n_deleted])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(extreme.store), "delete_many", delete_then_interrupt)
        with pytest.raises(KeyboardInterrupt):
            kit.take_down(extreme, n)
    kit.take_down(extreme, n)
    after = index_objects(extreme)
    assert record_of_index(extreme).high[0] < 0.1
    index_build.drop_index(extreme, "photos")
    make_index(extreme, "photos")
    assert index_objects(extreme) == after


def test_local_codes_go_with_their_ranges(kit, extreme, tmp_path):
    folder = tmp_path / "cache"
    make_place(str(folder))
    extreme.open("photos").search(like="k1", cache=folder)
    n = kit.deny(extreme)
    kit.take_down(extreme, n)
    record = read_record(extreme.store, n)
    assert [place["clean"] for place in cache_places(record, [str(folder)], extreme)] == [False]
    purge_cache(str(folder), record, extreme)
    assert not list((folder / "search").iterdir())
    extreme.open("photos").search(like="k1", cache=folder)
    assert list((folder / "search").iterdir())
    assert [place["clean"] for place in cache_places(record, [str(folder)], extreme)] == [True]


def test_map_without_an_index_is_made_again(kit, root):
    make_map(root, "photos")
    index_build.drop_index(root, "photos")
    n = kit.deny(root)
    kit.take_down(root, n)
    assert read_map(root.open("photos")).has_place.tolist() == [True] * 15
    assert not list(root.store.list("search/"))
    kit.sweep(root)
    assert kit.prove(root, n)["result"] == "complete"


def unit_vector(version, key):
    vector = version[version.keys(np.arange(len(version))).index(key)]["embedding.npy"]
    return vector / np.linalg.norm(vector)


def nearest_anchor(root, direction):
    """Return the cosine of the map's anchor that is the most similar to a vector."""
    fit = read_fit(root.store, map_index_record(root.open("photos"), None))
    return (fit.anchors @ direction).max()


def test_map_is_made_again_because_its_anchors_are_vectors_of_samples(kit, root):
    make_map(root, "photos")
    direction = unit_vector(root.open("photos"), "k5")
    assert nearest_anchor(root, direction) > 0.9999
    n = kit.deny(root)
    kit.take_down(root, n)
    places = read_map(root.open("photos"))
    assert (places.has_place.tolist(), places.damaged) == ([True] * 15, {})
    assert nearest_anchor(root, direction) < 0.9999
    kit.sweep(root)
    assert kit.prove(root, n)["result"] == "complete"
    assert verify_root(root).problems == []
    made = {info.key: root.store.get(info.key).data for info in root.store.list("maps/")}
    kit.take_down(root, n)
    assert {info.key: root.store.get(info.key).data for info in root.store.list("maps/")} == made


def test_fit_of_a_maker_that_was_killed_goes(kit, root):
    """It has anchors, and no segment names the sample yet."""
    make_map(root, "photos")
    fit = next(info.key for info in root.store.list("maps/") if info.key.endswith("fit.parquet"))
    root.store.delete_many([info.key for info in root.store.list("maps/") if info.key != fit])
    stored = root.store.get(fit).data
    direction = unit_vector(root.open("photos"), "k5")
    n = kit.deny(root)
    kit.take_down(root, n)
    assert nearest_anchor(root, direction) < 0.9999
    kit.sweep(root)
    root.store.put(fit, stored)
    proof = kit.prove(root, n)
    assert [one["path"] for one in proof["places"] if not one["clean"]] == [fit]
    kit.take_down(root, n)
    assert kit.prove(root, n)["result"] == "complete"


def test_map_of_another_dataset_stays(kit, root):
    with root.write("other") as writer:
        writer.add("a", {"embedding.npy": np.ones(6, np.float32)})
    make_map(root, "other")
    before = {info.key: root.store.get(info.key).data for info in root.store.list("maps/")}
    n = kit.deny(root)
    kit.take_down(root, n)
    assert {info.key: root.store.get(info.key).data for info in root.store.list("maps/")} == before


def test_mirror_loses_the_fit_with_the_samples_vector(kit, root, tmp_path):
    make_map(root, "photos")
    mirror = open_store(str(tmp_path / "mirror"))
    migrate(root, mirror, Pace())
    (fit,) = [info.key for info in mirror.list("maps/") if info.key.endswith("fit.parquet")]
    before = mirror.get(fit).data
    n = kit.deny(root)
    kit.take_down(root, n)
    kit.sweep(root)
    assert root.store.get(fit).data != before
    place = next(
        one for one in kit.prove(root, n, mirrors=[mirror.url])["places"] if one["check"] == "mirror"
    )
    assert not place["clean"]
    purge_mirror(mirror.url, read_record(root.store, n), root.store)
    assert not list(mirror.list(fit))
    migrate(root, mirror, Pace())
    assert mirror.get(fit).data == root.store.get(fit).data
    assert not [path for path in index_paths(mirror) if path not in index_paths(root.store)]


def index_paths(store):
    return [info.key for prefix in ("search/", "maps/") for info in store.list(prefix)]
