"""Imports: the next version, objects that change or are damaged meanwhile, and how units are guessed and cleared."""

import json
import tarfile

import numpy as np
import pytest

import loader
from loader.errors import Conflict, EmptyVersion, FieldMismatch, Forbidden, InvalidStore
from loader.storage import open_store
from penstock.formats import run_import
from penstock.formats.importing.walk import UnitsAhead, Walk
from penstock.formats.importing.write_parts import delete_units
from penstock.formats.reading.sample import object_shards
from penstock.formats.registration.register import register
from penstock.formats.registration.source_difference import PlaceDifference
from penstock.formats.registry import registered_named
from penstock.formats.run_import import import_place
from penstock.upkeep.verify.version import verify
from tests.penstock.formats.builders import tars
from tests.penstock.formats.builders.places import put
from tests.penstock.formats.versions import contents, field_bytes, importing
from tests.refusals import refusal


def archive(path, samples):
    """Write (name, content) pairs as a tar archive."""
    put(path, tars.tar_bytes(samples, tarfile.GNU_FORMAT))


def import_parts(place, url, **how):
    """(report, root) of an import into parts of some 700 bytes."""
    return importing("webdataset", place, url, shard_bytes=700, **how)


def members(k, n):
    """Samples of archive k: each seventh without its caption, some without any byte."""
    for i in range(n):
        yield f"{k}/{i:03}.jpg", np.random.default_rng(i).bytes(37 * (i % 9))
        if i % 7:
            yield f"{k}/{i:03}.txt", f"{k}-{i}".encode()


def test_new_objects_make_the_next_version_alone(tmp_path):
    place = tmp_path / "place"
    for k in range(3):
        archive(place / f"{k}.tar", members(k, 20))
    first, root = import_parts(place, tmp_path / "root")
    root.exclude("d", ["0/001"], reason="blurred")
    archive(place / "3.tar", members(3, 5))
    archive(place / "1.tar", members(1, 30))
    (place / "0.tar").unlink()
    done, _ = import_parts(place, tmp_path / "root")
    assert (done.new, done.replaced, done.same, done.samples) == (1, 1, 1, 19 + 30 + 20 + 5)
    held = contents(root.open("d"))
    assert "0/001" not in held
    assert {key for key in held if key.startswith("1/")} == {f"1/{i:03}" for i in range(30)}
    assert held["3/004"][0]["txt"] == b"3-4"
    assert import_parts(place, tmp_path / "root")[0].id == done.id != first.id
    assert verify(root, "d", full=True).problems == []


def test_damaged_objects_are_all_named_and_nothing_is_published(tmp_path, cli):
    for k in range(4):
        archive(tmp_path / f"place/{k}.tar", members(k, 5))
    for k in (1, 3):
        path = tmp_path / f"place/{k}.tar"
        put(path, path.read_bytes()[:700])
    run = ("import", "webdataset", tmp_path / "place", "d")
    done = cli(*run, "--json", root=tmp_path / "root")
    assert done.code == 1
    assert [f"/{k}.tar" in why for k, why in zip((1, 3), json.loads(done.out)["failures"], strict=True)] == [
        True
    ] * 2
    assert loader.Root(tmp_path / "root").datasets() == []
    assert "nothing was published: repair or move these" in cli(*run, root=tmp_path / "root").out
    for k in (1, 3):
        archive(tmp_path / f"place/{k}.tar", members(k, 5))
    done = cli(*run, root=tmp_path / "root")
    assert (done.code, done.out.splitlines()[1]) == (0, "20 samples with bytes of their own")


def test_object_that_changes_meanwhile_is_named_and_the_others_are_copied(tmp_path, monkeypatch):
    place = tmp_path / "place"
    for k in range(3):
        archive(place / f"{k}.tar", members(k, 20))
    write = run_import.write_parts

    def change(samples, layout, name):
        if name == "00000":
            archive(place / "0.tar", members(0, 25))
        return write(samples, layout, name)

    with monkeypatch.context() as patch:
        patch.setattr(run_import, "write_parts", change)
        done, root = import_parts(place, tmp_path / "root", workers=1)
    assert done.failures
    assert all("0.tar" in why for why in done.failures)
    assert (done.id, root.datasets()) == ("", [])
    assert import_parts(place, tmp_path / "root")[0].samples == 65


@pytest.mark.parametrize(("shuffle", "over"), [(True, True), (False, True), (False, False)])
def test_keys_of_two_archives_that_repeat_are_told_apart(tmp_path, monkeypatch, shuffle, over):
    """over: the walk is over when the first unit is cut; else units are written under the keys of their archive."""
    ended = Walk.is_over.fget
    monkeypatch.setattr(Walk, "is_over", property(lambda self: over and bool(self.walked) and ended(self)))
    for k in range(2):
        some = [("a.txt", b"%d" % k), (f"b{k}.txt", b"2")]
        archive(tmp_path / f"place/{k}.tar", [*some, ("c.txt", b"c"), ("c.jpg", b"")] if k else some)
    done, root = import_parts(tmp_path / "place", tmp_path / "root", shuffle=shuffle)
    held = contents(root.open("d"))
    assert held.keys() == {"0.tar/a", "1.tar/a", "b0", "b1", "c"}
    assert held["1.tar/a"][0]["txt"] == b"1"
    assert held["1.tar/a"][1]["source_key"] == "a"
    assert held["c"][0] == {"txt": b"c", "jpg": b""}
    assert {*root.open("d").manifest["groups"]} == {"media", "jpg"}
    written = [*(tmp_path / "root").rglob("imported/*.tar")]
    assert len(written) == (3 if shuffle else 4)
    assert (done.nbytes, done.skipped) == (5 + 5 * (not over), 0)


def test_what_later_archives_have_is_guessed_from_the_dataset(tmp_path, monkeypatch):
    """Fields that are new are copied once, though the walk is not over; none is where they are too few."""
    monkeypatch.setattr(Walk, "is_over", False)
    place = tmp_path / "place"
    archive(place / "0.tar", [("a.txt", b"1"), ("a.jpg", b"2")])
    root = import_parts(place, tmp_path / "root")[1]
    archive(
        place / "1.tar",
        [("b.txt", b"3"), ("b.jpg", b"4"), ("b.cls", b"5"), ("c.txt", b"6"), ("c.jpg", b"7")],
    )
    assert import_parts(place, tmp_path / "root")[0].nbytes == 5
    assert {*root.open("d").manifest["groups"]} == {"media", "cls"}
    written = {*(tmp_path / "root").rglob("imported/*")}
    archive(place / "2.tar", [("d.txt", b"8")])
    archive(place / "3.tar", [("e.txt", b"9"), ("e.jpg", b"9")])
    with refusal(FieldMismatch, what="jpg", where="2.tar, sample 'd'"):
        import_parts(place, tmp_path / "root")
    put(place / "3.tar", b"1" * 700)
    assert "3.tar" in import_parts(place, tmp_path / "root")[0].failures[0]
    assert {*(tmp_path / "root").rglob("imported/*")} == written


def test_shares_of_units_ahead_are_those_of_their_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(Walk, "is_over", False)
    store = open_store(tmp_path)
    for k in range(3):
        archive(tmp_path / f"{k}.tar", members(k, 20))
    found = registered_named("webdataset").find_objects(store, [*store.list()])
    with Walk(found, object_shards(found.infos, 1), (), PlaceDifference(fresh=found.infos), {}) as walk:
        shares = [unit.size for unit in UnitsAhead(walk, {}, 700)]
    assert walk.nbytes - 3 * len(shares) < sum(shares) <= walk.nbytes


def test_parts_under_other_names_stay_where_nobody_may_delete(tmp_path, monkeypatch):
    monkeypatch.setattr(Walk, "is_over", False)
    for k in range(2):
        archive(tmp_path / f"place/{k}.tar", [("a.txt", b"%d" % k)])
    root = loader.Root(tmp_path / "root")
    root.create()

    def refuse(keys, top):
        raise Forbidden(f"{next(iter(keys))} below {top}")

    monkeypatch.setattr(root.store, "delete_in_place", refuse)
    assert import_place(root, "webdataset", open_store(tmp_path / "place"), "d").samples == 2
    assert len([*(tmp_path / "root").rglob("imported/*.tar")]) == 4


def test_members_far_apart_are_read_alone(tmp_path):
    far = np.random.default_rng(0).bytes(9 * 2**20)
    archive(tmp_path / "place/0.tar", [("a.txt", b"1"), ("b.jpg", far), ("a.jpg", b"2"), ("b.txt", b"3")])
    bucket, folder = open_store(f"memory://{tmp_path.name}/place"), open_store(tmp_path / "place")
    bucket.put("0.tar", folder.get("0.tar").data)
    for store in (folder, bucket):  # bytes come from open files, and by requests
        version = import_parts(store, None)[1].open("d")
        assert field_bytes(version) == {"a": {"txt": b"1", "jpg": b"2"}, "b": {"txt": b"3", "jpg": far}}


def test_mistakes_are_told(tmp_path, cli):
    place, name = tmp_path / "place", "webdataset"
    archive(place / "0.tar", members(0, 3))
    root = loader.Root(tmp_path / "root")
    with root.write("own") as writer:
        writer.add("a", {"txt": "x"})
    store = open_store(place)
    with refusal(Conflict, what="objects", where=f"{tmp_path}/place", accepted="an object of own@1"):
        import_place(root, name, store, "own")
    register(root, name, place, "registered")
    with refusal(Conflict, what="samples", where="registered@1", given="registered", accepted="imported"):
        import_place(root, name, store, "registered")
    with refusal(EmptyVersion, what="webdataset", where=f"{tmp_path}/empty"):
        import_place(loader.Root(tmp_path / "r2"), name, open_store(tmp_path / "empty"), "d")
    with refusal(InvalidStore, what="locations", given=[f"{tmp_path}/place", f"{tmp_path}/place/root"]):
        import_place(loader.Root(place / "root"), name, store, "d")
    run = cli("import", name, place, "d", "--workers", "0", root=root.url)
    assert (run.code, "a number of threads above 0 is needed" in run.err) == (2, True)


def test_units_that_are_deleted_lie_behind_no_link(tmp_path):
    """Whoever may write to the root may lay a link beside the units to files of somebody else."""
    store, other = open_store(str(tmp_path / "root")), tmp_path / "other"
    other.mkdir()
    for name in ("00000.json", "media-00000.tar"):
        (other / name).write_bytes(b"x")
        store.put(f"data/t/imported/{name}", b"x")
    (tmp_path / "root/data/t/imported/link").symlink_to(other)
    delete_units(store, "t", ["00000"])
    assert sorted(path.name for path in other.iterdir()) == ["00000.json", "media-00000.tar"]
    assert [path.name for path in (tmp_path / "root/data/t/imported").iterdir()] == ["link"]
