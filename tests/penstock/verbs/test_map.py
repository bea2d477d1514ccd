"""`penstock index --map`, `penstock search --lasso` and `penstock slice save --lasso`."""

import numpy as np
import pytest

import loader
from penstock.search.map.lasso import in_lasso, lasso_grid, parse_lasso
from penstock.search.map.version_map import read_map
from tests.dataset.search.vectors import SHAPES, write_vectors

LASSO = "3000,3000;60000,4000;40000,40000;5000,30000"
WHO = ("--by", "ann", "--why", "odd ones")


@pytest.fixture
def root(tmp_path):
    root = loader.Root(tmp_path / "root")
    vectors = SHAPES["clustered"](60, 8, np.random.default_rng(1))
    write_vectors(root, vectors, dataset="demo", part_samples=20)
    return root


def test_lasso_of_search_and_slice_are_those_of_the_map(root, cli):
    report = cli("index", "demo", "--map", "--json", root=root.url).json["map"]
    facts = (report["field"], report["n_samples"], report["n_new"], report["n_anchors"])
    assert facts == ("embedding.npy", 60, 60, 60)
    version = root.open("demo")
    places = read_map(version)
    inside = in_lasso(lasso_grid(parse_lasso(LASSO)), places.x, places.y)
    keys = np.array(version.keys(np.arange(60)))
    expected = keys[inside].tolist()
    assert 0 < len(expected) < 60

    body = cli("search", "demo", "--lasso", LASSO, "--json", root=root.url).json
    assert [sample["key"] for sample in body["found"]] == expected
    assert (body["exact"], body["found"][0]["score"]) == (True, None)
    third = version.samples().select("third").collect()["third"].to_numpy() == 1
    narrowed = cli("search", "demo", "--lasso", LASSO, "--where", "third = 1", "--keys", root=root.url)
    assert narrowed.out.split() == keys[inside & third].tolist()
    like = cli(
        "search", "demo", "--lasso", LASSO, "--like", keys[0], "--k", "60", "--json", root=root.url
    ).json
    assert sorted(sample["key"] for sample in like["found"]) == sorted(expected)
    words = cli("search", "demo", "cup 1*", "--lasso", LASSO, "--k", "60", "--json", root=root.url).json
    assert {sample["key"] for sample in words["found"]} <= set(expected)

    saved = cli("slice", "save", "demo", "left", "--lasso", LASSO, *WHO, "--json", root=root.url).json
    assert (saved["kind"], saved["n_samples"]) == ("list", len(expected))
    assert len(root.open("demo").slice("left")) == len(expected)
    of_slice = cli("search", "demo", "--lasso", LASSO, "--in", "left", "--keys", root=root.url)
    assert of_slice.out.split() == expected
    within = cli("search", "demo", "--lasso", LASSO, "--not", "left", "--json", root=root.url).json
    assert within["found"] == []


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("search", "demo", "--lasso", "1,2;3,4"), "has 2 corners: a lasso is 3 to 64 corners"),
        (("search", "demo", "--lasso", "1,2;3,4;5,x"), "has the number 'x'"),
        (("search", "demo", "--lasso", LASSO, "--k", "10001"), "a whole number from 1 to 10,000 is needed"),
        (("slice", "save", "demo", "x", "--lasso", ";".join(["1,2"] * 65), *WHO), "has 65 corners"),
        (
            ("search", "demo", "--lasso", LASSO),
            "demo@1 has no map of 'embedding.npy': run penstock index demo@1 --map",
        ),
    ],
)
def test_errors_are_one_sentence_and_status_2(root, cli, arguments, what):
    if what.startswith("a whole number"):
        cli("index", "demo", "--map", root=root.url)
    done = cli(*arguments, root=root.url)
    assert done.code == 2
    assert what in done.err
    assert "Traceback" not in done.err


def test_map_is_dropped_and_damage_is_made_again(root, cli):
    text = cli("index", "demo", "--map", root=root.url).out
    assert "map of embedding.npy: 60 samples, 60 rows new, 8 clusters" in text
    (segment,) = [info.key for info in root.store.list("maps/") if not info.key.endswith("fit.parquet")]
    data = bytearray(root.store.get(segment).data)
    data[200] ^= 1
    root.store.put(segment, bytes(data))
    again = cli("index", "demo", "--map", root=root.url)
    assert again.code == 0
    assert "map of embedding.npy: 60 samples, 60 rows new, 8 clusters" in again.out
    dropped = cli("index", "demo", "--map", "--drop", "--json", root=root.url).json["deleted"]
    assert segment in dropped
    assert list(root.store.list("maps/")) == []
    assert list(root.store.list("search/")), "the index stays"
