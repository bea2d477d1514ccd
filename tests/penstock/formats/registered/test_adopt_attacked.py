"""Adoption of versions that were forged, of objects that lie there already, and of places that somebody else chose."""

import os
import shutil
from pathlib import Path

import pytest

import loader
from loader.dataset.tables.place_records import is_adopted, put_place
from loader.dataset.tables.trusted_places import is_vouched
from loader.errors import AlreadyExists, Corrupt, Forbidden, InvalidStore
from loader.storage import open_store
from loader.storage.disk.store import LocalStore
from loader.storage.files import create
from penstock.cli import main
from penstock.formats.registration.adoption import adopt
from penstock.formats.registration.register import register
from penstock.formats.registration.sealing import seal
from penstock.upkeep.verify.version import verify
from tests.penstock.formats.registered.forging import forge, place_id
from tests.refusals import refusal


def everything(root):
    return {info.key: root.store.get(info.key).data for info in root.store.list("")}


def texts(version):
    plan = loader.plan({"p": version.select("txt")}, seed=3, global_batch=len(version))
    with loader.Loader(plan, workers=0) as batches:
        return list(map(str, next(iter(batches))["txt"]))


def other_key(rows, place):
    rows[0].update(path=f"foreign/{place}/log/000000000001.json", modified_us=None)


FORGED = {
    "no_time": other_key,
    "no_etag": lambda rows, place: rows[0].update(etag=None),
    "dots": lambda rows, place: rows[0].update(path=f"foreign/{place}/../../log/000000000001.json"),
    "absolute": lambda rows, place: rows[0].update(path=f"foreign/{place}//etc/passwd"),
    "root": lambda rows, place: rows[0].update(path="log/000000000001.json"),
    "other_place": lambda rows, place: rows[0].update(path=f"foreign/{'0' * 32}/000.tar"),
    "size": lambda rows, place: rows[0].update(nbytes=-1),
    "inode": lambda rows, place: rows[0].update(etag="1-2-3"),
}


@pytest.mark.parametrize("how", FORGED)
def test_forged_table_writes_nothing(root, three, sealed_version, how):
    (three / "log").mkdir()
    shutil.copy(three / "000.tar", three / "log" / "000000000001.json")
    version = forge(root, sealed_version, lambda rows: FORGED[how](rows, place_id(sealed_version)))
    root.retire("photos@1", reason="old")
    before = everything(root)
    try:
        done = adopt(root, version.name)
    except Corrupt as error:
        failures = [str(error)]
    else:
        failures = done.failures
        assert done.places == 0
    assert any("damaged or forged" in one for one in failures)
    after = everything(root)
    added = after.keys() - before.keys()
    assert all(key.startswith((f"foreign/{place_id(sealed_version)}/", "leases/")) for key in added)
    assert {key: after.get(key) for key in before if not key.startswith("leases/")} == {
        key: data for key, data in before.items() if not key.startswith("leases/")
    }
    assert not is_adopted(root.store, place_id(sealed_version))


def test_size_that_lies_copies_nothing(root, sealed_version):
    version = forge(root, sealed_version, lambda rows: rows[0].update(nbytes=rows[0]["nbytes"] - 512))
    root.retire("photos@1", reason="old")
    assert "registered were" in adopt(root, version.name).failures[0]
    assert f"foreign/{place_id(sealed_version)}/000.tar" not in everything(root)


@pytest.mark.parametrize("where", ["in a field", "in a header"])
def test_flipped_bit_in_an_object_that_lies_there_is_named(root, three, sealed_version, where, capsys):
    key = f"foreign/{place_id(sealed_version)}/001.tar"
    data = bytearray((three / "001.tar").read_bytes())
    address = sealed_version.address(range(40, 41), ["txt"])[0].fields["txt"]
    at = address.offset if where == "in a field" else address.offset - 100
    data[at] ^= 4
    root.store.put(key, bytes(data))
    assert main(["adopt", "photos", "--root", root.url]) == 1
    assert key in capsys.readouterr().out
    assert root.store.get(key).data == bytes(data)  # nothing is replaced
    assert not is_adopted(root.store, place_id(sealed_version))
    root.store.delete_many([key])
    assert main(["adopt", "photos", "--root", root.url]) == 0
    assert root.store.get(key).data == (three / "001.tar").read_bytes()


def test_adopted_object_with_a_flipped_bit_is_named_when_adopted_again(root, sealed_version):
    assert adopt(root, "photos").failures == []
    key = f"foreign/{place_id(sealed_version)}/001.tar"
    data = bytearray(root.store.get(key).data)
    data[root.open("photos").address(range(40, 41), ["txt"])[0].fields["txt"].offset] ^= 4
    root.store.put(key, bytes(data))
    (failure,) = adopt(root, "photos").failures
    assert key in failure


def test_object_that_another_size_has_is_not_replaced(root, sealed_version):
    key = f"foreign/{place_id(sealed_version)}/001.tar"
    root.store.put(key, b"mine")
    (failure,) = adopt(root, "photos").failures
    assert "4 bytes" in failure
    assert root.store.get(key).data == b"mine"


def test_writer_that_comes_first_is_not_replaced(root, sealed_version, monkeypatch):
    key, put = f"foreign/{place_id(sealed_version)}/001.tar", LocalStore.put_if_absent

    def racing(store, name, data):
        if name == key and not Path(root.url, key).exists():
            store.put(key, b"theirs")
        put(store, name, data)

    monkeypatch.setattr(LocalStore, "put_if_absent", racing)
    (failure,) = adopt(root, "photos").failures
    assert "other bytes" in failure
    assert root.store.get(key).data == b"theirs"


def test_large_file_is_created_and_replaces_none(tmp_path, monkeypatch):
    monkeypatch.setattr("loader.storage.files.HELD_BYTES", 4)
    (tmp_path / "file").write_bytes(b"0123456789")
    for store in (open_store(str(tmp_path / "out")), open_store("memory://created/x")):
        create(store, tmp_path / "file", "a")
        create(store, tmp_path / "file", "b")
        store.put("b", b"theirs")
        with pytest.raises(AlreadyExists):
            create(store, tmp_path / "file", "b")
        assert (store.get("a").data, store.get("b").data) == (b"0123456789", b"theirs")


# places


@pytest.fixture
def write_foreign_record(monkeypatch):
    """write_foreign_record(root, version): somebody else wrote the newest record of the version's place."""

    def give_away(root, version):
        if os.geteuid():  # who is not the machine's root user cannot give a file away: the caller is another
            monkeypatch.setattr(os, "geteuid", lambda: 4711)
        else:
            os.chown(max(Path(root.url, "places", place_id(version)).iterdir()), 4711, 4711)

    return give_away


def test_folder_that_somebody_else_names_is_read_only_when_it_is_named(
    root, three, sealed_version, monkeypatch, write_foreign_record
):
    write_foreign_record(root, sealed_version)
    version = root.open("photos")
    with refusal(Forbidden, what="location to be read", within="000000000001.json", given=three):
        texts(version)
    problems = verify(root, "photos", full=True).problems
    assert len(problems) == 3
    seals = [info.key for info in root.store.list("seals/")]
    root.store.delete_many(seals)
    for verb in (["seal", "photos"], ["adopt", "photos"]):
        assert main([*verb, "--root", root.url]) == 1
    assert not any(key.startswith("foreign/") for key in everything(root))
    monkeypatch.setenv("PENSTOCK_PLACES", f"/nowhere file://{three.parent}")
    assert len(texts(root.open("photos"))) == 120
    for verb in ("seal", "adopt"):
        assert main([verb, "photos", "--root", root.url]) == 0


def test_folder_that_is_registered_again_by_its_reader_is_read(
    root, three, sealed_version, write_foreign_record, monkeypatch
):
    write_foreign_record(root, sealed_version)
    with pytest.raises(Forbidden):
        texts(root.open("photos"))
    monkeypatch.undo()
    register(root, "webdataset", three, "photos")
    assert len(texts(root.open("photos"))) == 120


@pytest.mark.parametrize(
    "url", ["file:///etc", "simplecache::file:///etc", "http://127.0.0.1:1/", "memory://a/b"]
)
def test_no_root_in_a_bucket_names_a_file_or_a_server(three, url):
    root = loader.Root("memory://shared/root")
    root.store.url = "s3://shared/root"  # as a bucket, which does not tell who wrote
    version = register(root, "webdataset", three, "photos").version
    with refusal(Forbidden, what="location to be read", within="000000000001.json", given=three):
        texts(version)
    put_place(root.store, place_id(version), url)
    with pytest.raises(Forbidden):
        seal(root.open("photos"))
    with refusal(Forbidden, what="location to be read", within="000000000002.json", given=url):
        texts(root.open("photos"))
    root.store.delete_many([info.key for info in root.store.list("")])


def test_bucket_is_read_and_not_copied_unless_it_is_named(
    root, sealed_version, monkeypatch, write_foreign_record
):
    put_place(root.store, place_id(sealed_version), "s3://others/private")
    write_foreign_record(root, sealed_version)
    placed = root.open("photos").placed
    assert placed.stores[1].url == "s3://others/private"
    root.store.delete_many([info.key for info in root.store.list("seals/")])
    for copy in (lambda: adopt(root, "photos"), lambda: seal(root.open("photos"))):
        with refusal(
            Forbidden,
            what="location to be copied into the root",
            within="000000000002.json",
            given="s3://others/private",
        ):
            copy()
    monkeypatch.setenv("PENSTOCK_PLACES", "s3a://others/")
    root.open("photos").placed.check_vouched([place_id(sealed_version)])
    for named in ("s3://others/priv", "s3://others/private/deeper", "gs://others"):
        monkeypatch.setenv("PENSTOCK_PLACES", named)
        with pytest.raises(Forbidden):
            root.open("photos").placed.check_vouched([place_id(sealed_version)])
    monkeypatch.setenv("PENSTOCK_PLACES", "s3://others/named")
    assert is_vouched(root.store, "places/x/1.json", "s3://others/named/deeper")
    assert not is_vouched(root.store, "places/x/1.json", "s3://others/named/../private")


def test_place_that_cannot_be_opened_stops_its_own_samples_alone(root, sealed_version):
    put_place(root.store, place_id(sealed_version), "s3://others/named/../private")
    version = root.open("photos")
    assert not version.placed.is_adopted(version.parts.shard_rows()["path"][0].as_py())
    with refusal(InvalidStore, what="segment of a key", where="named/../private", given=".."):
        texts(version)


def test_record_that_a_link_leads_to_vouches_for_nothing(root, three, sealed_version, tmp_path):
    own = Path(root.url, "places", place_id(sealed_version))
    shutil.move(own, tmp_path / "elsewhere")
    own.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Forbidden):
        texts(root.open("photos"))


def test_place_of_another_name_is_below_no_named_one(
    root, three, sealed_version, monkeypatch, write_foreign_record
):
    write_foreign_record(root, sealed_version)
    for named in (f"{three}2", f"{three}/deeper", f"{three}/../other", ""):
        monkeypatch.setenv("PENSTOCK_PLACES", named)
        with pytest.raises(Forbidden):
            texts(root.open("photos"))


def test_link_out_of_a_place_is_not_followed(root, three, sealed_version, tmp_path):
    told = (three / "001.tar").stat()
    shutil.move(three / "001.tar", tmp_path / "secret.tar")
    (three / "001.tar").symlink_to(tmp_path / "secret.tar")
    assert (three / "001.tar").stat().st_mtime_ns == told.st_mtime_ns
    (failure,) = adopt(root, "photos").failures
    assert "a link out of its place" in failure
    assert len([key for key in everything(root) if key.startswith("foreign/")]) == 2
    with refusal(Forbidden, what="link", where=f"{tmp_path}/tars/001.tar", given=f"{tmp_path}/secret.tar"):
        texts(root.open("photos"))


def test_link_inside_of_a_place_is_followed(root, three, sealed_version):
    shutil.move(three / "001.tar", three / "moved")
    (three / "001.tar").symlink_to(three / "moved")
    assert adopt(root, "photos").failures == []


def test_record_that_names_another_place_vouches_for_none(root, three, sealed_version):
    """Also where a writer puts the caller's record over one of their own, between its URL and its owner being read."""
    key = max(info.key for info in root.store.list(f"places/{place_id(sealed_version)}/"))
    assert is_vouched(root.store, key, str(three))
    assert not is_vouched(root.store, key, "/etc")
    path = Path(root.url, key)
    path.unlink()
    os.mkfifo(path)
    assert not is_vouched(root.store, key, str(three))


@pytest.mark.parametrize("dots", ["%2e%2e", "%2E.", "..%2f..", "x\\..\\.."])
def test_escaped_dots_lead_out_of_a_server_that_is_named(sealed_version, root, monkeypatch, dots):
    monkeypatch.setenv("PENSTOCK_PLACES", "http://host/a")
    assert is_vouched(root.store, "places/x/1.json", "http://host/a/b%20c")
    assert not is_vouched(root.store, "places/x/1.json", f"http://host/a/{dots}/b")


def test_record_with_the_last_number_is_named(root, three, sealed_version):
    """One more could not be read, and whoever registers would write it again and again."""
    key = f"places/{place_id(sealed_version)}/999999999999.json"
    root.store.put(key, b'{"format": 1, "url": "/elsewhere", "at_us": 1}')
    for _ in range(2):
        with refusal(
            Corrupt,
            what="number of a location's record",
            within=key,
            given=999999999999,
            accepted=999999999998,
        ):
            put_place(root.store, place_id(sealed_version), str(three))
    assert len(list(root.store.list(f"places/{place_id(sealed_version)}/"))) == 2


def test_record_of_another_name_is_no_record(root, sealed_version):
    root.store.put(f"places/{place_id(sealed_version)}/zzz.json", b'{"format": 1, "url": "/etc", "at_us": 1}')
    assert len(texts(root.open("photos"))) == 120
