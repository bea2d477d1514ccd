"""Raw objects at their source: those that only the subject's samples were cut of go, and no others."""

import itertools
import json
import re

import pyarrow as pa
import pytest

import loader
from loader.dataset.log.denies import Target
from loader.dataset.tables.parquet import put_table
from loader.errors import Corrupt, Forbidden
from penstock.denied.record import add_to_record, read_record
from penstock.formats.files_beside import files_beside
from penstock.upkeep.takedown.raw_objects import RawDeletion, _fits, shared_raw_objects
from penstock.upkeep.takedown.takedown_run import run_takedown
from tests.refusals import refusal
from tests.servers.processes import python

SECRET = "ZQALICEZQ"
RAW = "/landing/raw.jpg"


def write(root, dataset, samples):
    """A version more. samples: key -> (URI of its raw object, subject)."""
    with root.write(dataset) as writer:
        for key, (uri, subject) in samples.items():
            writer.add(key, {"txt": f"<{subject} {key}>"}, source={"raw_uri": uri, "subject": subject})


def without_disk(uri, places):
    """As `why_unreadable`: raw objects of these tests are only names."""
    return ""


def run(root, n):
    """(what a run with --delete-raw says, what it deleted)."""
    deleted = []
    return run_takedown(
        root,
        n,
        apply=True,
        raw=RawDeletion(deleted.append, files_beside, without_disk),
        raw_below=["/landing"],
    ), deleted


def stays(root, n):
    """RAW is told of before the run and by it, and not deleted."""
    before = run_takedown(root, n, apply=False)
    ran, deleted = run(root, n)
    assert deleted == []
    assert before.shared == [RAW]
    assert (ran.uris, ran.shared, ran.deleted) == ([], [RAW], [])
    assert f"others need too, left at its source: {RAW}" in ran.text()
    assert read_record(root.store, n).having("raw") == []


@pytest.mark.parametrize("spelled", [RAW, f"file://{RAW}"])
def test_what_another_dataset_was_cut_of_stays(kit, root, spelled):
    for dataset, uri in (("photos", spelled), ("clips", RAW)):
        write(root, dataset, {"k1": (uri, "bob"), "k2": (f"{uri}.other", "carol")})
    n = kit.deny(root, Target(kind="sample", value="k1", dataset="clips"))
    stays(root, n)
    assert sorted(kit.content(root.open("clips"))) == ["k2"]
    assert sorted(kit.content(root.open("photos@1"))) == ["k1", "k2"]
    kit.sweep(root)
    assert kit.prove(root, n)["result"] == "complete"


def test_damaged_record_of_another_dataset_is_named(kit, root):
    """Nobody can tell whether it needs the raw object."""
    write(root, "clips", {"k1": (RAW, "bob")})
    root.store.put("stages/photos/units/000001-1f0c99ab/000001.json", b"{")
    n = kit.deny(root, Target(kind="sample", value="k1", dataset="clips"))
    path = "stages/photos/units/000001-1f0c99ab/000001.json"
    with refusal(Corrupt, what="JSON object", where=f"{root.url}/{path}"):
        run_takedown(root, n, apply=True)


def test_what_other_samples_of_the_dataset_were_cut_of_stays(kit, root):
    write(root, "clips", {"k1": (RAW, "bob"), "k2": (RAW, "carol")})
    stays(root, kit.deny(root, Target(kind="sample", value="k1", dataset="clips")))


@pytest.mark.parametrize("dataset", ["photos", "clips"])
def test_what_a_part_that_waits_was_cut_of_stays(kit, root, dataset):
    write(root, "clips", {"k1": (RAW, "bob"), "k2": ("other", "carol")})
    txn = root.begin(dataset)
    loader.write_part(root, txn, [("k3", {"txt": "x"}, {}, {"raw_uri": RAW})])
    n = kit.deny(root, Target(kind="sample", value="k1", dataset="clips"))
    stays(root, n)
    root.abort(txn, "not wanted any more")
    assert run(root, n)[1] == [RAW]


def a_batch(store):
    body = {"format": 1, "dataset": "photos", "objects": [{"key": "raw.jpg", "uri": RAW, "etag": "1"}]}
    store.put("tables/photos/manifests/000001.json", json.dumps(body).encode())


def a_table(store):
    put_table(store, "tables/photos/raw_objects/1/x.parquet", pa.table({"uri": [RAW]}), "raw_objects")


def a_record(store):
    store.put("stages/photos/media/1/000000000001.json", json.dumps({"body": {"raw": [RAW]}}).encode())


@pytest.mark.parametrize("names", [a_batch, a_table, a_record])
def test_what_another_pipeline_names_stays(kit, root, names):
    write(root, "clips", {"k1": (RAW, "bob"), "k2": ("other", "carol")})
    names(root.store)
    stays(root, kit.deny(root, Target(kind="sample", value="k1", dataset="clips")))


MANY_NAMES = """
import loader
from loader.dataset.log.denies import Target
from penstock.upkeep.takedown.takedown_run import run_takedown

RAW = "/landing/" + "a" * 1000 + ".jpg"
root = loader.Root("memory://many")
for dataset, uri in (("photos", "/landing/" + "(taken down)" * 200 + "b.jpg"), ("clips", RAW)):
    with root.write(dataset) as writer:
        writer.add("k1", {"txt": "x"}, source={"raw_uri": uri})
        writer.add("k2", {"txt": "y"}, source={"raw_uri": f"{uri}.other"})
n = root.log.deny([Target(kind="sample", value="k1", dataset="clips")], "ticket", "desk").n
print(run_takedown(root, n, apply=False).uris == [RAW])
"""


def test_name_of_many_names_that_were_taken_out_stops_no_takedown():
    """In a process of its own, which can be ended."""
    done = python("-c", MANY_NAMES)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_address_that_names_were_taken_out_of_fits_as_written():
    """Against a regular expression, for every short address and what may be left of one."""
    for pieces in itertools.product(("", "a", "ab", "ba"), repeat=3):
        said = re.compile(".+".join(pieces))
        for uri in map(
            "".join, itertools.chain.from_iterable(itertools.product("ab", repeat=n) for n in range(8))
        ):
            assert _fits(uri, list(pieces)) == bool(said.fullmatch(uri)), (uri, pieces)


def a_part(store):
    root = loader.Root(store.url)
    loader.write_part(root, root.begin("photos"), [("k3", {"txt": "x"}, {}, {"raw_uri": RAW})])


@pytest.mark.parametrize("names", [a_batch, a_table, a_record, a_part])
def test_what_a_listing_lacks_once_is_used_by_others(root, names):
    write(root, "clips", {"k2": ("other", "carol")})
    names(root.store)
    lacks, real, seen = names_of_photos(root), root.store.list, set()

    def list_without_once(prefix="", start_after=None):
        once = prefix not in seen
        seen.add(prefix)
        return (one for one in real(prefix, start_after) if not (once and one.key in lacks))

    assert lacks
    root.store.list = list_without_once
    assert shared_raw_objects(root, {"clips": [RAW]}) == {RAW}


def names_of_photos(root):
    """Keys of what a pipeline has of photos, and of its open transaction."""
    txns = {txn.txn for txn in loader.Root(root.url).state.txns.values() if txn.dataset == "photos"}
    return {one.key for one in root.store.list() if {"photos", *txns} & set(one.key.split("/")[1:2])}


def test_it_goes_last_and_once(kit, root):
    """When no dataset has samples of it any more, all of them denied, also by different takedowns."""
    for dataset in ("photos", "clips"):
        write(root, dataset, {"k1": (RAW, SECRET), "k2": ("other", "carol")})
    write(root, "texts", {"k1": (RAW, "bob"), "k2": ("other", "carol")})
    kit.deny(root, Target(kind="sample", value="k1", dataset="texts"))
    n = kit.deny(root)
    deleted = []

    def delete(uri):
        assert [root.state.newest(dataset).number for dataset in ("photos", "clips")] == [2, 2]
        deleted.append(uri)

    ran = run_takedown(
        root, n, apply=True, raw=RawDeletion(delete, files_beside, without_disk), raw_below=["/landing"]
    )
    assert deleted == ran.uris == ran.deleted == [RAW]
    assert f"deleted at its source: {RAW}" in ran.text()


def test_it_may_be_deleted_by_a_later_run(kit, root):
    write(root, "photos", {"k1": (RAW, SECRET), "k2": ("other", "carol")})
    n = kit.deny(root)
    ran = kit.take_down(root, n)
    assert (ran.uris, ran.deleted) == ([RAW], [])
    assert f"raw object, left at its source: {RAW}" in ran.text()
    assert run(root, n)[1] == [RAW]
    assert kit.take_down(root, n).deleted == [RAW]  # the next run knows, and does not take it back
    kit.sweep(root)
    assert kit.prove(root, n)["result"] == "complete"


@pytest.mark.parametrize("swept", [False, True])
def test_raw_object_that_a_later_sample_needs(kit, root, swept):
    """It was theirs alone when it was noted; it stays now, and keeps no proof incomplete, also when nobody knows its
    address any more, until what was cut of it is taken down too."""
    write(root, "clips", {"k1": (RAW, "bob"), "k2": ("other", "carol")})
    n = kit.deny(root, Target(kind="sample", value="k1", dataset="clips"))
    assert kit.take_down(root, n).uris == [RAW]
    if swept:
        kit.sweep(root)
    write(root, "photos", {"z": (f"file://{RAW}", "zed"), "y": ("another", "yan")})
    assert run(root, n)[1] == []
    kit.sweep(root)
    proof = kit.prove(root, n)
    (raw,) = [one for one in proof["places"] if one["check"] == "raw"]
    assert (raw["deleted"], raw["clean"], proof["result"]) == (False, True, "complete")
    m = kit.deny(root, Target(kind="subject", value="zed"))
    kit.take_down(root, m)
    kit.sweep(root)
    assert kit.prove(root, n)["result"] == kit.prove(root, m)["result"] == "incomplete"


def test_one_that_is_refused_is_not_on_record_as_deleted(kit, root):
    uris = ["/landing/a.jpg", "/landing/b.jpg", "/landing/c.jpg"]
    write(root, "photos", {f"k{i}": (uri, SECRET) for i, uri in enumerate(uris)} | {"k9": ("other", "bob")})
    n = kit.deny(root)
    asked = []

    def refuses(uri):
        asked.append(uri)
        if uri == uris[1]:
            raise Forbidden(f"{uri}: no right to delete")

    with pytest.raises(Forbidden):
        run_takedown(
            root, n, apply=True, raw=RawDeletion(refuses, files_beside, without_disk), raw_below=["/landing"]
        )
    assert asked == uris[:2]
    assert sorted(place["deleted"] for place in read_record(root.store, n).having("raw")) == [
        False,
        False,
        True,
    ]
    ran, deleted = run(root, n)
    assert deleted == ran.deleted == uris
    kit.sweep(root)
    assert kit.prove(root, n)["result"] == "complete"


@pytest.mark.parametrize("said", [(True, False), (False, True)])
def test_record_that_says_both_says_deleted(root, said):
    """As earlier releases left it, where --delete-raw came with a later run."""
    for name, deleted in zip("ab", said, strict=True):
        place = {"check": "raw", "what": "raw object", "of": "photos", "mark": "m", "deleted": deleted}
        body = {"format": 1, "takedown": 7, "places": [place], "marks": {}}
        root.store.put(f"takedowns/000000000007/{name}.json", json.dumps(body).encode())
    (found,) = read_record(root.store, 7).places
    assert found == {**place, "deleted": True}
    again = add_to_record(root.store, 7, [place, found])
    assert (again.places, len(list(root.store.list("takedowns/")))) == ((found,), 2)
