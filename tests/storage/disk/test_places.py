"""Folders that other people fill: links are followed inside of them only, and what is not listed is named."""

import os
from threading import Thread

import pytest

from loader.errors import ObjectNotFound
from loader.storage import open_store
from loader.storage.disk.unlisted_files import skipped_files
from loader.storage.mirror import MirroredStore
from loader.storage.store import Refusals, list_place
from tests.servers.patience import PATIENCE_S


@pytest.fixture
def place(tmp_path):
    folder = tmp_path / "place"
    (folder / "inner/deep").mkdir(parents=True)
    (folder / "a.jpg").write_bytes(b"a")
    (folder / "inner/deep/b.jpg").write_bytes(b"b")
    return folder


def _list_keys(place, prefix="", start_after=""):
    refusals = Refusals()
    infos = list(list_place(open_store(str(place)), prefix, start_after, refuse=refusals))
    return [info.key for info in infos], dict(refusals.first)


def test_links_out_of_a_place_are_left_out_and_named(place, tmp_path):
    outside = tmp_path / "outside"
    (outside / "system").mkdir(parents=True)
    (outside / "secret.jpg").write_bytes(b"secret")
    (outside / "system/many.jpg").write_bytes(b"many")
    (place / "file.jpg").symlink_to(outside / "secret.jpg")
    (place / "inner/folder").symlink_to(outside / "system")
    (place / "relative.jpg").symlink_to("../outside/secret.jpg")
    (place / "twice.jpg").symlink_to("file.jpg")  # inside, and from there out
    keys, refused = _list_keys(place)
    assert keys == ["a.jpg", "inner/deep/b.jpg"]
    assert set(refused) == {"file.jpg", "inner/folder", "relative.jpg", "twice.jpg"}
    assert all("a link out of the place" in why for why in refused.values())
    assert _list_keys(place, "inner/folder/") == ([], {"inner/folder": refused["file.jpg"]})
    assert _list_keys(place, "inner/folder/m")[0] == []
    named = [info.key for info in open_store(str(place)).list()]  # a root may lie on several disks
    assert "inner/folder/many.jpg" in named


def test_links_inside_of_a_place_are_followed(place):
    (place / "again.jpg").symlink_to(place / "inner/deep/b.jpg")
    (place / "also").symlink_to("inner/deep")
    assert _list_keys(place) == (["a.jpg", "again.jpg", "also/b.jpg", "inner/deep/b.jpg"], {})
    assert _list_keys(place, "also/")[0] == ["also/b.jpg"]
    assert _list_keys(place, "", "also/b.jpg")[0] == ["inner/deep/b.jpg"]


def test_place_may_be_a_link_itself(place, tmp_path):
    (tmp_path / "other").symlink_to(place)
    assert _list_keys(tmp_path / "other") == (["a.jpg", "inner/deep/b.jpg"], {})


def test_links_in_a_circle_end(place):
    (place / "inner/deep/up").symlink_to(place)
    (place / "inner/deep/self").symlink_to(place / "inner/deep")
    (place / "one").mkdir()
    (place / "two").mkdir()
    (place / "one/to").symlink_to(place / "two")
    (place / "two/to").symlink_to(place / "one")
    (place / "two/c.jpg").write_bytes(b"c")
    keys, refused = _list_keys(place)
    assert keys == ["a.jpg", "inner/deep/b.jpg", "one/to/c.jpg", "two/c.jpg"]
    assert set(refused) == {"inner/deep/up", "inner/deep/self", "one/to/to", "two/to/to"}
    assert all("a folder that it lies in" in why for why in refused.values())


def test_link_that_cannot_be_followed_stops_neither_a_place_nor_a_root(place):
    (place / "a").symlink_to("b")
    (place / "b").symlink_to("a")
    (place / "inner/long").symlink_to("x" * 256)
    (place / "zero").symlink_to("/dev/zero")
    keys, refused = _list_keys(place)
    assert keys == ["a.jpg", "inner/deep/b.jpg"]
    assert set(refused) == {"a", "b", "inner/long", "zero"}
    assert "Too many levels of symbolic links" in refused["a"]
    assert "neither a file nor a folder" in refused["zero"]
    assert [info.key for info in open_store(str(place)).list()] == keys
    assert dict(skipped_files(str(place))).keys() == refused.keys()


def test_root_that_holds_a_link_to_itself_is_listed_to_its_end(place):
    (place / "inner/up").symlink_to(place)
    assert "inner/up/" * 40 + "a.jpg" in {info.key for info in open_store(str(place)).list()}
    assert len(list(skipped_files(str(place)))) == 1  # the last of them


def test_pipe_and_a_link_to_itself_are_no_objects(place):
    os.mkfifo(place / "pipe")
    (place / "self").symlink_to("self")
    store, raised = open_store(str(place)), []

    def read():
        for key in ("pipe", "self"):
            try:
                store.get(key)
            except ObjectNotFound as error:
                raised.append(str(error))

    reader = Thread(target=read, daemon=True)
    reader.start()
    reader.join(PATIENCE_S)  # a pipe that is waited for has no end
    assert len(raised) == 2


def test_snapshot_of_hugging_face_leads_to_the_blobs_beside_it(tmp_path):
    cache = tmp_path / "datasets--lab--photos"
    snapshot, secret = cache / "snapshots/0123abcd", tmp_path / "secret"
    (snapshot / "data").mkdir(parents=True)
    (cache / "blobs").mkdir()
    (cache / "blobs/77aa").write_bytes(b"data")
    secret.write_bytes(b"secret")
    (snapshot / "data/0.parquet").symlink_to("../../../blobs/77aa")
    (snapshot / "data/1.parquet").symlink_to(secret)
    keys, refused = _list_keys(snapshot)
    assert keys == ["data/0.parquet"]
    assert set(refused) == {"data/1.parquet"}


def test_names_that_are_no_keys_are_named_and_the_others_listed(place):
    (place / "bell\x07.jpg").write_bytes(b"x")
    (place / "line\nbreak").mkdir()
    (place / "line\nbreak/x.jpg").write_bytes(b"x")
    (place / ("k" * 250) / ("k" * 250) / ("k" * 250) / ("k" * 250)).mkdir(parents=True)
    (place / ("k" * 250) / ("k" * 250) / ("k" * 250) / ("k" * 250) / ("k" * 50)).write_bytes(b"x")
    with open(os.fsencode(place) + b"/\xe9.jpg", "wb") as file:
        file.write(b"x")
    os.mkfifo(place / "pipe.jpg")
    (place / "gone.jpg").symlink_to(place / "nothing")
    keys, refused = _list_keys(place)
    assert keys == ["a.jpg", "inner/deep/b.jpg"]
    assert {name[:20] for name in refused} == {
        *("bell\x07.jpg", "line\nbreak", "k" * 20, "\\xe9.jpg", "pipe.jpg", "gone.jpg")
    }
    assert [info.key for info in open_store(str(place)).list()] == keys  # others may be a root's
    assert {name for name, _ in skipped_files(str(place))} == set(refused)


def test_mirrored_place_names_skipped_objects(place):
    (place / "out.jpg").symlink_to("/etc/hostname")
    (place / "bell\x07.jpg").write_bytes(b"x")
    refusals = Refusals()
    store = MirroredStore([open_store(str(place))], lambda _: "one")
    assert [info.key for info in list_place(store, refuse=refusals)] == ["a.jpg", "inner/deep/b.jpg"]
    assert [name for name, _ in refusals.first] == ["bell\x07.jpg", "out.jpg"]


def test_refusals_are_counted_and_the_first_are_kept():
    refusals = Refusals()
    for number in range(25):
        refusals(f"{number}//x", "no key")
    assert (refusals.n, len(refusals.first)) == (25, 20)
    assert refusals.lines()[0] == "  refused: '0//x': no key"
    assert refusals.lines()[-1] == "  ... and 5 more"
