"""Registered objects that were copied into the root, which then needs nobody else's place."""

import json
import os
import shutil

import pytest

import loader
from loader.dataset.tables.place_records import is_adopted
from loader.errors import Conflict, InvalidRuntime
from loader.storage import open_store
from penstock.cli import main
from penstock.formats.registration.adoption import adopt
from penstock.formats.registration.register import register
from penstock.formats.registration.sealing import seal
from penstock.upkeep.copying.items import Pace
from penstock.upkeep.gc.collector import Options, collect
from penstock.upkeep.migrate.mirror_update import migrate
from penstock.upkeep.verify.version import verify
from tests.penstock.formats.builders import tars
from tests.refusals import refusal

DAY_US = 86_400 * 10**6


def digests(version, n=5):
    plan = loader.plan({"p": version.select("txt", "cls")}, seed=3, global_batch=16)
    with loader.Loader(plan) as batches:
        return [batch.digest for _, batch in zip(range(n), batches, strict=False)]


def foreign_objects(root):
    return {info.key: root.store.get(info.key).data for info in root.store.list("foreign/")}


def test_without_seals_nothing_is_copied_or_read(root, three, capsys):
    version = register(root, "webdataset", three, "photos").version
    with refusal(InvalidRuntime, what="checksums"):
        adopt(root, "photos")
    assert foreign_objects(root) == {}
    seal(version)
    adopt(root, "photos")
    root.store.delete_many([info.key for info in root.store.list("seals/")])
    with pytest.raises(InvalidRuntime, match="penstock seal photos@1 first"):
        digests(root.open("photos"))


def test_bytes_that_were_damaged_since_the_sealing_are_not_adopted(root, three, sealed_version, capsys):
    path = three / "001.tar"
    told, data = path.stat(), path.read_bytes()
    at = data.index(b"1-5") if b"1-5" in data else 600
    path.write_bytes(data[:at] + b"x" + data[at + 1 :])
    os.utime(path, ns=(told.st_atime_ns, told.st_mtime_ns))
    assert main(["adopt", "photos", "--root", root.url]) == 1
    assert "001.tar, bytes [" in capsys.readouterr().out
    assert len(foreign_objects(root)) == 2
    assert not is_adopted(root.store, next(iter(foreign_objects(root))).split("/")[1])
    path.write_bytes(data)
    os.utime(path, ns=(told.st_atime_ns, told.st_mtime_ns))
    assert main(["adopt", "photos", "--root", root.url]) == 0
    assert set(foreign_objects(root).values()) == {one.read_bytes() for one in three.iterdir()}


def test_registered_again_what_was_adopted_may_be_gone(root, three, sealed_version):
    adopt(root, "photos")
    (three / "000.tar").unlink()
    tars.fill(three, {"003.tar": tars.number_samples(3, 40)})
    done = register(root, "webdataset", three, "photos")
    assert (done.new, done.missing, len(done.version)) == (1, 0, 160)
    seal(done.version)
    assert len(digests(root.open("photos"), 10)) == 10
    adopt(root, "photos")
    shutil.rmtree(three)
    assert len(digests(root.open("photos"), 10)) == 10
    assert len(foreign_objects(root)) == 4


def test_another_dataset_takes_no_adopted_place_from_the_one_that_has_it(root, three, sealed_version):
    adopt(root, "photos")
    with refusal(Conflict, what="copies", given="others", accepted="another dataset"):
        register(root, "webdataset", three, "others")
    shutil.rmtree(three)
    assert digests(root.open("photos"))


def test_collector_keeps_adopted_objects_that_a_version_needs_and_deletes_the_others(
    root, three, sealed_version
):
    adopt(root, "photos")
    last = root.open("photos").keys([0])
    root.exclude("photos", last, reason="blurred")
    root.retire("photos@1", reason="old")
    del sealed_version
    options = Options(grace_s=0)
    for day in (1, 99, 199):
        collect(root, options, apply=True, now_us=day * DAY_US)
    assert len(foreign_objects(root)) == 3
    assert verify(root, "photos", full=True).problems == []
    root.retire("photos@2", reason="old")
    for day in (299, 399, 499):
        collect(root, options, apply=True, now_us=day * DAY_US)
    assert foreign_objects(root) == {}


def test_mirror_has_what_was_adopted_also_after_it_was_copied(root, three, sealed_version, tmp_path):
    target = open_store(str(tmp_path / "mirror"))
    migrate(root, target, Pace())
    adopt(root, "photos")
    migrate(root, target, Pace())
    mirror = loader.Root(tmp_path / "mirror")
    before = digests(sealed_version)
    shutil.rmtree(three)
    assert digests(mirror.open("photos")) == before
    assert verify(mirror, "photos", full=True).problems == []


def takedown_proof(root, n, tmp_path):
    main(["takedown", "prove", str(n), "--out", str(tmp_path / "proof.json"), "--root", root.url])
    return json.loads((tmp_path / "proof.json").read_text())


def run_takedown(root, key):
    told = ["--reason", "ticket 1", "--by", "desk", "--root", root.url]
    assert main(["takedown", "request", "--dataset", "photos", "--sample", key, *told]) == 0
    n = root.state.denies[-1].n if root.log.refresh() else 0
    assert main(["takedown", "run", str(n), "--apply", "--root", root.url]) in (0, 1)
    return n


def test_proof_names_the_owners_object_until_it_is_deleted(root, three, tmp_path):
    register(root, "webdataset", three, "photos")
    n = run_takedown(root, "1/0003")
    (place,) = [one for one in takedown_proof(root, n, tmp_path)["places"] if one["check"] == "registered"]
    assert not place["clean"]
    assert f"{three}/001.tar" in place["why"]
    (three / "001.tar").unlink()
    (place,) = [one for one in takedown_proof(root, n, tmp_path)["places"] if one["check"] == "registered"]
    assert place["clean"]


def test_disk_that_is_not_mounted_proves_nothing(root, three, tmp_path):
    register(root, "webdataset", three, "photos")
    n = run_takedown(root, "1/0003")
    three.rename(tmp_path / "unmounted")
    for has_mount_point in (False, True):
        if has_mount_point:
            three.mkdir()
        places = takedown_proof(root, n, tmp_path)["places"]
        (place,) = [place for place in places if place["check"] == "registered"]
        assert not place["clean"]


def test_adopted_bytes_are_taken_down_as_the_roots_own(root, three, sealed_version, tmp_path):
    adopt(root, "photos")
    del sealed_version
    shutil.rmtree(three)
    secret = b"1-3" * 4
    assert sum(secret in data for data in foreign_objects(root).values()) == 1
    n = run_takedown(root, "1/0003")
    root = loader.Root(root.url)
    assert len(root.open("photos")) == 119
    assert verify(root, "photos", full=True).problems == []
    (gone,) = [one for one in takedown_proof(root, n, tmp_path)["places"] if one["what"] == "adopted object"]
    assert not gone["clean"]
    for day in (1, 99, 199):
        collect(root, Options(grace_s=0), apply=True, now_us=day * DAY_US)
    assert len(foreign_objects(root)) == 2
    assert not any(secret in root.store.get(info.key).data for info in root.store.list(""))
    (gone,) = [one for one in takedown_proof(root, n, tmp_path)["places"] if one["what"] == "adopted object"]
    assert gone["clean"]
    assert verify(loader.Root(root.url), "photos", full=True).problems == []


def test_files_of_one_index_are_kept_each(root, tmp_path):
    place = tmp_path / "files"
    place.mkdir()
    for k in range(6):
        (place / f"{k}.txt").write_text(f"text {k}" * (k + 1))
    seal(register(root, "files", place, "texts").version)
    adopt(root, "texts")
    shutil.rmtree(place)
    for day in (1, 99, 199):
        collect(root, Options(grace_s=0), apply=True, now_us=day * DAY_US)
    assert len(foreign_objects(root)) == 6
    assert verify(root, "texts", full=True).problems == []
