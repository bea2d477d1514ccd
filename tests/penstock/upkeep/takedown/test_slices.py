"""A takedown of samples that slices name: lists, rules and reasons."""

import json
import shutil

import numpy as np
import pytest

import loader
from loader.dataset.slices import list_slices, remove_slice
from loader.dataset.tables.slice_record import read_slice
from loader.storage import open_store
from penstock.denied.record import read_record
from penstock.upkeep.takedown.mirrors import purge_mirror

SECRET = "ZQALICEZQ"
KEY = f"{SECRET}/one"
WHO = {"by": "ann", "why": "odd"}


class Killed(BaseException):
    """A process that ends here."""


@pytest.fixture
def root(kit, tmp_path):
    root = loader.Root(tmp_path / "root")
    kit.write(root, "photos", {KEY: SECRET, "p2": "bob", "p3": "carol", "p4": "dan"}, part_samples=2)
    return root


def keys(view):
    return sorted(view.keys(view.version_ordinals(np.arange(len(view)))))


def save(root):
    root.save_slice("photos", "cups", [KEY, "p2", "p3"], **WHO)
    root.save_slice("photos", "only", [KEY], **WHO)
    root.save_slice("photos", "clean", ["p2"], **WHO)
    root.save_slice("photos", "rule", f"key = '{KEY}' OR key = 'p2'", by="ann", why=f"like {KEY}")
    root.save_slice("photos", "ended", [KEY, "p4"], **WHO)
    remove_slice(root, "photos", "ended", by="bo", why=f"shows {KEY}")


def test_slices_lose_the_sample_and_the_proof_finds_nothing(kit, root):
    save(root)
    view = root.open("photos").select("txt").slice("cups")
    loader.plan({"p": view}, seed=1, global_batch=1).save(root)
    n = kit.deny(root)
    kit.take_down(root, n)
    kit.sweep(root)
    assert kit.found(root, SECRET) == []
    assert kit.prove(root, n)["result"] == "complete"
    later = root.open("photos")
    assert keys(later.slice("cups")) == ["p2", "p3"]
    assert keys(later.slice("clean")) == keys(later.slice("rule")) == ["p2"]
    assert keys(later.slice("ended", 1)) == ["p4"]
    assert [one.name for one in list_slices(root).slices] == ["clean", "cups", "rule"]
    assert list_slices(root).damaged == {}
    assert read_slice(root.store, "photos", "rule").why == "like (taken down)"
    assert read_slice(root.store, "photos", "cups").n_samples == 2
    assert not list(root.store.list("slices/photos/only/"))
    report = kit.take_down(root, n)
    assert not [path for path in report.touched if path.startswith("slices/")], "it found nothing more"


def test_slice_saved_after_the_takedown_of_a_retired_version_makes_the_proof_incomplete(kit, root):
    save(root)
    saved = read_slice(root.store, "photos", "cups")
    data = root.store.get(saved.table_path).data
    record = root.store.get(saved.path).data
    n = kit.deny(root)
    kit.take_down(root, n)
    kit.sweep(root)
    root.store.put(saved.table_path, data)
    root.store.put(saved.path, record)
    proof = kit.prove(root, n)
    assert proof["result"] == "incomplete"
    assert [one["path"] for one in proof["places"] if not one["clean"]] == [saved.table_path]
    kit.take_down(root, n)
    assert kit.prove(root, n)["result"] == "complete"
    assert keys(root.open("photos").slice("cups")) == ["p2", "p3"]


def test_takedown_killed_between_record_and_table_continues(kit, root, monkeypatch):
    save(root)
    saved = read_slice(root.store, "photos", "cups")
    n = kit.deny(root)
    put = type(root.store).put

    def put_or_die(store, key, data, **options):
        if key == saved.table_path:
            raise Killed
        return put(store, key, data, **options)

    monkeypatch.setattr(type(root.store), "put", put_or_die)
    with pytest.raises(Killed):
        kit.take_down(root, n)
    monkeypatch.undo()
    assert saved.table_path in kit.found(root, SECRET)
    kit.take_down(root, n)
    kit.sweep(root)
    assert kit.prove(root, n)["result"] == "complete"
    assert keys(root.open("photos").slice("cups")) == ["p2", "p3"]


def test_damaged_slices_are_deleted_as_they_cannot_be_searched(kit, root):
    save(root)
    saved = read_slice(root.store, "photos", "cups")
    root.store.put(saved.table_path, b"PAR1" + SECRET.encode())
    root.store.put("slices/photos/rule/000001.json", b"{" + json.dumps(SECRET).encode())
    n = kit.deny(root)
    kit.take_down(root, n)
    kit.sweep(root)
    assert kit.prove(root, n)["result"] == "complete"
    assert kit.found(root, SECRET) == []
    assert [one.name for one in list_slices(root).slices] == ["clean"]


def test_table_of_an_unfinished_save_goes_whole(kit, root):
    save(root)
    saved = read_slice(root.store, "photos", "cups")
    root.store.delete_many([saved.path])
    n = kit.deny(root)
    kit.take_down(root, n)
    assert not list(root.store.list("slices/photos/cups/"))


def test_slices_go_at_a_mirror(kit, root, tmp_path):
    save(root)
    mirror = tmp_path / "mirror"
    shutil.copytree(tmp_path / "root", mirror)
    n = kit.deny(root)
    kit.take_down(root, n)
    purge_mirror(str(mirror), read_record(root.store, n), root.store)
    store = open_store(str(mirror), None)
    remaining = sorted(info.key for info in store.list("slices/"))
    assert "slices/photos/cups/000001.parquet" not in remaining
    assert "slices/photos/only/000001.json" not in remaining
    assert "slices/photos/clean/000001.parquet" in remaining
