"""Slices: named samples that outlive their version, and views of them."""

import hashlib
import json
import pickle
import random
import threading
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

import loader
from loader.dataset.slices import diff_slices, list_slices, remove_slice, show_slice, slice_keys
from loader.dataset.tables.parquet import parse_table, table_bytes
from loader.dataset.tables.slice_record import (
    MAX_RECORD_BYTES,
    read_slice,
    read_slice_table,
    slice_table,
    slice_table_bytes,
)
from loader.errors import (
    Corrupt,
    EmptyView,
    FieldNotFound,
    InvalidName,
    InvalidPlan,
    InvalidRuntime,
    InvalidSample,
    SampleNotFound,
    SliceNotFound,
)
from loader.json_text import canonical_json
from loader.order.sources.views import list_sha256
from tests.dataset.stores import Counting
from tests.refusals import ABSENT, refusal

WHO = {"by": "ann", "why": "handles were cut off"}


def publish(root, first, n, part_samples=7, dataset="d"):
    with root.write(dataset, part_samples=part_samples) as writer:
        for i in range(first, first + n):
            writer.add(f"k{i:03d}", {"cls": i}, {"w": i, "colour": "red" if i % 3 else None})
    return writer.version


@pytest.fixture
def version(root):
    return publish(root, 0, 30)


def keys(view):
    return sorted(view.keys(view.version_ordinals(np.arange(len(view)))))


def names(*numbers):
    return [f"k{i:03d}" for i in numbers]


def test_list_and_the_samples_without_it_share_a_version(root, version):
    saved = root.save_slice("d@1", "cups", names(9, 3, 7), **WHO, page="http://x/v/d/1")
    assert (saved.n, saved.kind, saved.n_samples, saved.version) == (1, "list", 3, "d@1")
    assert saved.page == "http://x/v/d/1"
    cups, rest = version.slice("cups"), version.without("cups")
    assert keys(cups) == names(3, 7, 9)
    assert keys(rest) == names(*(i for i in range(30) if i not in (3, 7, 9)))
    assert keys(version.where("w > 5").slice("cups")) == keys(cups.where("w > 5")) == names(7, 9)
    assert keys(version.slice("cups").without("cups")) == []
    assert pickle.loads(pickle.dumps(cups)).id == cups.id  # noqa: S301 - what it just dumped


@pytest.mark.parametrize(
    "samples",
    [
        names(3, 7, 9),
        lambda version: version.select().ordinals(names(9, 3, 7)),
        lambda version: version.select().ordinals(names(9, 3, 7)).tolist(),
        lambda version: version.where("w IN (3, 7, 9)"),
        frozenset(names(3, 7, 9)),
    ],
)
def test_equal_samples_get_the_same_number_however_they_are_named(root, version, samples):
    first = root.save_slice("d@1", "cups", names(3, 7, 9), **WHO)
    again = root.save_slice(
        "d@1", "cups", samples(version) if callable(samples) else samples, by="bo", why="x"
    )
    assert again == first
    assert root.save_slice("d@1", "cups", names(3, 7), **WHO).n == 2
    assert root.save_slice("d@1", "cups", names(3, 7, 9), **WHO).n == 3, "only the newest number is compared"


def test_rule_grows_with_versions_and_a_list_does_not(root, version):
    root.save_slice("d@1", "high", "w >= 25", **WHO)
    root.save_slice("d@1", "cups", names(27, 28), **WHO)
    later = publish(root, 30, 10)
    assert keys(later.slice("high")) == names(*range(25, 40))
    assert keys(later.slice("cups")) == names(27, 28)
    assert root.save_slice("d@2", "high", "w >= 25", **WHO).n == 1
    assert root.save_slice("d@2", "cups", names(28, 27), **WHO).n == 1
    with refusal(FieldNotFound, what="where('height > 3')", where="d@2", given=["height"]):
        root.save_slice("d@2", "high", "height > 3", **WHO)


def test_samples_that_a_version_lacks_are_named(root, version):
    root.save_slice("d@1", "cups", names(3, 7, 9), **WHO)
    later = root.exclude("d@1", names(7), reason="blurred")
    shown = show_slice(root, "d", "cups")
    assert (shown.version, shown.n_samples, shown.missing, shown.numbers) == ("d@2", 2, ("k007",), (1,))
    assert keys(later.slice("cups")) == names(3, 9)
    assert len(later.without("cups")) == 27
    assert show_slice(root, "d", "cups", ref="d@1").missing == ()
    assert root.save_slice("d@2", "cups", names(3, 9), **WHO).n == 2
    difference = diff_slices(root, "d", "cups")
    assert (difference.before, difference.after, difference.added, difference.removed) == (1, 2, (), ()), (
        "k007 is in no version"
    )
    root.save_slice("d@2", "cups", names(9, 11), **WHO)
    difference = diff_slices(root, "d", "cups", 2, 3)
    assert (difference.added, difference.removed) == (("k011",), ("k003",))


def rewrite(root, numbers):
    """Publish other bytes for samples, under the same keys."""
    root.exclude("d", names(*numbers), reason="encoded again")
    with root.write("d") as writer:
        for i in numbers:
            writer.add(f"k{i:03d}", {"cls": -i}, {"w": i, "colour": None})
    return writer.version


def test_sample_that_was_written_again_is_found_by_its_key(root, version):
    saved = root.save_slice("d@1", "cups", names(1, 4, 10), **WHO)
    later = rewrite(root, [4, 20])
    assert keys(later.slice("cups")) == names(1, 4, 10)
    assert sorted(int(sample["cls"]) for sample in later.slice("cups")) == [-4, 1, 10]
    assert show_slice(root, "d", "cups").missing == ()
    assert root.save_slice("d@3", "cups", names(10, 4, 1), **WHO) == saved
    last = root.exclude("d@3", names(4), reason="blurred")
    assert keys(last.slice("cups")) == names(1, 10)
    assert show_slice(root, "d", "cups").missing == ("k004",)


def test_two_savers_at_once_get_two_numbers(root, version):
    starts = threading.Barrier(4)
    records = []

    def save(number):
        starts.wait()
        records.append(root.save_slice("d@1", "cups", names(number), **WHO))

    threads = [threading.Thread(target=save, args=(number,)) for number in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.n for one in records) == [1, 2, 3, 4]
    by_number = {one.n: keys(version.slice("cups", one.n)) for one in records}
    assert sorted(by_number.values()) == [names(number) for number in (1, 2, 3, 4)]


def test_save_after_one_that_ended_before_its_record(root, version):
    saved = root.save_slice("d@1", "cups", names(1, 2), **WHO)
    root.store.delete_many([saved.path])
    assert root.save_slice("d@1", "cups", names(1, 2), **WHO).n == 1, "the table is its own"
    root.store.delete_many([saved.path])
    assert root.save_slice("d@1", "cups", names(5), **WHO).n == 2
    assert keys(version.slice("cups")) == names(5)


def test_removed_slice_stays_in_plans(root, version):
    root.save_slice("d@1", "cups", names(3, 7, 9), **WHO)
    plan = loader.plan({"rest": version.without("cups")}, seed=1, global_batch=4)
    plan.save(root)
    end = remove_slice(root, "d", "cups", by="bo", why="mistake")
    assert (end.n, end.removed, end.by) == (2, True, "bo")
    with refusal(SliceNotFound, what="slice", where="d/cups", given="mistake"):
        version.slice("cups")
    with refusal(SliceNotFound, what="slice", where="d/cups", given="mistake"):
        remove_slice(root, "d", "cups", **WHO)
    with refusal(SliceNotFound, what="slice", where="d/cups", given="mistake"):
        slice_keys(version, "cups")
    assert keys(version.slice("cups", n=1)) == names(3, 7, 9)
    assert list_slices(root).slices == ()
    assert loader.open_plan(loader.Root(root.url), plan.hash).hash == plan.hash
    root.store.delete_many([info.key for info in root.store.list("slices/")])
    again = loader.open_plan(loader.Root(root.url), plan.hash)
    assert again.hash == plan.hash, "the stored view has the samples"
    assert root.save_slice("d@1", "cups", names(3), **WHO).n == 1


def test_slices_of_a_root_are_listed(root, version):
    publish(root, 0, 5, dataset="e")
    root.save_slice("d@1", "cups", names(3), **WHO)
    root.save_slice("d@1", "cups", names(3, 4), by="bo", why="x")
    root.save_slice("e@1", "low", "w < 2", **WHO)
    listing = list_slices(root)
    assert [(one.full_name, one.n, one.by, one.n_samples) for one in listing.slices] == [
        ("d/cups", 2, "bo", 2),
        ("e/low", 1, "ann", 2),
    ]
    assert [one.full_name for one in list_slices(root, "d").slices] == ["d/cups"]
    assert listing.damaged == {}


@pytest.mark.parametrize(
    ("samples", "error", "what", "given"),
    [
        (names(3, 400), SampleNotFound, "samples", "k400"),
        ([], EmptyView, "slice", 0),
        ([3, 30], InvalidRuntime, "ordinal", 30),
        ([3, "k003"], InvalidSample, "samples", [3, "k003"]),
        ([True], InvalidSample, "samples", [True]),
        ([1.5], InvalidSample, "samples", [1.5]),
        ("SELECT 1", FieldNotFound, "where('SELECT 1')", "SELECT"),
        ("w > read_csv('x')", FieldNotFound, "where(\"w > read_csv('x')\")", "read_csv(...)"),
    ],
)
def test_samples_that_no_slice_takes(root, version, samples, error, what, given):
    with refusal(error, what=what, given=given):
        root.save_slice("d@1", "cups", samples, **WHO)
    assert not list(root.store.list("slices/"))


@pytest.mark.parametrize("name", ["", "Cups", "a/b", "../x", ".x", "a" * 65, "cups\n", 7])
def test_names_that_no_slice_has(root, version, name):
    with refusal(InvalidName, what="name", given=name):
        root.save_slice("d@1", name, names(3), **WHO)
    with pytest.raises(InvalidName):
        version.slice(name)


def test_unknown_slice_and_number(root, version):
    with refusal(SliceNotFound, what="slice d/cups", where=root.store.url):
        version.slice("cups")
    root.save_slice("d@1", "cups", names(3), **WHO)
    with refusal(SliceNotFound, what="slice d/cups", where=root.store.url, given=2):
        version.slice("cups", 2)
    for n in (0, -1, 10**6, True):
        with refusal(SliceNotFound, what="n", given=n, accepted="1 to 999999"):
            version.slice("cups", n)
    publish(root, 30, 3)
    with refusal(InvalidPlan, what="view", given="d@1", accepted="d@2"):
        root.save_slice("d@2", "cups", version.where("w = 1"), **WHO)


FAULTS = {
    "name": ("path", "slices/d/plates/000001.json"),
    "dataset": ("path", "slices/e/cups/000001.json"),
    "n": ("path", "slices/d/cups/000002.json"),
    "kind": ("where", ""),
    "sha256": ("sha256", ABSENT),  # of the table
    "n_samples": ("table", ABSENT),
}
FORGED = {
    "name": "plates",
    "dataset": "e",
    "n": 2,
    "sha256": "0" * 64,
    "kind": "rule",
    "where": "w > 3",
    "n_samples": 2,
    "version": "e@1",
    "version_id": "v-1",
    "removed": 1,
    "by": None,
    "format": "1",
}


@pytest.mark.parametrize("name", FORGED)
def test_record_that_was_changed_is_corrupt_by_path(root, version, name):
    saved = root.save_slice("d@1", "cups", names(3, 7, 9), **WHO)
    root.save_slice("d@1", "plates", names(1), **WHO)
    body = json.loads(root.store.get(saved.path).data)
    root.store.put(saved.path, json.dumps({**body, name: FORGED[name]}).encode())
    what, given = FAULTS.get(name, (name, FORGED[name]))
    with refusal(Corrupt, what=what, within="slices/d/cups/000001", given=given):
        version.slice("cups")
    assert keys(version.slice("plates")) == names(1)
    listing = list_slices(root)
    assert "d/plates" in [one.full_name for one in listing.slices]


@pytest.mark.parametrize(
    ("name", "value"), [("kind", "set"), ("removed", None), ("n_samples", 0), ("why", 3)]
)
def test_record_with_a_value_that_no_slice_has_names_its_member(root, version, name, value):
    saved = root.save_slice("d@1", "cups", names(3, 7, 9), **WHO)
    body = {**saved.to_json(), name: value}
    root.store.put(saved.path, json.dumps(body).encode())
    with refusal(Corrupt, what=name, where=saved.path, given=value):
        version.slice("cups")


def test_damaged_records_are_named_beside_the_others(root, version):
    saved = root.save_slice("d@1", "cups", names(3), **WHO)
    root.save_slice("d@1", "plates", names(1), **WHO)
    root.store.put(saved.path, b"{")
    root.store.put("slices/-/x/000001.json", b"{}")
    root.store.put("slices/d/cups/1.json", b"no number of a slice")
    listing = list_slices(root)
    assert [one.full_name for one in listing.slices] == ["d/plates"]
    assert sorted(listing.damaged) == ["slices/-/x/000001.json", saved.path]


def test_record_and_table_that_are_too_large_are_not_read(root, version):
    saved = root.save_slice("d@1", "cups", names(3), **WHO)
    root.save_slice("d@1", "plates", names(1), **WHO)
    padding = b" " * MAX_RECORD_BYTES
    root.store.put(saved.path, saved.to_bytes() + padding)
    counting = Counting(root.store)
    nbytes = len(saved.to_bytes() + padding)
    with refusal(Corrupt, what="bytes", where=saved.path, given=nbytes, accepted=MAX_RECORD_BYTES):
        read_slice(counting, "d", "cups", 1)
    root._use(counting)
    listing = list_slices(root)
    assert [one.full_name for one in listing.slices] == ["d/plates"]
    assert "bytes" in listing.damaged[saved.path]
    assert counting.nbytes < MAX_RECORD_BYTES
    root.store.put(saved.path, saved.to_bytes())
    table = root.store.get(saved.table_path).data
    root.store.put(saved.table_path, table + 2 * padding)
    counting.nbytes = 0
    nbytes = len(table + 2 * padding)
    with refusal(Corrupt, what="bytes", where=saved.table_path, given=nbytes):
        read_slice_table(counting, saved, ["ordinal"])
    assert counting.nbytes == 0


def test_record_that_no_reader_would_take_is_not_saved(root, version):
    with refusal(InvalidSample, what="slice many", given=8388964):
        root.save_slice("d@1", "many", "w > 3", **WHO, page="x" * MAX_RECORD_BYTES)
    assert list_slices(root).slices == ()


def test_slices_are_listed_page_by_page(root, version):
    for number in range(7):
        root.save_slice("d@1", f"s{number}", names(number), **WHO)
    pages = [list_slices(root, most=3, first=first) for first in (0, 3, 6, 9)]
    listed = [one.name for page in pages for one in page.slices]
    assert sorted(listed) == [f"s{number}" for number in range(7)]
    assert [len(page.slices) for page in pages] == [3, 3, 1, 0]
    assert [len(page.unread) for page in pages] == [4, 4, 6, 7]


def forge(root, version, samples, **columns):
    """Store a table with other columns, under a record that states the digest of its ordinals."""
    saved = root.save_slice(version.id, "cups", samples, **WHO)
    ordinals = np.asarray(columns.pop("ordinal", version.select().ordinals(sorted(samples))), np.int64)
    ordinals = np.sort(ordinals)
    positions, rows = version.parts.locate(np.minimum(np.maximum(ordinals, 0), len(version) - 1))
    parts = pa.array([version.parts.id(int(position)) for position in positions])
    table = slice_table(ordinals, columns.get("part", parts), columns.get("row", rows), sorted(samples))
    body = {**saved.to_json(), "sha256": list_sha256(ordinals), "n_samples": len(ordinals)}
    root.store.put(saved.path, json.dumps(body).encode())
    root.store.put(saved.table_path, slice_table_bytes(saved, table))
    return saved


def test_stored_bytes_do_not_depend_on_chunks_of_the_keys(root, version):
    saved = root.save_slice("d@1", "cups", names(3, 7, 9), **WHO)
    ordinals = np.sort(version.select().ordinals(names(3, 7, 9)))
    positions, rows = version.parts.locate(ordinals)
    parts = pa.array([version.parts.id(int(position)) for position in positions])
    keys = version.keys(ordinals)
    chunked = pa.chunked_array([keys[:1], keys[1:]], pa.string())
    stored = root.store.get(saved.table_path).data
    for one in (keys, pa.array(keys, pa.string()), chunked):
        assert slice_table_bytes(saved, slice_table(ordinals, parts, rows, one)) == stored


def test_table_with_another_digest_is_corrupt(root, version):
    saved = root.save_slice("d@1", "cups", names(3, 7, 9), **WHO)
    other = root.save_slice("d@1", "plates", names(1, 2, 4), **WHO)
    view = version.slice("cups")
    assert len(view) == 3
    data = root.store.get(other.table_path).data
    root.store.put(saved.table_path, data)
    with refusal(
        Corrupt, what="table", where="slices/d/cups/000001.parquet", given="slices/d/plates/000001.parquet"
    ):
        version.slice("cups")
    root.store.delete_many([saved.table_path])
    with refusal(Corrupt, what="slices/d/cups/000001.parquet", where=root.store.url):
        version.slice("cups")
    root.store.put(saved.table_path, data[:-9])
    with refusal(Corrupt, what="table", where="slices/d/cups/000001.parquet"):
        version.slice("cups")


@pytest.mark.parametrize(
    ("ordinal", "what", "given"), [([3, 30], "ordinal", 30), ([-1, 3], "ordinals", [-1, 3])]
)
def test_forged_ordinals_out_of_range_are_corrupt(root, version, ordinal, what, given):
    forge(root, version, names(3, 7), ordinal=ordinal)
    with refusal(Corrupt, what=what, where="slices/d/cups/000001.parquet", given=given):
        version.slice("cups")


def test_forged_slice_shows_no_excluded_or_foreign_sample(root):
    first = publish(root, 0, 8, part_samples=8)
    foreign = publish(root, 0, 8, part_samples=8, dataset="e").parts.id(0)
    version = root.exclude("d@1", names(5), reason="private")
    own = version.parts.id(0)
    excluded_row = int(np.flatnonzero(~version.parts.live_members(0))[0])
    path = "slices/d/cups/000001.parquet"
    (ordinal,) = version.select().ordinals(names(3)).tolist()
    for part, row, what, given in (
        (own, excluded_row, "ordinal", ordinal),
        (foreign, 0, "ordinal", ordinal),
        (own, 8, "row", 8),
        (own, -1, "row", -1),
        (own, 2**60, "row", 2**60),
    ):
        forge(root, version, names(3), part=pa.array([part]), row=np.array([row]))
        with refusal(Corrupt, what=what, where=path, given=given):
            version.slice("cups")
        with refusal(Corrupt, what=what, where=path, given=given):
            slice_keys(version, "cups")
        root.store.delete_many([info.key for info in root.store.list("slices/")])
    forge(root, first, names(3), part=pa.array([own]), row=np.array([excluded_row]))
    assert version.select().slice("cups").keys(np.zeros(0, np.int64)) == []


def test_forged_rule_runs_no_query(root, version):
    saved = root.save_slice("d@1", "high", "w >= 25", **WHO)
    body = saved.to_json()
    for where, refused in (
        ("SELECT 1", "SELECT"),
        ("w > read_csv('/etc/passwd')", "read_csv(...)"),
        ("w IN (SELECT w FROM x)", "SELECT"),
    ):
        root.store.put(saved.path, json.dumps({**body, "where": where}).encode())
        with refusal(FieldNotFound, what=f"where({where!r})", given=refused):
            version.slice("high")
    root.store.put(saved.path, json.dumps({**body, "where": "w >= 24"}).encode())
    with refusal(Corrupt, what="sha256", where="d/high"):
        len(version.slice("high"))
    with refusal(Corrupt, what="expression", where="slices/d/high/000001.json", given="other samples"):
        slice_keys(version, "high")


def test_stored_bits_of_other_samples_are_corrupt(root, version):
    root.save_slice("d@1", "cups", names(3, 7, 9), **WHO)
    root.save_slice("d@1", "plates", names(3, 7), **WHO)
    for narrow in (lambda view: view, lambda view: view.where("w > 1")):
        cups, rest = narrow(version.slice("cups")), narrow(version.without("plates"))
        assert (len(cups), len(rest)) in [(3, 28), (3, 26)]
        bits = {one._path: root.store.get(one._path).data for one in (cups, rest)}
        for view, other in ((cups, rest), (rest, cups)):
            forged = parse_table(bits[other._path], "forged")
            root.store.put(view._path, table_bytes(forged, "view", facts={"path": view._path}))
            name = "d/cups" if view is cups else "d/plates"
            # The bits of a slice with a predicate are no slice's: they are compared one by one.
            what, place = ("slice", view._path) if view.predicate else ("sha256", name)
            with refusal(Corrupt, what=what, within=place):
                len(narrow(version.slice("cups") if view is cups else version.without("plates")))
            root.store.put(view._path, bits[view._path])


def test_ids_of_views_cover_their_slices_and_are_else_unchanged(root, version):
    view = version.where("w > 3")
    assert "slices" not in view.spec()
    body = {"version": version.id, "where": "w > 3", "groups": []}
    assert view.id == "w-" + hashlib.sha256(canonical_json(body)).hexdigest()
    ordinals = np.sort(version.select().ordinals(names(4, 5)))
    digest = hashlib.sha256(ordinals.astype("<i8").tobytes()).hexdigest()
    assert root.save_slice("d@1", "cups", names(4, 5), **WHO).sha256 == digest
    body["slices"] = [{"name": "cups", "n": 1, "sha256": digest, "without": False}]
    view = view.slice("cups")
    assert view.spec()["slices"] == body["slices"]
    assert view.id == "w-" + hashlib.sha256(canonical_json(body)).hexdigest()


def test_slices_agree_with_a_model_through_versions(root):
    """Random lists and rules over random appends, exclusions and rewrites, against sets of numbers."""
    turns = random.Random(7)
    version = publish(root, 0, 20, part_samples=5)
    live = set(range(20))
    n_all = 20
    lists: dict[str, set[int]] = {}
    rules: dict[str, int] = {}
    for turn in range(9):
        match turns.randrange(5):
            case 0:
                version = publish(root, n_all, 4)
                live |= set(range(n_all, n_all + 4))
                n_all += 4
            case 1:
                out = turns.sample(sorted(live), 2)
                version = root.exclude("d", names(*out), reason="bad")
                live -= set(out)
            case 2:
                version = rewrite(root, turns.sample(sorted(live), 2))
            case 3:
                rules[f"rule{turn}"] = turns.randrange(n_all)
                root.save_slice("d", f"rule{turn}", f"w < {rules[f'rule{turn}']}", **WHO)
            case _:
                lists[f"list{turn}"] = set(turns.sample(sorted(live), 5))
                root.save_slice("d", f"list{turn}", names(*lists[f"list{turn}"]), **WHO)
        model = {name: samples & live for name, samples in lists.items()}
        model |= {name: {i for i in live if i < bound} for name, bound in rules.items()}
        for name, samples in list(model.items())[-4:]:
            assert keys(version.slice(name)) == names(*sorted(samples)), (turn, name)
            assert keys(version.without(name)) == names(*sorted(live - samples)), (turn, name)
            _, stored = slice_keys(version, name)
            assert sorted(stored) == names(*sorted(samples))
        for name, other in list(pairwise(model))[-2:]:
            both = version.slice(name).without(other)
            assert keys(both) == names(*sorted(model[name] - model[other])), (turn, name, other)
    assert lists
    assert rules
    assert read_slice(root.store, "d", next(iter(lists))).kind == "list"
