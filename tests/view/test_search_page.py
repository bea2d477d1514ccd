"""Words and similarity on a version's page: page, JSON, commands and Python agree with brute force."""

import json
import random
import re
import shutil
import weakref
from html import unescape
from urllib.parse import quote, urlencode

import numpy as np
import pytest

import loader
from loader.dataset.search import similarity, text_index
from loader.dataset.slices import slice_keys
from loader.dataset.versions.sample_search import forget_searches
from loader.errors import SampleNotFound
from penstock.cli import main
from penstock.search.index_build import make_index
from penstock.search.map.stored_map import make_map
from penstock.search.map.version_map import read_map
from penstock.view.facets import version_searches
from tests.view.bad_sample import DATASET, train_run
from tests.view.conftest import black, write_photos
from tests.view.test_costs import Counted
from tests.view.test_map_page import inside
from tests.view.test_web import Served

N = 90
LABELS = ("cat", "dog", "owl")
NOUNS = ("cup", "plate", "spoon", "fork", "杯", "Straße")
COLOURS = ("red", "blue", "green")
LAST = 65_535


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Return a root with captions and vectors of most samples, two exclusions and a slice."""
    root = loader.Root(tmp_path_factory.mktemp("search") / "root")
    rng = np.random.default_rng(6)
    words = random.Random(6)
    means = rng.normal(size=(3, 16))
    with root.write("cups", part_samples=25) as writer:
        for i in range(N):
            vector = means[i % 3] + 0.4 * rng.normal(size=16)
            caption = f"a {words.choice(COLOURS)} {words.choice(NOUNS)}, {words.choice(NOUNS)}"
            fields = {
                "appearance.npy": (vector * bool(i % 5)).astype(np.float16),
                "caption.txt": caption * bool(i % 7),
            }
            writer.add(f"c/{i:02d}", fields, metadata={"label": LABELS[i % 3], "width": i})
    root.exclude("cups@1", ["c/06", "c/11"], reason="blurred")
    root.save_slice("cups@2", "wide", "width >= 30", by="ann", why="wide ones")
    with root.write("plain") as writer:
        writer.add("a", {"cls": 1})
    make_map(root, "cups@2")
    return root


@pytest.fixture(scope="module", params=["unindexed", "indexed"])
def site(root, request):
    if request.param == "indexed":
        make_index(root, "cups@2", None)
    server = Served(loader.Root(root.url), recipe=None)
    yield server
    server.close()


def get_json(served, path):
    answer = served.get(path)
    assert answer.status_code == 200, answer.content
    return json.loads(answer.content)


def random_query(rng, keys):
    """Return the parts of a filter, as an address and a command have them."""
    query = {}
    if rng.random() < 0.6:
        query["words"] = " ".join(
            rng.choice(["", "", "-"]) + rng.choice([*NOUNS, *COLOURS, "strasse", '"red cup"'])
            for _ in range(rng.randint(1, 2))
        )
    if rng.random() < 0.5:
        query["where"] = rng.choice(["width > 20", "width < 70 AND label != 'owl'"])
    if rng.random() < 0.4:
        query["in"] = "wide"
    elif rng.random() < 0.3:
        query["not"] = "wide"
    if rng.random() < 0.3:
        corners = [(rng.randrange(LAST), rng.randrange(LAST)) for _ in range(rng.randint(3, 7))]
        query["lasso"] = ";".join(f"{x},{y}" for x, y in corners)
    if rng.random() < 0.6:
        query["like"] = ",".join(rng.sample(keys, rng.randint(1, 3)))
    return query


def has_words(text, query):
    """Return whether a text has every word and phrase, and no -word: these texts have commas and blanks only."""
    text = text.casefold()
    for minus, phrase, word in re.findall(r'(-?)(?:"([^"]*)"|(\S+))', query):
        has = (phrase or word).casefold() in text
        if has == bool(minus):
            return False
    return True


@pytest.fixture(scope="module")
def samples(root):
    """Return a row for each live sample: ordinal, key, label, width, place or None, caption, unit vector or None."""
    version = root.open("cups@2")
    places = read_map(version)
    rows = []
    for ordinal, key, label, width in (
        version.samples().select("ordinal", "key", "label", "width").collect().rows()
    ):
        place = (int(places.x[ordinal]), int(places.y[ordinal])) if places.has_place[ordinal] else None
        sample = version[ordinal]
        vector = np.asarray(sample["appearance.npy"], np.float64)
        unit = vector / np.linalg.norm(vector) if vector.any() else None
        rows.append((ordinal, key, label, width, place, sample["caption.txt"], unit))
    return rows


def brute(samples, query):
    """Return (ordinals that pass, in the order of a page; ordinal -> cosine with the mean of the samples of `like`)."""
    lasso = [tuple(map(int, corner.split(","))) for corner in query.get("lasso", "").split(";") if corner]
    passing = []
    scores = {}
    for ordinal, _, label, width, place, caption, unit in samples:
        tests = {
            "words": has_words(caption, query.get("words", "")),
            "where": width > 20 if query.get("where") == "width > 20" else width < 70 and label != "owl",
            "in": width >= 30,
            "not": width < 30,
            "lasso": place is not None and inside(*place, lasso),
        }
        if all(tests[name] for name in tests.keys() & query.keys()):
            passing.append(ordinal)
        if "like" in query and unit is not None:
            keys = query["like"].split(",")
            mean = np.mean([one[-1] for one in samples if one[1] in keys], axis=0)
            own = mean / np.linalg.norm(mean)
            scores[ordinal] = round(float(unit @ own), 6)
    passing.sort(key=lambda one: (-scores.get(one, -2), one))
    return passing, scores


def json_of_command(capsys, root, query, verb, *names):
    """Return what a verb with a filter's options prints. names: its first arguments."""
    options = [f"--{name}={value}" for name, value in query.items() if name != "words"]
    words = [query["words"]] if "words" in query else []
    status = main([*verb.split(), "--json", "--root", root.url, *options, "--", *names, *words])
    out = capsys.readouterr().out
    assert status == 0, out
    return json.loads(out)


def test_page_json_commands_and_python_agree_with_brute_force(root, site, samples, capsys):
    version = root.open("cups@2")
    keys = [f"c/{i:02d}" for i in range(N) if i % 5 and i not in (6, 11)]
    rng = random.Random(11)
    for _ in range(6):
        query = random_query(rng, keys)
        passing, scores = brute(samples, query)
        page = get_json(site, f"/v/cups/2.json?{urlencode(query)}&facet=label")
        assert (page["n_found"], page["words"], page["like"]) == (
            len(passing),
            query.get("words", ""),
            query.get("like", ""),
        )
        ordinals = [row["ordinal"] for row in page["rows"]]
        assert ordinals == passing[:60], query
        for row in page["rows"]:
            assert row["score"] == pytest.approx(scores.get(row["ordinal"]), abs=1e-6)
        html = unescape(site.get(f"/v/cups/2?{urlencode(query)}").text)
        assert f"{len(passing)} found" in html
        for row in page["rows"][:3]:
            if row["score"] is not None:
                assert f"<b>{row['score']:.4f}</b>" in html
        (label,) = [one for one in page["facets"] if one["column"] == "label"]
        for value in label["values"]:
            clicked = get_json(site, f"/v/cups/2.json?{urlencode({**query, 't': value['where']})}")
            assert clicked["n_found"] == value["n"], (query, value)
        if "words" in query or "like" in query:
            found = json_of_command(capsys, root, query, "search", "cups@2")["found"]
            n_ranked = sum(one in scores or "like" not in query for one in ordinals)
            assert [one["ordinal"] for one in found] == ordinals[:n_ranked]
            rows = page["rows"][:n_ranked]
            assert [one["score"] for one in found] == [row["score"] for row in rows]
            if not {"in", "not", "lasso"} & query.keys():
                result = version.search(
                    query.get("words"), like=query.get("like"), where=query.get("where"), k=60
                )
                assert result.ordinals.tolist() == ordinals[:n_ranked]


def test_keys_with_commas_between_rank_by_their_mean(root, site, samples, capsys):
    passing, _ = brute(samples, {"like": "c/01,c/12,c/23"})
    rows = get_json(site, "/v/cups/2.json?like=c/01,+c/12,c/23")["rows"]
    assert [row["ordinal"] for row in rows] == passing[:60]
    version = root.open("cups@2")
    for like in ("c/01,c/12,c/23", '"c/01", "c/12","c/23"', ["c/01", "c/12", "c/23"]):
        assert version.search(like=like).ordinals.tolist()[:9] == passing[:9], like
    saved = ["slice", "save", "--root", root.url, "--json", "--like=c/01,c/12,c/23", "--k=9", "--by=ann"]
    assert main([*saved, "--why=alike", "--", "cups@2", "three"]) == 0
    capsys.readouterr()
    _, saved_keys = slice_keys(version, "three")
    assert saved_keys == version.keys(sorted(passing[:9]))
    missing = site.get("/v/cups/2.json?like=c/01,c/06")
    assert missing.status_code == 400
    assert "has no live sample 'c/06'" in missing.json()["message"]


def test_key_with_a_comma_is_one_key(tmp_path):
    with loader.Root(tmp_path / "root") as root, root.write("d") as writer:
        for number, key in enumerate(["a", "b", "a,b", "a,b,c"]):
            writer.add(key, {"embedding.npy": np.array([1, number, number**2], np.float32)})
    version = root.open("d")
    assert version.search(like="a,b").keys()[0] == "a,b"
    both = version.search(like='"a,b",b')
    assert both.ordinals.tolist() == version.search(like=["a,b", "b"]).ordinals.tolist()
    assert version.search(like="b,a").scores.tolist() == version.search(like=["a", "b"]).scores.tolist()
    for unclosed in ('a,"b', '"a,b'):
        with pytest.raises(SampleNotFound):
            version.search(like=unclosed)


def test_pages_of_a_ranking_follow_one_order(site, samples):
    passing, scores = brute(samples, {"like": "c/01"})
    second = get_json(site, "/v/cups/2.json?like=c/01&from=60")
    assert [row["ordinal"] for row in second["rows"]] == passing[60:]
    assert [row["score"] is None for row in second["rows"]] == [one not in scores for one in passing[60:]]
    assert second["rows"][-1]["score"] is None
    narrow = get_json(site, "/v/cups/2.json?like=c/01&where=width+%3C+0")
    assert (narrow["n_found"], narrow["rows"]) == (0, [])


WRONG = [
    ("words=" + "x" * 401, "401 characters; at most 400"),
    ("words=...", "has no word"),
    ("words=%3Cscript%3E" + "a" * 400, "at most 400 are accepted"),
    ("like=c/06", "has no live sample 'c/06': it does not exist, or was excluded"),
    ("like=%3Cscript%3Ealert(1)", "has no live sample '<script>alert(1)'"),
    ("like=c/05", "has no usable 'appearance.npy'"),
    ("like=c/01&sort=width", "like= and sort= are two orders"),
    ("like=c/01&from=10000", "ranks the first 10,000 samples"),
    ("words=" + quote("🍵" * 390), "bytes in the address"),
]


@pytest.mark.parametrize(("query", "error"), WRONG)
def test_wrong_search_stays_in_its_box_and_the_page_is_shown(site, query, error):
    page = site.get(f"/v/cups/2?{query}")
    assert page.status_code == 200
    assert "88 found" in page.text
    assert error in unescape(page.text)
    assert "<script>a" not in page.text
    if query.startswith("words="):
        (box,) = re.findall(r'name="words" id="words"[^>]* value="([^"]*)"', page.text)
        assert quote(unescape(box)) == query.removeprefix("words=")
    else:
        assert ">like " in page.text
    answer = site.get(f"/v/cups/2.json?{query}")
    assert answer.status_code == 400
    assert error in answer.json()["message"]


def test_version_without_vectors_and_texts_says_what_to_add(site):
    assert 'name="words"' not in site.get("/v/plain/1").text
    page = unescape(site.get("/v/plain/1?like=a&words=b").text)
    assert "has no field embedding.npy or appearance.npy to compare" in page
    assert "has no text field (.txt)" in page
    assert 'value="b"' in page


def test_links_of_a_page_repeat_words_and_like(site):
    html = site.get("/v/cups/2?words=red+-cup&like=c/01&as=table").text
    links = [unescape(one) for one in re.findall(r'href="(\?[^"]*)"', html)]
    kept = [one for one in links if "words=red" in one and "like=c" in one]
    assert len(kept) > 5
    assert [one for one in links if "words=" not in one and "like=" in one], "a chip removes the words"
    assert [one for one in links if "words=" in one and "like=" not in one], "a chip removes the order"
    assert 'name="like" value="c/01"' in html, "the form keeps what has no box"


SAVED = [
    {"words": "red"},
    {"words": "cup -blue", "where": "width > 20"},
    {"words": "杯", "in": "wide"},
    {"like": "c/01", "k": 7},
    {"like": "c/02", "k": 12, "words": "green", "not": "wide"},
    {"lasso": "0,0;65535,0;65535,40000;0,40000", "where": "width > 20"},
]


@pytest.mark.parametrize("number", range(len(SAVED)))
def test_page_and_command_save_the_same_samples(root, samples, capsys, number):
    asked = SAVED[number]
    passing, scores = brute(samples, {name: value for name, value in asked.items() if name != "k"})
    if "like" in asked:
        passing = [ordinal for ordinal in passing if ordinal in scores]
    keys = {row[0]: row[1] for row in samples}
    expected = sorted(keys[ordinal] for ordinal in passing[: asked.get("k", len(passing))])
    writing = Served(loader.Root(root.url), recipe=None, writes=True)
    body = {"version": "cups@2", "name": f"page{number}", "by": "ada", "why": "w", "page": "/v/cups/2"}
    try:
        saved = writing.post({**body, **asked}, "/slice").json()
    finally:
        writing.close()
    assert saved["kind"] == "list"
    found, version_keys = slice_keys(root.open("cups@2"), f"page{number}")
    assert (sorted(version_keys), found.n_samples) == (expected, len(expected))
    options = {"by": "ada", "why": "w", **asked}
    other = json_of_command(capsys, root, options, "slice save", "cups@2", f"command{number}")
    assert (other["kind"], other["sha256"]) == ("list", saved["sha256"])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"words": "..."}, "has no word"),
        ({"words": ["red"], "where": "nope = 1"}, "nope"),
        ({"like": "c/01"}, "pass k, the number of the most similar ones"),
        ({"like": "c/01", "k": 10_001}, "a whole number from 1 to 10,000"),
        ({"like": "c/01", "k": "7"}, "a whole number from 1 to 10,000"),
        ({"like": "c/06", "k": 7}, "no live sample 'c/06'"),
        ({"in": "nobody"}, "cups/nobody"),
        ({"words": 7}, "not a slice: TypeError"),
        ({"words": "nosuchword"}, "has no samples"),
    ],
)
def test_wrong_filter_saves_nothing(root, change, error):
    writing = Served(loader.Root(root.url), recipe=None, writes=True)
    body = {"version": "cups@2", "name": "wrong", "by": "ada", "why": "w", "page": "/v/cups/2"}
    try:
        answer = writing.post({**body, **change}, "/slice")
    finally:
        writing.close()
    assert answer.status_code == 409
    assert error in answer.text
    assert not list(root.store.list("slices/cups/wrong"))


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--like", "c/01"], "--like ranks all samples, and --k N saves the first N"),
        (["--k", "3", "--where", "width > 3"], "pass both"),
        (["--from", "-", "--in", "wide"], "--from lists all keys"),
        ([], "a slice needs samples"),
    ],
)
def test_command_names_what_a_slice_lacks(root, capsys, words, error):
    assert main(["slice", "save", "cups@2", "x", *words, "--by", "a", "--why", "w", "--root", root.url]) == 2
    assert error in capsys.readouterr().err


def test_search_finds_what_was_indexed_since_the_last_page(root, tmp_path, monkeypatch):
    """A page names the command; after it, the same page of the same server shows the samples."""
    monkeypatch.setattr(similarity, "MOST_COMPARED", 10)
    monkeypatch.setattr(text_index, "MOST_READ", 10)
    copied = shutil.copytree(root.url, tmp_path / "root", ignore=shutil.ignore_patterns("search"))
    served = Served(copied, recipe=None)
    try:
        for query in ("words=red", "like=c/01"):
            page = unescape(served.get(f"/v/cups/2?{query}").text)
            assert "penstock index cups@2 --field" in page
            assert "88 found" in page
        make_index(loader.Root(copied), "cups@2", None)
        assert 0 < get_json(served, "/v/cups/2.json?words=red")["n_found"] < 88
        assert get_json(served, "/v/cups/2.json?like=c/01")["rows"][0]["key"] == "c/01"
    finally:
        served.close()


def test_damaged_segments_are_left_out_and_named(root, tmp_path):
    copied = shutil.copytree(root.url, tmp_path / "root", ignore=shutil.ignore_patterns("search"))
    make_index(loader.Root(copied), "cups@2", None)
    expected = {}
    with Served(copied, recipe=None) as served:
        for query in ("words=red", "like=c/01"):
            expected[query] = get_json(served, f"/v/cups/2.json?{query}")["rows"]
    for path in copied.glob("search/*/*.parquet"):
        path.write_bytes(b"<b>no segment</b>")
    served = Served(copied, recipe=None)
    try:
        for query in ("words=red", "like=c/01"):
            record = get_json(served, f"/v/cups/2.json?{query}")
            assert [row["key"] for row in record["rows"]] == [row["key"] for row in expected[query]]
            (path,) = record["damaged"]
            assert path.startswith("search/")
            assert f"left out of the search: {path}" in served.get(f"/v/cups/2?{query}").text
    finally:
        served.close()


def test_pages_open_few_indexes_and_those_that_do_not_search_open_none(root, monkeypatch):
    monkeypatch.setattr(version_searches, "MOST_SEARCHED", 1)
    monkeypatch.setattr(version_searches, "MOST_COMPARED_NOW", 0)
    served = Served(loader.Root(root.url), recipe=None)
    try:
        for path in (
            "/v/cups/2",
            "/v/cups/2?where=width+%3E+3",
            "/v/cups/2/s/3",
            "/v/cups/1",
            "/v/cups/2/map",
        ):
            served.get(path)
        versions = [served.opened.version("cups", number) for number in (1, 2)]
        assert [one.searches for one in versions] == [None, None]
        for number in (0, 1):
            served.get(f"/v/cups/{number + 1}?like=c/01&words=red")
            assert versions[number].searches is not None
        assert versions[0].searches is None
        served.opened.columns.read_ahead()
        alive = weakref.ref(versions.pop())
        versions.clear()
        served.opened._versions.clear()
        assert alive() is None, "a search keeps no version, and no lease"
    finally:
        served.close()


def test_bad_step_and_its_slot_lead_to_samples_like_theirs(tmp_path):
    with loader.Root(tmp_path / "root") as root:
        vectors = {f"p{i}": {"appearance.npy": np.array([1, abs(i - 3) % 11], np.float16)} for i in range(14)}
        vectors["p0"]["jpg"] = black()
        version = write_photos(root, DATASET, **vectors)
        step, slot = train_run(root, version.select("jpg", "cls"), "old")[0]
        write_photos(root)
        train_run(root, root.open("photos@1").select("jpg", "cls"), "bare")
    served = Served(tmp_path / "root", recipe=None)
    try:
        page = f'href="../../v/{DATASET}/1?like=p%2F0"'
        html = served.get(f"/r/old/{step}").text
        links = html.partition("More like this:")[2].partition("</p>")[0]
        assert f"{page}>slot {slot}</a>" in links
        assert "like=" not in served.get("/r/bare/0").text, "its version has nothing to compare"
        assert (
            f"{page.replace('../../', '../../../')}>More like this"
            in served.get(f"/r/old/{step}/{slot}").text
        )
        key_order = get_json(served, f"/v/{DATASET}/1.json?like=p/0")["rows"]
        record = get_json(served, f"/v/{DATASET}/1.json?like=old@{step}")
        two = get_json(served, f"/v/{DATASET}/1.json?like=old@{step},p/5")
        by_keys = get_json(served, f"/v/{DATASET}/1.json?like=p/0,p/5")
        assert two["rows"] == by_keys["rows"] != key_order
        assert (record["like"], record["rows"]) == (f"old@{step}", key_order)
        assert key_order[0]["key"] == "p/0"
        for like, error in (
            (f"bare@{step}", "is 'p/0' of another dataset, not of planted"),
            (f"nobody@{step}", f"has no live sample 'nobody@{step}'"),
            ("old@9999", "9999"),
        ):
            answer = served.get(f"/v/{DATASET}/1.json?like={like}")
            assert answer.status_code == 400, answer.content
            assert error in answer.json()["message"]
    finally:
        served.close()


def test_second_click_in_a_ranking_reads_nothing_from_the_store(root):
    """Neither keys, nor texts, nor codes: the compared embeddings and the cards alone."""
    opened = loader.Root(root.url)
    store = Counted(opened.store)
    opened._use(store)
    served = Served(opened, recipe=None)
    try:
        first = "/v/cups/2?words=red&like=c/01"
        served.get(first, hx_request="true")
        store.requests.clear()
        store.keys.clear()
        label = quote("\"label\" = 'cat'")
        served.get(f"{first}&t={label}", hx_request="true")
        assert not [key for key in store.keys if key.startswith("search/") or "samples-" in key]
    finally:
        served.close()


def test_sample_has_its_look_alikes_by_cosine_if_they_cost_little(root, samples, monkeypatch):
    served = Served(loader.Root(root.url), recipe=None)
    try:
        (ordinal,) = [row[0] for row in samples if row[1] == "c/01"]
        passing, scores = brute(samples, {"like": "c/01"})
        expected = [one for one in passing if one != ordinal][:12]
        record = get_json(served, f"/v/cups/2/s/{ordinal}.json")
        assert [one["ordinal"] for one in record["similar"]] == expected
        assert [one["score"] for one in record["similar"]] == pytest.approx(
            [scores[one] for one in expected], abs=1e-6
        )
        html = served.get(f"/v/cups/2/s/{ordinal}").text
        assert f"{scores[expected[0]]:.3f}" in html.partition("by cosine")[2]
        (zero,) = [row[0] for row in samples if row[1] == "c/05"]
        assert get_json(served, f"/v/cups/2/s/{zero}.json")["similar"] == []
        monkeypatch.setattr(version_searches, "MOST_COMPARED_NOW", 87)
        forget_searches(served.opened.version("cups", 2))
        assert get_json(served, f"/v/cups/2/s/{ordinal}.json")["similar"] == []
        assert "by cosine" not in served.get(f"/v/cups/2/s/{ordinal}").text
    finally:
        served.close()
