"""Clusters, outliers and odd labels as facets and orders of a version's page: each value finds exactly its count."""

import json
from html import unescape
from urllib.parse import urlencode

import numpy as np
import pytest

import loader
from loader.errors import FieldNotFound
from penstock.search.map.stored_map import make_map
from penstock.search.map.version_map import read_map
from tests.refusals import refusal
from tests.view.test_web import Served

N = 90
LABELS = ("cat", "<b>o'wl</b>", None, 'a "dog"')


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = loader.Root(tmp_path_factory.mktemp("map") / "root")
    rng = np.random.default_rng(4)
    means = rng.normal(size=(5, 16))
    with root.write("faces", part_samples=20) as writer:
        for i in range(N):
            vector = means[i % 5] + 0.4 * rng.normal(size=16)
            if i in (5, 11):
                vector[:] = 0
            # Every ninth sample has another label than its neighbours.
            label = LABELS[(i % 5 + (i % 9 == 0)) % 4]
            writer.add(f"f/{i:02d}", {"appearance.npy": vector.astype(np.float16)}, metadata={"label": label})
    root.exclude("faces@1", ["f/03", "f/40"], reason="blurred")
    with root.write("plain") as writer:
        writer.add("a", {"cls": 1})
    make_map(root, "faces@2")
    return root


@pytest.fixture(scope="module")
def site(root):
    server = Served(loader.Root(root.url), recipe=None, writes=True)
    yield server
    server.close()


def record(served, **query):
    answer = served.get(f"/v/faces/2.json?{urlencode(query, doseq=True)}")
    assert answer.status_code == 200, answer.text
    return json.loads(answer.content)


def brute(root):
    """Return (cluster, cosine, share, label) of each sample, None where it has none, sample by sample."""
    version = root.open("faces@2")
    places = read_map(version)
    labels = version.samples().select("label").collect()["label"].to_list()
    rows = []
    for ordinal, label in enumerate(labels):
        if not places.has_place[ordinal]:
            rows.append((None, None, None, label))
            continue
        cluster = int(places.cluster[ordinal])
        own = [labels[i] for i in range(len(labels)) if places.has_place[i] and places.cluster[i] == cluster]
        named = [one for one in own if one is not None]
        share = None
        if label is not None:
            share = named.count(label) / len(named)
        rows.append((cluster, float(places.cluster_cosine[ordinal]), share, label))
    return rows


def by_name(page):
    return {facet["column"]: facet for facet in page["facets"]}


def test_every_value_and_bin_of_the_map_finds_its_count(root, site):
    rows = brute(root)
    lasso = "0,0;65535,0;65535,40000;0,65535"
    for rest in ({"t": "\"label\" = 'cat'"}, {"t": '"cluster" = 1', "lasso": lasso}):
        page = record(site, facet="*", **rest)
        facets = by_name(page)
        assert {"cluster", "cluster_cosine", "label_share"} <= set(facets)
        for name in ("cluster", "cluster_cosine", "label_share"):
            facet = facets[name]
            assert facet["is_counted"]
            others = [term for term in page["terms"] if term not in facet["terms"]]
            for value in [*facet["values"], *facet["bins"]]:
                clicked = record(site, **{**rest, "t": [*others, value["where"]]})
                assert clicked["n_found"] == value["n"], (name, value)
    facets = by_name(record(site, facet="*"))
    counts = {value["value"]: value["n"] for value in facets["cluster"]["values"]}
    clusters = [cluster for cluster, *_ in rows]
    assert counts == {one: clusters.count(one) for one in set(clusters)}
    assert facets["cluster"]["kind"] == "category"
    for position, name in ((1, "cluster_cosine"), (2, "label_share")):
        values = [row[position] for row in rows if row[position] is not None]
        assert (facets[name]["low"], facets[name]["high"]) == (min(values), max(values))
        assert (facets[name]["n"], facets[name]["nulls"]) == (len(values), len(rows) - len(values))


def test_outliers_and_odd_labels_come_first(root, site):
    rows = brute(root)
    for position, name in ((1, "cluster_cosine"), (2, "label_share")):
        for sign in ("", "-"):
            page = record(site, sort=f"{sign}{name}", cols=f"cluster,{name}")
            last = float("inf")

            def place(ordinal, position=position, sign=sign, last=last):
                value = rows[ordinal][position]
                if value is None:
                    return last
                return -value if sign else value

            expected = sorted(range(len(rows)), key=place)[:60]
            assert [row["ordinal"] for row in page["rows"]] == expected
            scores = [rows[ordinal][position] for ordinal in expected]
            assert [row["score"] for row in page["rows"]] == scores
            cluster = rows[expected[0]][0]
            assert page["rows"][0]["columns"]["cluster"] == str(cluster)


def test_term_over_the_map_is_no_sql_of_a_plan(root, site):
    page = record(site, t=['"cluster" = 1', "\"label\" = 'cat'"])
    assert page["map_terms"] == ['"cluster" = 1']
    assert page["sql"] == "\"label\" = 'cat'"
    assert page["n_found"] < len(root.open("faces@2").where(page["sql"]))
    with refusal(FieldNotFound, where="faces@2", given=["cluster"]):
        root.open("faces@2").where('"cluster" = 1')
    first = '"cluster" = 1'
    answer = site.get("/v/faces/2.json?" + urlencode({"where": first}))
    assert answer.status_code == 400
    assert "a column of the map" in json.loads(answer.content)["message"]
    text = site.get("/v/faces/2?" + urlencode({"t": first})).text
    assert "data-found" in text
    who = {"version": "faces@2", "by": "ada", "why": "odd", "page": "/v/faces/2", "name": "first"}
    saved = site.post({**who, "filter": urlencode({"t": first})}, "/slice").json()
    rows = brute(root)
    expected = [ordinal for ordinal, row in enumerate(rows) if row[0] == 1]
    assert (saved["kind"], saved["n_samples"]) == ("list", len(expected))
    members = loader.Root(root.url).open("faces@2").slice("first").members()
    assert np.flatnonzero(members).tolist() == expected


def test_page_offers_the_map_s_facets_once_it_is_read(root):
    own = Served(loader.Root(root.url), recipe=None)
    try:
        assert 'data-column="cluster"' not in own.get("/v/faces/2").text
        part = unescape(own.get("/v/faces/2/map", hx_request="true").text)
        assert 'href="?sort=cluster_cosine"' in part
        assert 'href="?sort=label_share"' in part
        page = own.get("/v/faces/2").text
        assert 'data-column="cluster"' in page
        assert "<b>o'wl" not in page
        assert "<b>o'wl</b>" in unescape(page)
        table = unescape(own.get("/v/faces/2?as=table&cols=cluster,label_share").text)
        assert "sort=-%22cluster%22" in table
        assert "sort=-label_share" in table
        assert own.get("/v/faces/2.json?sort=-%22cluster%22").status_code == 200
        coloured = own.get("/v/faces/2/map.json?colour=cluster").json()
        assert coloured["categories"][0]["n"] >= coloured["categories"][-1]["n"] > 0
    finally:
        own.close()


def test_version_without_a_map_names_the_command(tmp_path):
    root = loader.Root(tmp_path / "root")
    with root.write("bare") as writer:
        for i in range(4):
            writer.add(
                f"b/{i}", {"appearance.npy": np.eye(4, dtype=np.float16)[i]}, metadata={"cluster": i % 2}
            )
    with root.write("faces") as writer:
        writer.add("a", {"appearance.npy": np.ones(4, np.float16)}, metadata={"label": "cat"})
    served = Served(root.url, recipe=None)
    try:
        for query in ("t=%22cluster%22+%3D+1", "sort=cluster_cosine", "cols=label_share"):
            answer = served.get(f"/v/faces/1.json?{query}")
            assert answer.status_code == 400
            assert "run penstock index faces@1 --map" in answer.text
            page = served.get(f"/v/faces/1?{query}")
            assert page.status_code == 200
            assert "run penstock index faces@1 --map" in page.text
        assert "cluster" not in by_name(served.get("/v/faces/1.json?facet=*").json())
        # A stored column of the same name is the column.
        own = served.get("/v/bare/1.json?t=%22cluster%22+%3D+1&facet=*").json()
        assert (own["n_found"], own["sql"], own["map_terms"]) == (2, '"cluster" = 1', [])
        make_map(loader.Root(root.url), "bare@1")
        again = by_name(served.get("/v/bare/1.json?facet=*").json())
        assert again["cluster"]["type"] == "int64"
        assert "label_share" not in again
        assert "cluster_cosine" in again
    finally:
        served.close()
