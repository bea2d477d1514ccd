"""The groups of a version: near-duplicates beside brute force, and clusters that lead to their samples."""

import json
from html import unescape
from urllib.parse import urlencode

import numpy as np
import pytest

import loader
from penstock.search.map.stored_map import make_map
from penstock.search.map.version_map import read_map
from penstock.view.facets.version_columns import VersionColumns
from penstock.view.maps import duplicates as duplicates_module
from penstock.view.maps.duplicates import duplicates
from penstock.view.maps.groups_record import groups_record
from tests.view.test_web import Served

COPIES = {30: 3, 31: 3, 32: 30, 40: 7}
"""Sample -> the sample that it is nearly equal to."""
HOSTILE = "k/'<i>\u202e\", 5"


def write_copies(root, n=60, *, marks=False):
    """Publish vectors with a few near-equal ones. marks: name the originals in `dup_of`."""
    rng = np.random.default_rng(7)
    vectors = rng.normal(size=(n, 16))
    for copy, original in COPIES.items():
        vectors[copy] = vectors[original] + 0.02 * rng.normal(size=16)
    vectors[50] = 0
    with root.write("faces", part_samples=20) as writer:
        for i in range(n):
            key = HOSTILE if i == 7 else f"f/{i:02d}"
            metadata = {"label": "<u>cat</u>" if i % 3 else "dog"}
            if marks:
                metadata["dup_of"] = None
                if i in COPIES:
                    original = COPIES[i]
                    metadata["dup_of"] = HOSTILE if original == 7 else f"f/{original:02d}"
            fields = {
                "appearance.npy": vectors[i].astype(np.float16),
                "caption.txt": f"a sample number{'abcd'[i % 4]}",
            }
            writer.add(key, fields, metadata=metadata)
    return root.open("faces@latest")


def components(version, least_cosine, compared=None):
    """Return the groups of ordinals, pair by pair."""
    vectors = {}
    for ordinal in sorted(compared or range(len(version))):
        vector = np.asarray(version[ordinal]["appearance.npy"], np.float64)
        if vector.any():
            vectors[ordinal] = vector / np.linalg.norm(vector)
    group = {ordinal: {ordinal} for ordinal in vectors}
    for first in vectors:
        for second in vectors:
            if vectors[first] @ vectors[second] >= least_cosine:
                joined = group[first] | group[second]
                for one in joined:
                    group[one] = joined
    several = {tuple(sorted(one)) for one in group.values() if len(one) > 1}
    return sorted(several, key=lambda one: (-len(one), one))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = loader.Root(tmp_path_factory.mktemp("groups") / "root")
    write_copies(root)
    root.exclude("faces@1", ["f/31"], reason="blurred")
    make_map(root, "faces@2")
    return root


@pytest.fixture(scope="module")
def site(root):
    server = Served(loader.Root(root.url), recipe=None)
    yield server
    server.close()


def query_groups(served, **query):
    return json.loads(served.get(f"/v/faces/2.json?{urlencode(query)}").content)


def test_near_duplicates_are_the_components_of_near_pairs(root, site):
    version = root.open("faces@2")
    for cosine in ("", "0.95", "0.5", "1"):
        record = site.get(f"/v/faces/2/groups.json?cosine={cosine}").json()
        expected = components(version, float(cosine or 0.95))
        assert [tuple(group["ordinals"]) for group in record["duplicates"]] == [one[:12] for one in expected]
        assert [group["n"] for group in record["duplicates"]] == [len(one) for one in expected]
        assert (record["n_groups"], record["n_compared"]) == (len(expected), 58)
        assert record["column"] == ""
        for group in record["duplicates"]:
            page = query_groups(site, where=group["where"])
            assert (page["n_found"], page["error"]) == (group["n_where"], "")
            if group["n"] <= 60:
                assert group["n_where"] == group["n"]
                assert tuple(row["ordinal"] for row in page["rows"])[:12] == tuple(group["ordinals"])
    assert len(components(version, 0.95)) == 2


def test_clusters_are_told_and_lead_to_their_samples(root, site):
    record = site.get("/v/faces/2/groups.json").json()
    places = read_map(root.open("faces@2"))
    assert record["errors"] == []
    assert record["n_texts"] == 58
    sizes = np.bincount(places.cluster[places.has_place])
    assert [group["n"] for group in record["clusters"]] == sorted(sizes.tolist(), reverse=True)
    for group in record["clusters"]:
        page = query_groups(site, t=group["where"])
        assert page["n_found"] == group["n"] == sizes[group["cluster"]]
        labels = [row["columns"]["label"] for row in page["rows"]]
        assert labels.count(group["label"]) == max(labels.count(one) for one in set(labels))
        assert group["label_share"] == labels.count(group["label"]) / len(labels)
        keys = {row["key"] for row in page["rows"]}
        assert group["key"] in keys
    assert any("number" in word for group in record["clusters"] for word in group["words"])


def test_page_shows_hostile_labels_and_keys_as_text(site):
    page = site.get("/v/faces/2/groups").text
    assert "<u>cat" not in page
    assert "<u>cat</u>" in unescape(page)
    assert "<i>" not in page
    assert "\u202e" not in page
    assert 'href="../../../v/faces/2?t=%22cluster%22+=+0"' in page
    assert 'aria-current="page"' in page


def test_column_of_copies_names_the_groups(tmp_path, monkeypatch):
    root = loader.Root(tmp_path / "root")
    write_copies(root, marks=True)
    # The original of 30 and 31 goes: its copies stay one group.
    root.exclude("faces@1", ["f/03"], reason="worse")
    version = root.open("faces@2")
    record = groups_record(version, VersionColumns())
    keys = [set(group.keys) for group in record.duplicates]
    assert record.column == "dup_of"
    assert keys == [{"f/30", "f/31", "f/32"}, {HOSTILE, "f/40"}]
    assert "run penstock index faces@2 --map" in record.errors[0]
    assert record.n_left_out == 0
    monkeypatch.setattr(duplicates_module, "MOST_COPIES", 3)
    bounded = groups_record(version, VersionColumns())
    assert bounded.n_left_out == 1
    served = Served(root, recipe=None)
    try:
        assert "1 further copy not searched" in served.get("/v/faces/2/groups").text
    finally:
        served.close()


def test_large_version_compares_the_fullest_cells(root, monkeypatch):
    """Copies lie on one place, and so in one cell of the map."""
    version = root.open("faces@2")
    columns = VersionColumns()
    monkeypatch.setattr(duplicates_module, "MOST_COMPARED", 20)
    found = duplicates(version, "appearance.npy", 0.5, columns)
    places = columns.places(version)
    placed = np.flatnonzero(places.has_place).tolist()
    cells = [(int(places.x[one]) // 64, int(places.y[one]) // 64) for one in placed]
    order = sorted(range(len(placed)), key=lambda i: (-cells.count(cells[i]), cells[i], i))
    compared = {placed[i] for i in order[:20]}
    assert found.n_compared == 20
    assert [tuple(group) for group in found.groups] == components(version, 0.5, compared)
    assert len(cells) > len(set(cells))


@pytest.mark.parametrize("cosine", ["0.2", "2", "nan", "x" * 1000, "<b>"])
def test_wrong_bound_is_named(site, cosine):
    answer = site.get("/v/faces/2/groups?" + urlencode({"cosine": cosine}))
    assert answer.status_code == 400
    assert "pass a number from 0.5 to 1" in answer.text
    assert "<b>" not in answer.text.partition("cosine")[2][:60]


def test_version_without_vectors_says_so(tmp_path):
    root = loader.Root(tmp_path / "root")
    with root.write("plain") as writer:
        writer.add("a", {"cls": 1})
    served = Served(root.url, recipe=None)
    try:
        page = served.get("/v/plain/1/groups")
        assert page.status_code == 200
        assert "has no field embedding.npy or appearance.npy" in page.text
        assert served.get("/v/plain/1/groups.json").json()["duplicates"] == []
    finally:
        served.close()
