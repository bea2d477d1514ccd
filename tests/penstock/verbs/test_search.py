"""`penstock search` and `penstock index`."""

import numpy as np
import pytest

import loader
from penstock.view.runs.highest_loss import worst_slot
from tests.dataset.search.vectors import SHAPES, nearest, read_vectors, write_vectors

BATCH = 6


@pytest.fixture
def root(tmp_path):
    root = loader.Root(tmp_path / "root")
    vectors = SHAPES["clustered"](60, 8, np.random.default_rng(1))
    vectors[1] = vectors[0]
    write_vectors(root, vectors, dataset="demo", part_samples=20)
    return root


def test_json_has_the_samples_and_what_was_compared(root, cli):
    version = root.open("demo")
    vectors = read_vectors(version)
    keys = version.keys(np.arange(len(version)))
    for exact in (True, False):
        body = cli("search", "demo", "--like", keys[7], "--k", "5", "--json", root=root.url).json
        assert sorted(body) == ["exact", "field", "found", "n_searched", "version"]
        facts = (body["version"], body["field"], body["n_searched"], body["exact"])
        assert facts == ("demo@1", "embedding.npy", 60, True)
        expected, scores = nearest(vectors, vectors[7], 5)
        assert [one["ordinal"] for one in body["found"]] == expected
        assert [one["key"] for one in body["found"]] == [keys[each] for each in expected]
        assert [one["score"] for one in body["found"]] == pytest.approx(scores.tolist(), abs=1e-6)
        if exact:
            report = cli("index", "demo@1", "--json", root=root.url).json
            assert [(one["field"], one["n_new"]) for one in report["fields"]] == [
                ("embedding.npy", 60),
                ("caption.txt", 60),
            ]


def test_words_vectors_slices_and_keys(root, cli, tmp_path):
    done = cli("search", "demo", "red cup 7", "--keys", root=root.url)
    assert (done.code, done.out) == (0, "k000007\n")
    text = cli("search", "demo", '"cup 7"', root=root.url).out
    assert "k000007" in text
    assert "1 of 1 samples of demo@1; 60 compared (caption.txt)" in text
    assert cli("search", "demo", "cup", "--k", "2", "--json", root=root.url).json["found"][0]["score"] is None
    np.save(tmp_path / "query.npy", root.open("demo")[0]["embedding.npy"])
    first = cli("search", "demo", "--like", tmp_path / "query.npy", "--k", "1", "--keys", root=root.url).out
    assert first == root.open("demo").keys(np.arange(1))[0] + "\n"
    root.save_slice("demo", "low", "w < 10", by="ann", why="low")
    root.save_slice("demo", "one", ["k000003"], by="ann", why="odd")
    narrowed = cli(
        "search", "demo", "--like", "k000005", "--in", "low", "--not", "one", "--keys", root=root.url
    )
    assert sorted(narrowed.out.split()) == [f"k{i:06d}" for i in range(10) if i != 3]
    assert not list(root.store.list("views/")), "a search writes nothing"
    file = tmp_path / "keys.txt"
    file.write_text(narrowed.out)
    saved = cli(
        "slice", "save", "demo", "like5", "--from", file, "--by", "a", "--why", "b", "--json", root=root.url
    )
    assert saved.json["n_samples"] == 9


def train(root, values):
    plan = loader.plan({"demo": root.open("demo").select("embedding.npy")}, seed=1, global_batch=BATCH)
    trail = loader.Trail(root, "big")
    with loader.Loader(plan, framework="numpy", workers=0, steps=len(values), trail=trail) as batches:
        for batch in batches:
            losses = values[batch.step]
            if losses is not None:
                batches.note(per_sample={"loss": losses})
    return plan


def test_worst_sample_of_a_step_leads_to_those_like_it(root, cli):
    plan = train(root, [[1.0, 9.0, 2.0, 3.0, 4.0, 5.0], [1.0, 9.0, np.nan, 3.0, 4.0, 5.0], None])
    for step, slot in ((0, 1), (1, 2)):
        key = loader.explain(plan, step, slot=slot)[0].address.key
        done = cli("search", "demo", "--like", f"big@{step}", "--k", "3", "--json", root=root.url)
        assert (
            done.json["found"]
            == cli("search", "demo", "--like", key, "--k", "3", "--json", root=root.url).json["found"]
        )
    key = loader.explain(plan, 0, slot=4)[0].address.key
    done = cli("search", "demo", "--like", "big@0", "--slot", "4", "--k", "2", "--keys", root=root.url)
    assert key in done.out.split()
    done = cli("search", "demo", "--like", "big@2", root=root.url)
    assert done.code == 2
    assert "step 2 of big has no per-sample metric: pass --slot N" in done.err


def test_worst_slot_is_not_finite_or_has_the_largest_loss():
    assert worst_slot({}) is None
    assert worst_slot({3: {"loss": 2.0}, 5: {"loss": 7.0}, 1: {"norm": 90.0}}) == 5
    assert worst_slot({3: {"loss": 2.0}, 5: {"norm": float("nan")}}) == 5
    assert worst_slot({3: {"loss": float("inf")}, 1: {"norm": float("nan")}}) == 3
    assert worst_slot({3: {"norm": 1.0}, 1: {"norm": 1.0}}) == 1


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ([], "a search needs words, or --like"),
        (["--like", "nobody"], "no live sample 'nobody'"),
        (["--like", "k000001", "--k", "10001"], "a whole number from 1 to 10,000"),
        (["--like", "k000001", "--slot", "3"], "--slot is of a step"),
        (["x" * 401], "401 characters; at most 400"),
        (["..."], "has no word"),
        (["--like", "k000001", "--where", "nope = 1"], "nope"),
        (["--like", "k000001", "--in", "nope"], "has no slice demo/nope"),
        (["--like", "k000001", "--field", "nope.npy"], "has no field 'nope.npy'"),
        (["--like", "BAD.npy"], "a .npy file with one vector is needed"),
        (["--like", "WIDE.npy"], "embeddings in 'embedding.npy' have 8 numbers"),
        (["--like", "ZERO.npy"], "zero or not finite"),
    ],
)
def test_errors_are_one_sentence_and_status_2(root, cli, tmp_path, monkeypatch, arguments, what):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "BAD.npy").write_bytes(b"no array")
    np.save(tmp_path / "WIDE.npy", np.ones(9))
    np.save(tmp_path / "ZERO.npy", np.zeros(8))
    done = cli("search", "demo", *arguments, root=root.url)
    assert done.code == 2
    assert what in done.err
    assert "Traceback" not in done.err
    assert done.out == ""


def test_index_is_dropped_and_damage_is_named(root, cli):
    report = cli("index", "demo", root=root.url)
    assert report.code == 0
    assert "embedding.npy: 60 samples, 60 rows new, 1 segments" in report.out
    path = next(info.key for info in root.store.list("search/") if info.key.endswith(".codes.parquet"))
    root.store.put(path, b"x" * 99)
    body = cli("search", "demo", "--like", "k000001", "--json", root=root.url).json
    assert list(body["damaged"]) == [path]
    assert f"left out: {path}" in cli("search", "demo", "--like", "k000001", root=root.url).out
    dropped = cli("index", "demo", "--drop", "--json", root=root.url).json["deleted"]
    assert len(dropped) == 4
    assert not list(root.store.list("search/"))
