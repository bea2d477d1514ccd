"""The slices of a sample, and its exclusion, beside it on the pages of the sample and of a slot."""

import json

import numpy as np
import pytest

import loader
from loader.dataset.slices import remove_slice, slice_keys
from penstock.cli import main
from penstock.upkeep.exclusion import exclude_slice
from penstock.view.inspect import sample_slices
from penstock.view.inspect.sample_record import sample_record
from penstock.view.inspect.sample_slices import MOST_SLICES, SliceSearch
from penstock.view.open_data import OpenData
from tests.view.conftest import BATCH, train, write_photos
from tests.view.recipes import plain
from tests.view.test_costs import Counted
from tests.view.test_web import Served

HOSTILE = "<script>alert(1)</script>\u202e\n" + "x" * 1_000_000


def find_ordinal(version, key):
    return version.keys(np.arange(len(version))).index(key)


def slices_of_key(version, key, search):
    """The slices of a sample as the search finds them."""
    return search.sample_slices(version, find_ordinal(version, key), key)


@pytest.fixture
def photos(root):
    """photos@1 with a list, two rules and a slice that was removed."""
    version = write_photos(root)
    root.save_slice("photos@1", "cups", ["p/3", "p/5"], by="ann", why="handles were cut off")
    root.save_slice("photos@1", "wide", "width > 42", by="bob", why="wide ones")
    root.save_slice("photos@1", "odd", "note = 'n1'", by="ann", why="odd numbers")
    root.save_slice("photos@1", "gone", ["p/3"], by="ann", why="a mistake")
    remove_slice(root, "photos", "gone", by="ann", why="a mistake")
    return version


def test_sample_has_the_lists_and_rules_that_contain_it(root, photos):
    search = SliceSearch(root)
    names = {
        key: [one.name for one in slices_of_key(photos, key, search).slices] for key in ("p/3", "p/2", "p/5")
    }
    assert names == {"p/3": ["odd", "wide", "cups"], "p/2": [], "p/5": ["odd", "wide", "cups"]}
    for key in ("p/0", "p/4", "p/13"):
        expected = [name for name in ("odd", "wide", "cups") if key in slice_keys(photos, name)[1]]
        assert [one.name for one in slices_of_key(photos, key, search).slices] == expected


def test_slices_of_a_sample_are_the_ones_of_its_version(root, photos):
    """A list follows its samples into a later version, and a rule grows with it."""
    write_photos(root, numbers=range(14, 16))
    later = root.open("photos@2")
    search = SliceSearch(root)
    assert [one.name for one in slices_of_key(later, "p/15", search).slices] == ["odd"]
    assert "cups" in [one.name for one in slices_of_key(later, "p/3", search).slices]
    assert "cups" in [one.name for one in slices_of_key(photos, "p/3", search).slices]


def test_forged_slice_is_named_and_others_are_shown(root, photos, tmp_path):
    folder = tmp_path / "root/slices/photos"
    (folder / "cups/000001.json").write_text("[")
    rule = folder / "wide/000001.json"
    body = json.loads(rule.read_text())
    rule.write_text(json.dumps({**body, "where": "width > 0"}))
    root.save_slice("photos@1", "list", ["p/3"], by="ann", why="w")
    root.save_slice("photos@1", "other", ["p/2"], by="ann", why="w")
    table = (folder / "other/000001.parquet").read_bytes()
    (folder / "list/000001.parquet").write_bytes(table)
    slices = slices_of_key(photos, "p/3", SliceSearch(root))
    assert [one.name for one in slices.slices] == ["odd"]
    assert list(slices.problems) == ["slices/photos/cups/000001.json", "list", "wide"]
    assert all(text.startswith("Corrupt") for name, text in slices.problems.items() if "/" not in name)


def test_rule_over_a_column_that_the_version_lacks_is_named(root, photos):
    root.annotate("photos@1", "sharp", {f"p/{i}": {"sharpness": i} for i in range(14)}, author="ann")
    root.save_slice("photos@2", "sharp", "sharpness > 2", by="ann", why="w")
    slices = slices_of_key(photos, "p/3", SliceSearch(root))
    assert [one.name for one in slices.slices] == ["odd", "wide", "cups"]
    assert "sharpness" in slices.problems["sharp"]


def test_excluded_sample_says_since_when_by_whom_and_why(root, photos, tmp_path):
    exclude_slice(root, "photos@1", "cups", by="ada", reason="lens cap")
    ordinal = find_ordinal(photos, "p/3")
    served = Served(tmp_path / "root", recipe=None)
    try:
        record = served.get(f"/v/photos/1/s/{ordinal}.json").json()
        assert record["excluded"] == {
            "version": "photos@2",
            "by": "ada",
            "reason": "lens cap",
            "slice": "photos/cups",
        }
        page = served.get(f"/v/photos/1/s/{ordinal}").text
        assert "excluded since photos@2" in page
        assert "ada: lens cap" in page
        other = find_ordinal(photos, "p/2")
        assert served.get(f"/v/photos/1/s/{other}.json").json()["excluded"] is None
        assert "excluded since" not in served.get(f"/v/photos/1/s/{other}").text
        assert served.get("/v/photos/2/s/0.json").json()["excluded"] is None
    finally:
        served.close()


def test_pages_show_slices_as_links_to_their_samples(root, photos, tmp_path):
    plan = loader.plan({"photos": photos.select("jpg")}, seed=3, global_batch=BATCH)
    train(root, plan, "one", recipe=plain, steps=1)
    slot = 2
    key = dict(enumerate(key for _, key in plan.batch_ids(0)))[slot]
    root.save_slice("photos@1", "shown", [key], by="eve", why="as trained")
    served = Served(tmp_path / "root", recipe=None)
    try:
        for path in (f"/v/photos/1/s/{find_ordinal(photos, key)}", f"/r/one/0/{slot}"):
            record = served.get(f"{path}.json").json()
            assert record["slices"][0] | {"at_us": 0} == {
                "name": "shown",
                "n": 1,
                "kind": "list",
                "n_samples": 1,
                "by": "eve",
                "why": "as trained",
                "at_us": 0,
            }
            page = served.get(path).text.replace("../", "")
            assert 'v/photos/1?in=shown"><b>shown@1</b></a>' in page
            assert "eve: as trained" in page
    finally:
        served.close()


def test_slot_as_text_has_its_slices(root, photos, capsys):
    plan = loader.plan({"photos": photos.slice("odd").select("jpg")}, seed=3, global_batch=2)
    train(root, plan, "one", recipe=plain, steps=1)
    assert main(["batch", "one@0", "--slot", "0", "--root", root.url]) == 0
    out = capsys.readouterr().out
    assert "odd@1 rule, " in out
    assert "ann: odd numbers" in out


@pytest.mark.parametrize("field", ["why", "by"])
def test_hostile_text_of_a_slice_is_short_text(root, photos, tmp_path, field):
    path = tmp_path / "root/slices/photos/cups/000001.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: HOSTILE}))
    served = Served(tmp_path / "root", recipe=None)
    try:
        address = f"/v/photos/1/s/{find_ordinal(photos, 'p/3')}"
        page = served.get(address).text
        record = served.get(f"{address}.json").text
    finally:
        served.close()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    for text in (page, record):
        assert "\u202e" not in text
        assert "x" * 1000 not in text


def cost(root, version, ordinals):
    """Requests for the slices of each of these samples, one after the other."""
    store = Counted(root.store)
    root._use(store)
    search = SliceSearch(root)
    costs = []
    for ordinal in ordinals:
        before = sum(store.requests.values())
        (key,) = version.keys(np.array([ordinal]))
        search.sample_slices(version, ordinal, key)
        costs.append(sum(store.requests.values()) - before)
    return costs


def test_slices_cost_the_same_in_a_large_version(tmp_path):
    costs = []
    for n in (30, 900):
        with loader.Root(tmp_path / f"{n}") as root:
            with root.write("many") as writer:
                for i in range(n):
                    writer.add(f"k{i:04d}", {"cls": i}, metadata={"size": i % 7})
            for i in range(4):
                root.save_slice("many@1", f"list-{i}", [f"k{i:04d}", "k0005"], by="a", why="w")
            root.save_slice("many@1", "rule", "size = 5", by="a", why="w")
            costs.append(cost(root, root.open("many@1"), [5, 6]))
    assert costs[0] == costs[1]
    first, second = costs[0]
    assert first <= 20
    assert second == 1 + 5  # a listing, and each record: the bits are kept


def test_most_slices_bound_the_requests_and_the_others_are_named(root, monkeypatch):
    monkeypatch.setattr(sample_slices, "MOST_SLICES", 3)
    version = write_photos(root)
    for i in range(5):
        root.save_slice("photos@1", f"s{i}", ["p/3"], by="a", why="w")
    slices = slices_of_key(version, "p/3", SliceSearch(root))
    assert [one.name for one in slices.slices] == ["s4", "s3", "s2"]
    assert slices.unsearched == ("s0", "s1")
    assert MOST_SLICES == 48


def test_search_that_takes_long_goes_on_with_the_next_page(root, photos, monkeypatch):
    search = SliceSearch(root)
    monkeypatch.setattr(sample_slices, "SEARCH_S", -1.0)
    slices = slices_of_key(photos, "p/3", search)
    assert (slices.slices, slices.unsearched) == ((), ("cups", "odd", "wide"))
    monkeypatch.setattr(sample_slices, "SEARCH_S", 60.0)
    assert len(slices_of_key(photos, "p/3", search).slices) == 3
    monkeypatch.setattr(sample_slices, "SEARCH_S", -1.0)
    assert len(slices_of_key(photos, "p/5", search).slices) == 3


def test_root_whose_slices_cannot_be_listed_shows_the_sample(root, photos, monkeypatch):
    lists = root.store.list

    def refuse(prefix, *more):
        if prefix.startswith("slices/"):
            raise loader.errors.StoreError("access to slices/ is denied")
        return lists(prefix, *more)

    opened = OpenData(root)
    version = opened.version("photos", 1)
    store = Counted(root.store)
    store.list = refuse
    root._use(store)
    record = sample_record(version, 3, None, opened.slice_search)
    opened.close()
    assert record.fields
    assert record.slice_problems == {"slices": "StoreError: access to slices/ is denied"}


def test_packed_sequence_has_no_slices(root):
    with root.write("texts") as writer:
        for i in range(3):
            writer.add(f"k{i}", {"tokens.npy": np.arange(4)})
    root.save_slice("texts@1", "all", ["k0", "k1", "k2"], by="a", why="w")
    view, packing = root.open("texts@1").select("tokens.npy"), loader.pack("tokens.npy", length=6)
    plan = loader.plan({"texts": view}, seed=3, global_batch=2, pack=packing)
    train(root, plan, "packed", recipe=plain, steps=1)
    opened = OpenData(root)
    record, _ = opened.slot_record(opened.training("packed"), 0, 0)
    opened.close()
    assert (record.slices, record.columns) == ((), {})
