"""What a root is, what its names mean, what is refused."""

import json
import pickle

import numpy as np
import pytest

import loader
from loader.errors import (
    Conflict,
    FormatTooNew,
    InvalidName,
    InvalidStore,
    NotARoot,
    VersionNotFound,
    VersionRetired,
)
from loader.storage import open_store
from tests.refusals import refusal
from tests.servers.processes import python


def write(root, *keys, dataset="d"):
    with root.write(dataset) as writer:
        for key in keys:
            writer.add(key, {"cls": 1})
    return writer.version


def test_reading_a_place_that_is_not_there(tmp_path):
    root = loader.Root(tmp_path / "none")
    for action in (root.datasets, lambda: root.open("d@1"), lambda: root.retire("d@1", reason="x")):
        with pytest.raises(NotARoot, match=r"none is not a penstock root: .*nothing is there.*root\.write"):
            action()
    assert not (tmp_path / "none").exists()


def test_folder_of_other_things_is_neither_read_nor_written(tmp_path):
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    root = loader.Root(tmp_path)
    for action in (root.datasets, lambda: write(root, "k"), root.create, lambda: root.begin("d")):
        with refusal(
            NotARoot, what="penstock.json", where=root.url, given="it holds other things (holiday.jpg ...)"
        ):
            action()
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]


def test_place_that_holds_only_the_record_of_a_training_becomes_a_root(tmp_path):
    root = loader.Root(tmp_path)
    root.store.put("trainings/big-7/attempts/000000.json", b"{}")
    assert len(write(root, "k")) == 1


def test_file_is_not_a_root(tmp_path):
    (tmp_path / "f").write_bytes(b"")
    with refusal(InvalidStore, what="store", where=str(tmp_path / "f"), given="a file"):
        loader.Root(tmp_path / "f")


@pytest.mark.parametrize(
    ("data", "what", "given"),
    [
        (b"", "syntax", 0),
        (b"{", "syntax", 1),
        (b"[]", "marker", "list"),
        (b"{}", "format", "missing"),
        (b'{"format":"x"}', "format", "x"),
        (b'{"format":null}', "format", None),
        (b"null", "marker", "NoneType"),
        (b"\xff", "syntax", None),
    ],
)
def test_damaged_marker(root, data, what, given):
    root.store.put("penstock.json", data)
    with refusal(NotARoot, what=what, where=f"{root.url}/penstock.json", given=given):
        root.datasets()


def test_newer_root(root):
    root.store.put("penstock.json", b'{"format":2,"id":"x"}')
    for action in (root.datasets, lambda: write(root, "k"), root.create):
        with refusal(FormatTooNew, what="format", where=f"{root.url}/penstock.json", given=2, accepted=1):
            action()


def test_no_root_given(monkeypatch):
    monkeypatch.delenv("PENSTOCK_ROOT", raising=False)
    with refusal(InvalidStore, what="url", given=None):
        loader.Root()


def test_environments_root(monkeypatch, url):
    write(loader.Root(url), "k")
    monkeypatch.setenv("PENSTOCK_ROOT", url)
    assert loader.Root().datasets() == ["d"]


def test_creating_twice_is_no_change(root):
    root.create()
    marker = root.store.get("penstock.json").data
    root.create()
    loader.Root(root.url).create()
    assert root.store.get("penstock.json").data == marker
    assert [info.key for info in root.store.list("")] == ["penstock.json"]


def test_store_that_replaces_on_create_is_refused(url, stores):
    """Some servers ignore the condition of a conditional write; two publishers there would lose a version."""

    class Replacing(stores.Counting):
        def put_if_absent(self, key, data):
            self.store.put(key, data)

    root = loader.Root(url)
    root._use(Replacing(root.store))
    with refusal(InvalidStore, what="create-only write", where=root.url, given="a replaced object"):
        write(root, "k")
    assert [info.key for info in root.store.list("")] == []


def test_names_of_versions(root):
    first, second = write(root, "a"), write(root, "b")
    root.tag("d@1", "paper")
    root.alias("d@1", "prod")
    root.alias("d@2", "prod")
    names = {
        "d": second,
        "d@latest": second,
        "d@1": first,
        "d@paper": first,
        "d@prod": second,
        first.id: first,
        first.id[:10]: first,
    }
    for ref, version in names.items():
        assert root.open(ref).id == version.id
    assert (second.name, second.number, second.dataset, len(second)) == ("d@2", 2, "d", 2)
    assert root.datasets() == ["d"]
    assert [record.name for record in root.versions("d")] == ["d@1", "d@2"]


@pytest.mark.parametrize(
    ("ref", "what", "given"),
    [
        ("d@3", "version", "d@3"),
        ("e", "dataset", "e"),
        ("e@1", "dataset", "e"),
        ("d@nope", "version", "d@nope"),
        ("v-" + "0" * 64, "id", "v-" + "0" * 64),
    ],
)
def test_unknown_refs(root, ref, what, given):
    write(root, "a")
    with refusal(VersionNotFound, what=what, given=given):
        root.open(ref)


@pytest.mark.parametrize("ref", ["", "@1", "d@01", "d@", "v-xyz", "a/b", "../x", "d@a/b", 5, None, b"d@1"])
def test_malformed_refs(root, ref):
    write(root, "a")
    with pytest.raises(InvalidName):
        root.open(ref)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "../x", "v-1", "-a", "a" * 129, "ü"])
def test_bad_dataset_names(root, name):
    with refusal(InvalidName, what="dataset", given=name):
        root.write(name)
    with refusal(InvalidName, what="dataset", given=name):
        root.begin(name)


@pytest.mark.parametrize(
    ("name", "is_reserved"), [("latest", True), ("7", True), ("v-abc", True), ("a b", False), ("", False)]
)
def test_bad_tags(root, name, is_reserved):
    write(root, "a")
    rule = "1 to 128 of A-Z a-z 0-9 . _ - and the first a letter or digit"
    accepted = "a name that is not reserved" if is_reserved else rule
    for action in (root.tag, root.alias):
        with refusal(InvalidName, what="name", given=name, accepted=accepted):
            action("d@1", name)


def test_tag_does_not_move_an_alias_does(root):
    write(root, "a")
    write(root, "b")
    root.tag("d@1", "t")
    root.tag("d@1", "t")
    with refusal(Conflict, what="name", where="d@t", given="tag", accepted="tag"):
        root.tag("d@2", "t")
    with refusal(Conflict, what="name", where="d@t", given="alias", accepted="tag"):
        root.alias("d@2", "t")
    root.alias("d@1", "a")
    root.alias("d@2", "a")
    assert root.open("d@a").number == 2


def test_retired_version_cannot_be_opened(root):
    write(root, "a")
    second = write(root, "b")
    root.tag("d@2", "t")
    root.retire("d@2", reason="leaked labels")
    for ref in ("d@2", "d@t", second.id):
        with refusal(VersionRetired, what=ref, where=second.id, given="leaked labels"):
            root.open(ref)
    assert root.open("d").number == 1
    root.retire("d@2", reason="again")
    assert root.record("d@2", retired=True).retired == "leaked labels"
    root.retire("d@1", reason="all")
    with refusal(VersionRetired, what="version", given="d"):
        root.open("d")


def test_what_comes_after_retirements_builds_on_what_is_left(root):
    write(root, "a")
    write(root, "b")
    root.retire("d@2", reason="x")
    third = write(root, "c")
    assert (third.number, third.manifest["parent"], len(third)) == (3, root.record("d@1").id, 2)
    root.retire("d@1", reason="x")
    root.retire("d@3", reason="x")
    fourth = write(root, "b")
    assert (fourth.number, fourth.manifest["parent"], len(fourth)) == (4, None, 1)


def copy_by_pickle(thing):
    return pickle.loads(pickle.dumps(thing))  # noqa: S301 - what it just dumped


def test_everything_pickles(root):
    version = write(root, "a", "b")
    view = version.select("cls").where("key = 'b'")
    for thing in (root, version, view):
        again = copy_by_pickle(thing)
        assert repr(again) == repr(thing)
    assert copy_by_pickle(root).open("d").id == version.id
    again = copy_by_pickle(view)
    assert (again.id, len(again), again.keys(again.version_ordinals(np.arange(1)))) == (
        view.id,
        1,
        ["b"],
    )


def test_lease_is_left_and_given_back(root):
    version = write(root, "a")
    reader = loader.Root(root.url)
    reader.open("d")
    reader.open("d@1")
    (lease,) = [info.key for info in root.store.list("leases/")]
    reader.renew_leases()
    said = json.loads(root.store.get(lease).data)
    assert (said["beat"], said["versions"]) == (2, [version.id])
    reader.close()
    assert list(root.store.list("leases/")) == []


def test_lease_is_given_back_at_the_end_of_the_process(tmp_path):
    write(loader.Root(tmp_path), "a")
    code = "import loader, sys; r = loader.Root(sys.argv[1]); r.open('d'); print(len(list(r.store.list('leases/'))))"
    run = python("-W", "error", "-c", code, tmp_path)
    assert (run.returncode, run.stdout, run.stderr) == (0, "1\n", "")
    assert list(open_store(tmp_path).list("leases/")) == []


def test_threads_share_a_root(root):
    """Sixteen publish at once through one Root, and all open the result: one lease is left."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(16) as pool:
        written = list(pool.map(lambda i: write(root, f"a{i}", f"b{i}"), range(16)))
        assert sorted(version.number for version in written) == list(range(1, 17))
        opened = list(pool.map(lambda _: root.open("d@16"), range(16)))
        assert {len(version) for version in opened} == {32}
        shared = opened[0]
        ordinals = list(pool.map(lambda i: shared.keys(np.array([i])), range(32)))
    assert len({key for (key,) in ordinals}) == 32
    assert len(list(root.store.list("leases/"))) == 1
