"""Exclusions by people of samples that are taken down: the names go, and the others stay excluded."""

import json
import shutil

import pytest

import loader
from loader.dataset.log.denies import Target
from loader.storage import open_store
from penstock.cli import main
from penstock.denied.record import read_record
from penstock.exclusion_records import FORMAT, records, standing
from penstock.upkeep.exclusion import exclude, withdraw
from penstock.upkeep.takedown.mirrors import purge_mirror

SECRET = "ZQALICEZQ"


@pytest.fixture
def exclusion_root(kit, root):
    """A root with exclusions of a sample that is to be taken down, alone and with another one, and withdrawals."""
    kit.write(root, "photos", {"p1": SECRET, "p2": "bob", "p3": "carol", "alone": SECRET})
    told = {"reason": f"asked by {SECRET}", "by": "ann", "page": "http://x/v/photos/1?where=key='alone'"}
    exclude(root, "photos@1", ["p1", "p2"], **told)
    exclude(root, "photos@1", ["alone"], reason="dark", by=SECRET)
    withdraw(root, "photos", ["p1", "alone"], **told)
    withdraw(root, "photos", ["p2"], reason="fine", by="ann")
    exclude(root, "photos@1", ["p2"], **told)
    return root


def unclean_paths(kit, root, n):
    return [one["path"] for one in kit.prove(root, n)["places"] if not one["clean"]]


def test_records_lose_the_names_and_the_others_stay(kit, exclusion_root, tmp_path):
    before = {one.path: one for one in records(exclusion_root.store, "photos")}
    n = kit.deny(exclusion_root)
    kit.take_down(exclusion_root, n)
    kit.sweep(exclusion_root)
    found = records(exclusion_root.store, "photos")
    assert [one.keys for one in found] == [("p2",), ("p2",), ("p2",)]
    assert {one.path for one in found} <= before.keys()
    assert standing(found).keys() == {"p2"}
    assert [one.reason for one in found] == ["asked by (taken down)", "fine", "asked by (taken down)"]
    assert kit.found(exclusion_root, SECRET, "alone") == []
    proof = kit.prove(exclusion_root, n)
    assert proof["result"] == "complete"
    touched = [info.etag for info in exclusion_root.store.list("exclusions/")]
    kit.take_down(exclusion_root, n)
    assert [info.etag for info in exclusion_root.store.list("exclusions/")] == touched
    copy = tmp_path / "copy"
    for info in exclusion_root.store.list(""):
        (copy / info.key).parent.mkdir(parents=True, exist_ok=True)
        (copy / info.key).write_bytes(bytes(exclusion_root.store.get(info.key).data))
    assert kit.recheck(proof, copy, tmp_path) == (0, "complete\n")


def test_record_that_came_late_is_found(kit, exclusion_root, tmp_path):
    record = records(exclusion_root.store, "photos")[0]
    n = kit.deny(exclusion_root)
    kit.take_down(exclusion_root, n)
    kit.sweep(exclusion_root)
    exclusion_root.store.put(record.path, json.dumps(record.to_json()).encode())
    assert unclean_paths(kit, exclusion_root, n) == [record.path]
    other = f"exclusions/photos/{'0' * 16}.txt"
    exclusion_root.store.put(other, b"a note")
    kit.take_down(exclusion_root, n)
    assert unclean_paths(kit, exclusion_root, n) == [other], "a proof names what it cannot search"


def test_another_datasets_record_of_the_same_key_stays(kit, exclusion_root):
    kit.write(exclusion_root, "clips", {"p1": "zed", "p9": "zed"})
    record, _ = exclude(exclusion_root, "clips", ["p1"], reason="dark", by="ann")
    n = kit.deny(exclusion_root, Target(kind="sample", value="p1", dataset="photos"))
    kit.take_down(exclusion_root, n)
    assert records(exclusion_root.store, "clips") == [record]
    assert "p1" not in {key for one in records(exclusion_root.store, "photos") for key in one.keys}


@pytest.mark.parametrize("name", ["reason", "by", "page"])
def test_version_whose_exclusion_names_a_sample_is_retired(kit, root, name):
    """Also where the excluded sample is another one's."""
    kit.write(root, "photos", {"p1": "bob", "p2": "carol", "p3": "carol"})
    told = {"reason": "dark", "by": "ann", name: f"see {SECRET} or"}
    exclude(root, "photos", ["p1"], **told)
    kit.write(root, "photos", {"p4": SECRET})
    n = kit.deny(root)
    kit.take_down(root, n)
    kit.sweep(root)
    assert kit.found(root, SECRET) == []
    assert unclean_paths(kit, root, n) == []
    assert set(root.open("photos").samples().collect()["key"]) == {"p2", "p3"}


def test_mirror_gets_the_records_as_they_are(kit, tmp_path):
    root = loader.Root(tmp_path / "root")
    kit.write(root, "photos", {"p1": SECRET, "p2": "bob", "p3": "bob"})
    record, _ = exclude(root, "photos", ["p1", "p2"], reason="dark", by="ann")
    mirror = str(tmp_path / "mirror")
    assert main(["migrate", "run", mirror, "--root", root.url]) == 0
    store = open_store(mirror)
    assert bytes(store.get(record.path).data) == bytes(root.store.get(record.path).data)
    n = kit.deny(root)
    kit.take_down(root, n)
    kit.sweep(root)
    assert main(["migrate", "run", mirror, "--root", root.url]) == 0
    shutil.rmtree(tmp_path / "mirror" / "data")  # what its own collector does, at length
    (place,) = [one for one in kit.prove(root, n, mirrors=[mirror])["places"] if not one["clean"]]
    assert place["why"] == f"1 objects are still there, such as {record.path}"
    assert purge_mirror(mirror, read_record(root.store, n), root.store) == 1
    assert main(["migrate", "run", mirror, "--root", root.url]) == 0
    assert bytes(store.get(record.path).data) == bytes(root.store.get(record.path).data)
    assert kit.prove(root, n, mirrors=[mirror])["result"] == "complete"


def test_empty_or_damaged_record_stops_nobody(kit, exclusion_root):
    for body in ({"format": FORMAT}, {"format": FORMAT, "samples": 3}, {"format": FORMAT, "keys": ["p1"]}):
        exclusion_root.store.put(
            f"exclusions/photos/{len(json.dumps(body)):016x}.json", json.dumps(body).encode()
        )
    n = kit.deny(exclusion_root)
    kit.take_down(exclusion_root, n)
    kit.sweep(exclusion_root)
    assert unclean_paths(kit, exclusion_root, n) == []
