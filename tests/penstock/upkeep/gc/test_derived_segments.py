"""Collectors and segments: what no version needs goes, and an index stays whole."""

from collections import Counter

import numpy as np

import loader
from penstock.search.index_build import make_index
from penstock.upkeep.gc import Moment, Options, collect
from tests.dataset.search.vectors import SHAPES, write_vectors

HOUR_US = 3_600_000_000


def write_root(tmp_path, batches):
    root = loader.Root(tmp_path / "root")
    vectors = SHAPES["clustered"](10 * batches, 8, np.random.default_rng(1))
    for number in range(batches):
        write_vectors(root, vectors[10 * number : 10 * number + 10], first=10 * number, part_samples=5)
        if batches > 2:
            make_index(root, "d", "embedding.npy")
    make_index(root, "d", "embedding.npy")
    return root


def paths(root):
    return {info.key for info in root.store.list("search/")}


def collect_all(root):
    """Collect until silent readers count as dead, and their versions' grace is over; return the reasons."""
    reasons = Counter()
    for hours in (0, 100, 300, 500):
        at = Moment(at_us=hours * HOUR_US, run="one", run_us=hours * HOUR_US)
        reasons.update(collect(root, Options(name="c"), apply=True, at=at).swept.why)
    return reasons


def test_index_of_living_versions_stays(tmp_path):
    root = write_root(tmp_path, 2)
    before = paths(root)
    assert len(before) == 3
    root.exclude("d", ["k000003"], reason="blurred")
    root.retire("d@1", reason="old")
    collect_all(root)
    assert paths(root) == before


def test_merged_segments_go_and_the_index_stays_whole(tmp_path):
    root = write_root(tmp_path, 17)
    assert len(paths(root)) == 19  # 16 of one transaction, a merged one, a later one, and the record
    assert collect_all(root)["segment whose parts are in a larger one"] == 16
    assert len(paths(root)) == 3
    (index,) = make_index(root, "d", "embedding.npy").fields
    assert (index.n_new, index.n_segments) == (0, 2)
    assert len(root.open("d@1").search(like="k000001", k=100)) == 10


def test_segments_whose_merged_one_is_damaged_stay(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.search.missing_parts.MERGE_AT", 3)
    root = write_root(tmp_path, 4)
    merged = max(root.store.list("search/"), key=lambda info: info.nbytes).key
    data = root.store.get(merged).data
    root.store.put(merged, data[:200] + bytes([data[200] ^ 1]) + data[201:])
    why = collect_all(root)
    assert why["segment that cannot be read"] == 1
    assert why["segment whose parts are in a larger one"] == 0
    assert len(paths(root)) == 5
    assert len(root.open("d").search(like="k000001", k=200, cache=tmp_path / "cache")) == 40


def test_segments_of_no_version_go(tmp_path):
    root = write_root(tmp_path, 2)
    for name in ("d@1", "d@2"):
        root.retire(name, reason="old")
    why = collect_all(root)
    assert why["segment of no version"] == 2
    assert why["record without segments"] == 1
    assert paths(root) == set()


def test_damaged_segments_go_and_others_are_foreign(tmp_path):
    root = write_root(tmp_path, 2)
    (key,) = [key for key in paths(root) if key.endswith(".parquet")][:1]
    root.store.put(key, b"x" * 100)
    root.store.put("search/photo.jpg", b"x")
    assert collect_all(root)["segment that cannot be read"] == 1
    assert "search/photo.jpg" in paths(root)
    (index,) = make_index(root, "d", "embedding.npy").fields
    assert (index.n_new, index.damaged) == (10, {})


def test_dry_run_deletes_nothing(tmp_path):
    root = write_root(tmp_path, 17)
    before = paths(root)
    for hours in (0, 100):
        at = Moment(at_us=hours * HOUR_US, run="one", run_us=hours * HOUR_US)
        collect(root, Options(name="c"), at=at)
    assert paths(root) == before
