"""Slices in the viewer: saved from keys or from a filter, listed, and opened as a filter of their dataset."""

import html
import json

import pytest

import loader
from loader.dataset.slices import remove_slice
from penstock import exclusion_records
from penstock.upkeep.exclusion import exclude
from penstock.view.inspect import slice_trainings, slices_record
from penstock.view.sections import slices
from tests.view.conftest import train, write_photos
from tests.view.recipes import plain
from tests.view.test_web import Served

SLICE = {"version": "photos@1", "name": "cats", "by": "ada", "why": "too many", "page": "/v/photos/1"}


@pytest.fixture
def site(tmp_path):
    with loader.Root(tmp_path / "root") as root:
        write_photos(root)
    served = Served(tmp_path / "root", recipe=None, writes=True)
    yield served
    served.close()


def test_chosen_samples_become_a_list(site):
    answer = site.post({**SLICE, "keys": ["p/1", "p/4"]}, "/slice")
    assert answer.status_code == 200
    saved = answer.json()
    assert (saved["dataset"], saved["name"], saved["n"], saved["kind"], saved["n_samples"]) == (
        "photos",
        "cats",
        1,
        "list",
        2,
    )
    record = site.get("/v/photos/1.json?in=cats").json()
    assert sorted(row["key"] for row in record["rows"]) == ["p/1", "p/4"]
    (listed,) = site.get("/slices.json").json()["slices"]
    assert (listed["by"], listed["why"], listed["page"]) == ("ada", "too many", "/v/photos/1")
    page = site.get("/slices").text
    assert "photos/cats" in page
    assert "v/photos/1?in=cats" in page


def test_filter_becomes_a_rule(site):
    found = site.get("/v/photos/1.json?t=width+%3E+42").json()
    answer = site.post({**SLICE, "where": found["sql"]}, "/slice")
    assert (answer.json()["kind"], answer.json()["n_samples"]) == ("rule", found["n_found"])
    without = site.get("/v/photos/1.json?not=cats").json()
    assert without["n_found"] == found["n_samples"] - found["n_found"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({}, "neither keys nor a filter"),
        ({"keys": []}, "0 keys"),
        ({"keys": ["p/1"], "name": "../x"}, "../x"),
        ({"keys": ["nothing"]}, "nothing"),
        ({"keys": ["p/1"], "version": "photos"}, "photos@3"),
        ({"keys": ["p/1"], "version": "photos@9"}, "photos"),
        ({"keys": 7}, "TypeError"),
        ({"where": "width >"}, "width >"),
        ({"where": "(SELECT 1)"}, "SELECT"),
        ({"where": "width in (1)" + " or width = 1" * 200}, "words and operators"),
    ],
)
def test_bad_slice_is_refused_and_nothing_is_stored(site, change, text):
    answer = site.post({**SLICE, **change}, "/slice")
    assert answer.status_code == 409
    assert text in answer.text
    assert site.get("/slices.json").json()["slices"] == []


def test_damaged_slice_hides_no_other(site, tmp_path):
    site.post({**SLICE, "keys": ["p/1"]}, "/slice")
    site.post({**SLICE, "name": "dogs", "keys": ["p/2"]}, "/slice")
    (tmp_path / "root/slices/photos/cats/000001.json").write_text("[")
    record = site.get("/slices.json").json()
    assert [one["name"] for one in record["slices"]] == ["dogs"]
    assert list(record["damaged"]) == ["slices/photos/cats/000001.json"]
    assert "slices/photos/cats/000001.json" in site.get("/slices").text


def test_slice_is_saved_only_where_writes_are_allowed(tmp_path):
    with loader.Root(tmp_path / "root") as root:
        write_photos(root)
    with Served(tmp_path / "root", recipe=None) as served:
        assert served.post({**SLICE, "keys": ["p/1"]}, "/slice").status_code == 405
        assert served.post({**SLICE, "keys": ["p/1"]}, "/slice", x_csrf="wrong").status_code == 405


def test_page_of_a_slice_has_its_samples_and_the_missing_ones(site, tmp_path):
    site.post({**SLICE, "keys": ["p/1", "p/4"]}, "/slice")
    with loader.Root(tmp_path / "root") as root:
        exclude(root, "photos@1", ["p/4"], reason="blurred", by="bob")
    record = site.get("/slices/photos/cats.json").json()
    assert [key for _, key in record["samples"]] == ["p/1"]
    assert (record["version"], record["n_samples"], record["missing"]) == ("photos@2", 1, ["p/4"])
    page = site.get("/slices/photos/cats").text
    assert "v/photos/2?in=cats" in page
    assert "v/photos/2/s/" in page
    assert "p/4" in page


def test_page_of_a_removed_slice_says_who_removed_it(site, tmp_path):
    site.post({**SLICE, "keys": ["p/1"]}, "/slice")
    with loader.Root(tmp_path / "root") as root:
        remove_slice(root, "photos", "cats", by="bob", why="<b>wrong</b>")
    record = site.get("/slices/photos/cats.json").json()
    assert (record["numbers"], record["n_samples"], record["slice"]["removed"]) == ([1, 2], 0, True)
    page = site.get("/slices/photos/cats").text
    assert "Removed" in page
    assert "&lt;b&gt;wrong&lt;/b&gt;" in page


def test_unknown_slice_is_not_found(site):
    for name in ("cats", "..%2Fx", "UPPER"):
        assert site.get(f"/slices/photos/{name}").status_code == 404
    assert site.get("/slices/nothing/cats").status_code == 404


def test_slice_is_excluded_from_its_page(site):
    site.post({**SLICE, "keys": ["p/1", "p/4"]}, "/slice")
    page = site.get("/slices/photos/cats").text
    assert 'data-press="slice/exclude" data-version="photos@1" data-name="cats"' in page
    answer = site.post(
        {"version": "photos@1", "name": "cats", "by": "eve", "why": "covers"}, "/slice/exclude"
    )
    assert answer.json() == {"versions": ["photos@2"], "gone": []}
    keys = {row["key"] for row in site.get("/v/photos/2.json").json()["rows"]}
    assert not keys & {"p/1", "p/4"}
    (record,) = exclusion_records.records(site.opened.root.store, "photos")
    assert (record.reason, record.by, record.page) == (
        "slice photos/cats: covers",
        "eve",
        "slices/photos/cats/000001.json",
    )


def test_slice_is_removed_and_can_be_saved_again(site):
    site.post({**SLICE, "keys": ["p/1"]}, "/slice")
    request = {"version": "photos@1", "name": "cats", "by": "eve", "why": "a mistake"}
    answer = site.post(request, "/slice/remove")
    assert (answer.json()["removed"], answer.json()["n"], answer.json()["by"]) == (True, 2, "eve")
    assert site.get("/slices.json").json()["slices"] == []
    assert site.post(request, "/slice/remove").status_code == 409
    assert 'data-press="slice/' not in site.get("/slices/photos/cats").text
    assert site.post({**SLICE, "keys": ["p/1"]}, "/slice").json()["n"] == 3


@pytest.mark.parametrize("path", ["/slice/exclude", "/slice/remove"])
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"name": "../x"}, "../x"),
        ({"name": "<b>\u202e" + "x" * 1_000}, "cannot be a slice's name"),
        ({"name": "dogs"}, "photos/dogs"),
        ({"version": "photos"}, "photos@3"),
        ({"version": "photos@" + "9" * 30}, "photos@3"),
        ({"by": ""}, "name"),
        ({"why": "  "}, "reason"),
    ],
)
def test_bad_change_of_a_slice_is_refused(site, path, change, text):
    site.post({**SLICE, "keys": ["p/1"]}, "/slice")
    request = {"version": "photos@1", "name": "cats", "by": "eve", "why": "w", **change}
    answer = site.post(request, path)
    assert answer.status_code == 409
    assert text in answer.text
    assert len(site.get("/slices.json").json()["slices"]) == 1
    assert site.opened.root.state.newest("photos").number == 1


def test_change_of_a_slice_needs_the_csrf_value(site):
    site.post({**SLICE, "keys": ["p/1"]}, "/slice")
    request = {"version": "photos@1", "name": "cats", "by": "eve", "why": "w"}
    for path in ("/slice/exclude", "/slice/remove"):
        assert site.post(request, path, x_csrf="wrong").status_code == 403
    assert len(site.get("/slices.json").json()["slices"]) == 1


def test_page_that_only_reads_shows_the_commands(tmp_path):
    with loader.Root(tmp_path / "root") as root:
        write_photos(root)
        root.save_slice("photos@1", "cats", ["p/1"], by="ada", why="w")
    served = Served(tmp_path / "root", recipe=None)
    try:
        for path in ("/slices/photos/cats", "/v/photos/1?in=cats"):
            page = html.unescape(served.get(path).text)
            assert "exclude photos@1 --slice cats --reason R --by WHO" in page
            assert "slice rm photos/cats --by WHO --why W" in page
            assert 'data-press="slice/' not in page
        for path in ("/slice/exclude", "/slice/remove"):
            request = {"version": "photos@1", "name": "cats", "by": "eve", "why": "w"}
            assert served.post(request, path).status_code == 405
    finally:
        served.close()


def test_version_page_offers_what_its_slice_allows(site):
    site.post({**SLICE, "keys": ["p/1"]}, "/slice")
    assert (
        'data-press="slice/remove" data-version="photos@1" data-name="cats"'
        in site.get("/v/photos/1?in=cats").text
    )
    assert 'data-press="slice/' not in site.get("/v/photos/1?not=cats").text


def test_unknown_slice_of_a_filter_is_named(site):
    page = site.get("/v/photos/1?in=nothing-such").text
    assert "has no slice photos/nothing-such" in page
    record = site.get("/v/photos/1.json?in=nothing-such")
    assert record.status_code == 400
    assert "photos/nothing-such" in record.text


def test_slices_name_the_trainings_that_used_them(tmp_path, monkeypatch):
    with loader.Root(tmp_path / "root") as root:
        version = write_photos(root)
        root.save_slice("photos@1", "cats", ["p/1", "p/2", "p/3"], by="ada", why="w")
        root.save_slice("photos@1", "wide", "width > 42", by="ada", why="w")
        for run, view in {
            "in-cats": version.slice("cats"),
            "plain": version.select("jpg"),
            "without-wide": version.without("wide").slice("cats"),
        }.items():
            plan = loader.plan({"photos": view.select("jpg")}, seed=3, global_batch=1)
            train(root, plan, run, recipe=plain, steps=1)
    served = Served(tmp_path / "root", recipe=None)
    try:
        trained = served.get("/slices.json").json()["trained"]
        assert trained == {
            "runs": {"photos/cats": ["without-wide", "in-cats"], "photos/wide": ["without-wide"]},
            "n_unread": 0,
            "problem": "",
        }
        page = served.get("/slices").text
        assert 'href="./r/without-wide"' in page
        monkeypatch.setattr(slice_trainings, "MOST_RUNS", 1)
        assert served.get("/slices.json").json()["trained"]["n_unread"] == 2
        assert "2 earlier runs not looked at" in served.get("/slices").text
    finally:
        served.close()


def test_plan_and_start_that_are_forged_hide_no_run(tmp_path):
    with loader.Root(tmp_path / "root") as root:
        version = write_photos(root)
        root.save_slice("photos@1", "cats", ["p/1", "p/2", "p/3"], by="ada", why="w")
        plan = loader.plan({"photos": version.slice("cats").select("jpg")}, seed=3, global_batch=1)
        for run in ("good", "forged"):
            train(root, plan, run, recipe=plain, steps=1)
        trainings = slice_trainings.SliceTrainings()
        (start,) = (tmp_path / "root/trails/forged").glob("start-*.json")
        start.write_text("[" * 10_000)
        trained = trainings.trained(root)
        assert trained.runs == {"photos/cats": ("good",)}
        assert trained.problem.startswith("forged: ")
        plans = (tmp_path / "root/plans").glob("p-*.json")
        (path,) = (path for path in plans if not path.name.endswith(".start.json"))
        deep = "x"
        for _ in range(20):
            deep = {"view": deep}
        slices = [{"name": "<b>"}, 7, None]
        path.write_text(json.dumps({"sources": {"a": deep, "b": {"version": version.id, "slices": slices}}}))
        assert slice_trainings.SliceTrainings().trained(root).runs == {"photos/<b>": ("good",)}


def test_page_lists_some_slices_and_links_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(slices_record, "MOST_SLICES", 3)
    monkeypatch.setattr(slices, "MOST_SLICES", 3)
    with loader.Root(tmp_path / "root") as root:
        write_photos(root)
        for number in range(7):
            root.save_slice("photos@1", f"s{number}", [f"p/{number}"], by="ada", why="too many")
    with Served(tmp_path / "root", recipe=None) as served:
        listed = []
        page = "/slices"
        for earlier in ("4 saved earlier", "1 saved earlier", ""):
            text = served.get(page).text
            record = served.get(page.replace("slices", "slices.json")).json()
            listed += [one["name"] for one in record["slices"]]
            assert earlier in text
            assert ("those saved later" in text) == (page != "/slices")
            page = f"/slices?from={len(listed)}"
            assert (f"{page[1:]}" in text) == bool(earlier)
    assert sorted(listed) == [f"s{number}" for number in range(7)]
