"""Bytes of samples that were taken down: no adoption brings them into a root, and a proof finds those there."""

import json

import pytest

import loader
from loader.dataset.log.denies import Target
from loader.dataset.shards.index import IndexPlace
from loader.dataset.tables.place_records import is_adopted, put_place
from loader.run.ahead.remote_reads import ShardContents
from loader.storage import open_store
from penstock.cli import main
from penstock.formats.registration import adoption
from penstock.formats.registration.adoption import adopt
from penstock.formats.registration.register import register
from penstock.formats.registration.sealing import seal
from penstock.upkeep.copying.items import Pace
from penstock.upkeep.gc.collector import Options, collect
from penstock.upkeep.migrate.mirror_update import migrate
from penstock.upkeep.verify.version import verify
from tests.penstock.formats.builders import tars
from tests.penstock.formats.registered.forging import place_id

DAY_US = 86_400 * 10**6
SECRET = b"1-3" * 4
"""Bytes of sample 1/0003, of archive 001.tar."""


def request(root, *what):
    told = ["--reason", "ticket 1", "--by", "desk", "--root", root.url]
    assert main(["takedown", "request", *what, *told]) == 0
    return root.log.refresh().denies[-1].n


SAMPLE = ("--dataset", "photos", "--sample", "1/0003")


def run(root, n):
    assert main(["takedown", "run", str(n), "--apply", "--root", root.url]) == 0


def sweep(root):
    for day in (1, 99, 199):
        collect(root, Options(grace_s=0), apply=True, now_us=day * DAY_US)


def unclean(root, n, tmp_path):
    """Paths of what a proof finds, without the owner's own objects; and its exit status."""
    out = tmp_path / "proof.json"
    status = main(["takedown", "prove", str(n), "--out", str(out), "--root", root.url])
    found = [one for one in json.loads(out.read_text())["places"] if not one["clean"]]
    return [one.get("path", one["check"]) for one in found if one["check"] != "registered"], status


def with_secret(root):
    return [info.key for info in root.store.list("") if SECRET in root.store.get(info.key).data]


def copy_whole(root, three, version, *, record=True):
    """What an adoption did that knew nothing of takedowns."""
    for path in three.iterdir():
        root.store.put_file(f"foreign/{place_id(version)}/{path.name}", str(path))
    if record:
        put_place(root.store, place_id(version), None)


def test_seal_and_adopt_restore_nothing_after_a_takedown(root, three, sealed_version, tmp_path, capsys):
    version, n = sealed_version, request(root, *SAMPLE)
    del sealed_version
    run(root, n)
    sweep(root)
    assert main(["seal", "photos", "--root", root.url]) == 0
    capsys.readouterr()
    assert main(["adopt", "photos", "--root", root.url]) == 1
    said = capsys.readouterr().out
    assert "001.tar holds denied samples" in said
    assert "penstock import" in said
    assert with_secret(root) == []
    assert not is_adopted(root.store, place_id(version))
    assert len(root.open("photos")) == 119
    assert verify(root, "photos", full=True).problems == []
    assert unclean(root, n, tmp_path)[0] == []


def test_owner_who_writes_the_archive_anew_lets_it_be_adopted(root, three, sealed_version, tmp_path):
    n = request(root, *SAMPLE)
    del sealed_version
    run(root, n)
    tars.fill(
        three, {"001.tar": [member for member in tars.number_samples(1, 40) if "0003" not in member[0]]}
    )
    seal(register(root, "webdataset", three, "photos").version)
    root.retire("photos@2", reason="its archive was written anew")
    assert adopt(root, "photos").failures == []
    assert with_secret(root) == []
    assert len(root.open("photos")) == 119


@pytest.mark.parametrize("applied", [False, True])
def test_takedown_that_was_only_requested_counts(root, three, sealed_version, applied):
    request(root, *SAMPLE)
    if applied:  # by a commit, so that no takedown has the object on record
        root.exclude("photos", [sealed_version.keys([0])[0]], reason="blurred")
    (failure,) = adopt(root, "photos").failures
    assert "001.tar holds denied samples" in failure
    assert with_secret(root) == []


def test_archive_that_is_registered_after_its_takedown_is_not_adopted(root, three, tmp_path):
    other = register(root, "webdataset", three, "others").version
    root.log.deny([Target(kind="sample", value="1/0003", dataset="photos")], "ticket 1", "desk")
    version = register(root, "webdataset", three, "photos").version
    assert len(version) == 119
    for one in (version, other):
        assert seal(one).failures == []
    (failure,) = adopt(root, "photos").failures
    assert "001.tar holds denied samples" in failure
    assert with_secret(root) == []


def test_object_on_record_is_known_in_another_place(root, three, sealed_version):
    n = request(root, *SAMPLE)
    run(root, n)
    tars.fill(three, {"003.tar": tars.number_samples(3, 4)})
    again = register(root, "webdataset", three, "again").version  # the same archive, by another place's id
    assert seal(again).failures == []
    (failure,) = adopt(root, "again").failures
    assert "001.tar holds denied samples" in failure


@pytest.mark.parametrize("applied", [False, True])
def test_takedown_during_an_adoption_is_seen(root, three, sealed_version, monkeypatch, applied):
    copy, ids = adoption.create, []

    def racing(store, path, key):
        copy(store, path, key)
        if key.endswith("002.tar") and not root.log.refresh().denies:
            ids.append(request(root, *SAMPLE))
            if applied:
                run(root, *ids)

    monkeypatch.setattr(adoption, "create", racing)
    (failure,) = adopt(root, "photos", workers=1).failures
    assert "001.tar holds denied samples" in failure
    assert not is_adopted(root.store, place_id(sealed_version))
    assert verify(root, "photos", full=True).problems == []
    run(root, *ids)
    assert with_secret(root) == []


@pytest.mark.parametrize("record", [True, False])
def test_bytes_that_came_in_are_found_by_run_and_proof(root, three, sealed_version, tmp_path, record, capsys):
    version, n = sealed_version, request(root, *SAMPLE)
    del sealed_version
    run(root, n)
    sweep(root)
    copy_whole(root, three, version, record=record)
    key = f"foreign/{place_id(version)}/001.tar"
    assert with_secret(root) == [key]
    found, status = unclean(root, n, tmp_path)
    assert (found, status) == (["retired", key] if record else [key], 1)
    capsys.readouterr()
    assert main(["takedown", "run", str(n), "--root", root.url]) == 0
    assert not record or key in capsys.readouterr().out
    run(root, n)
    sweep(root)
    assert with_secret(root) == []
    assert len(root.open("photos")) == 119
    assert verify(root, "photos", full=True).problems == []
    assert unclean(root, n, tmp_path)[0] == []


def test_adopted_object_of_no_version_makes_a_proof_incomplete(root, three, sealed_version, tmp_path):
    n = request(root, *SAMPLE)
    run(root, n)
    sweep(root)
    before, _ = unclean(root, n, tmp_path)
    root.store.put(f"foreign/{'0' * 32}/x.tar", SECRET)
    assert set(unclean(root, n, tmp_path)[0]) - set(before) == {f"foreign/{'0' * 32}/x.tar"}


def test_forged_objects_stop_no_takedown_and_no_proof(root, three, sealed_version, tmp_path):
    version, n = sealed_version, request(root, *SAMPLE)
    del sealed_version
    other = "1" * 32
    root.store.put(f"foreign/{other}/x.tar", b"x")
    root.store.put(f"places/{other}/000000000001.json", b"{")
    root.store.put("tables/stray", b"x")
    root.store.put("tables/photos.txt", b"x")
    root.store.put(f"data/{'2' * 32}/x.json", b'{"producer": 5}')
    run(root, n)
    sweep(root)
    assert len(root.open("photos")) == 119
    assert root.record(version.id, retired=True).retired is not None
    found, status = unclean(root, n, tmp_path)
    assert sorted(found) == [f"data/{'2' * 32}/x.json", "tables/photos.txt", "tables/stray"]
    assert status == 1


def test_file_that_was_taken_down_is_left_out_and_the_others_are_adopted(root, tmp_path):
    place = tmp_path / "files"
    place.mkdir()
    for k in range(6):
        (place / f"{k}.txt").write_text(f"text {k}" * (k + 1))
    version = register(root, "files", place, "texts").version
    n = request(root, "--dataset", "texts", "--sample", version.keys([3])[0])
    gone = version.samples().select("raw_key").collect()["raw_key"][3]
    run(root, n)
    del version
    sweep(root)
    seal(root.open("texts"))
    assert adopt(root, "texts").failures == []
    here = {info.key.rpartition("/")[2] for info in root.store.list("foreign/")}
    assert here == {f"{k}.txt" for k in range(6)} - {gone}
    for path in place.iterdir():
        path.unlink()
    assert verify(root, "texts", full=True).problems == []
    assert unclean(root, n, tmp_path)[0] == []


def test_mirror_gets_no_adopted_object_after_a_takedown(root, three, sealed_version, tmp_path):
    n = request(root, *SAMPLE)
    run(root, n)
    copy_whole(root, three, sealed_version, record=False)
    mirror = open_store(str(tmp_path / "mirror"))
    migrate(root, mirror, Pace())
    there = {info.key.rpartition("/")[2] for info in mirror.list("foreign/")}
    assert there == {"000.tar", "002.tar"}


def texts(version, cache):
    plan = loader.plan({"p": version.select("txt")}, seed=3, global_batch=len(version))
    with loader.Loader(plan, cache=loader.NodeCache(path=cache, page_bytes=2**14), workers=0) as batches:
        first = sorted(map(str, next(batches)["txt"]))
        for _ in range(2):  # a first batch brings no pages
            next(batches)
        return first


def test_node_cache_keeps_no_page_of_an_archive_that_holds_them(root, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_PLACES", "memory://denied")
    place, cache = open_store("memory://denied/tars"), tmp_path / "cache"
    for k in range(3):
        members = [(f"{k}/{i:04}.txt", f"{k}-{i} ".encode() * 1000) for i in range(40)]
        place.put(f"{k:03}.tar", tars.tar_bytes(members))
    secret = b"1-3 1-3 "

    def pages():
        return [path.read_bytes() for path in (cache / "pages").rglob("*") if path.is_file()]

    version = register(root, "webdataset", "memory://denied/tars", "photos").version
    before = texts(version, cache)
    assert any(secret in page for page in pages())
    n = request(root, *SAMPLE)
    assert main(["takedown", "run", str(n), "--apply", "--cache", str(cache), "--root", root.url]) == 0
    assert pages()
    assert not any(secret in page for page in pages())
    for path in (cache / "pages").rglob("*"):
        if path.is_file():
            path.unlink()
    assert set(before) - set(texts(root.open("photos"), cache)) == {"1-3 " * 1000}
    assert pages()
    assert not any(secret in page for page in pages())


def test_index_of_an_archive_that_holds_them_has_no_pages(monkeypatch):
    monkeypatch.setenv("PENSTOCK_PLACES", "memory://denied-indexes")
    place = open_store("memory://denied-indexes/tars")
    for k in range(3):
        members = [(f"{k}/{i:04}.txt", b"text") for i in range(8)]
        place.put(f"{k:03}.tar", tars.tar_bytes(members))

    def with_pages(version):
        contents = ShardContents(version)
        places = [IndexPlace.of(shard) for shard in version.parts.shard_rows().to_pylist()]
        return [contents.index_content(place) is not None for place in places]

    with loader.Root("memory://denied-indexes-root") as root:
        version = register(root, "webdataset", "memory://denied-indexes/tars", "photos").version
        assert with_pages(version) == [True] * 3
        run(root, request(root, *SAMPLE))
        assert sorted(with_pages(root.open("photos"))) == [False, True, True]


def test_import_brings_none_of_them_into_a_version(root, three, tmp_path):
    root.create()
    deny = root.log.deny([Target(kind="sample", value="1/0003", dataset="copies")], "ticket 1", "desk")
    assert main(["import", "webdataset", str(three), "copies", "--root", root.url]) == 0
    assert len(root.open("copies")) == 119
    run(root, deny.n)
    sweep(root)
    assert with_secret(root) == []
    assert unclean(root, deny.n, tmp_path) == ([], 0)
