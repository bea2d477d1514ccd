"""What only a disk does: names in place at once or never, order of a walk, and its own errors."""

import errno
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loader.dataset.shards.shard import allocate_aligned
from loader.errors import AlreadyExists, Forbidden, InvalidStore, ObjectNotFound, StoreError, Transient
from loader.storage import open_store
from loader.storage.disk import folder_files
from loader.storage.disk.folder_files import DIRECT_ALIGNMENT, DIRECT_BYTES
from loader.storage.disk.unlisted_files import (
    delete_in_place,
    is_unfinished,
    list_in_place,
    list_with_unfinished,
)
from loader.storage.store import list_keys
from tests.refusals import refusal
from tests.servers.patience import PATIENCE_S


def files_below(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


SEGMENT = st.text(st.sampled_from("ab.!-0/Zé"), min_size=1, max_size=6)


@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    wishes=st.lists(SEGMENT, max_size=14),
    prefix=SEGMENT | st.just(""),
    start_after=SEGMENT | st.none(),
)
def test_walk_is_the_sorted_filtered_set_of_keys(tmp_path_factory, wishes, prefix, start_after):
    store = open_store(tmp_path_factory.mktemp("walk"))
    keys: set[str] = set()
    for wish in wishes:
        try:
            store.put(wish, b"x")
            keys.add(wish)
        except InvalidStore:
            continue  # no key, or 'a' beside 'a/b'
    wanted = sorted(k for k in keys if k.startswith(prefix) and (start_after is None or k > start_after))
    try:
        assert [info.key for info in store.list(prefix, start_after)] == wanted
        assert list(list_keys(store, prefix)) == sorted(key for key in keys if key.startswith(prefix))
    except InvalidStore:
        assert prefix.startswith("/") or any(s in ("", ".", "..") for s in prefix.split("/")[:-1])


@pytest.mark.parametrize("verb", ["put", "put_if_absent"])
def test_killed_writer_leaves_no_object(tmp_path, verb: str):
    script = (
        "import os, signal, sys\n"
        "from loader.storage import open_store\n"
        "os.fsync = lambda fd: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"open_store(sys.argv[1]).{verb}('k', b'x' * 1000000)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], timeout=PATIENCE_S)
    assert done.returncode == -signal.SIGKILL
    assert len(files_below(tmp_path)) == 1, "the unfinished file"
    store = open_store(tmp_path)
    assert list(store.list()) == []
    store.put_if_absent("k", b"y")
    assert [info.key for info in store.list()] == ["k"]


def test_what_was_not_finished_is_listed_and_deleted_by_its_own_verbs(tmp_path):
    """In one order with the objects; no key names it."""
    store = open_store(tmp_path / "root")
    for key in ("data/a/x.tar", "data/b.tar", "log/1"):
        store.put(key, b"x")
    left = ["data/.tmp-0", "data/a/.tmp-1", "log/.tmp-2"]
    for path in left:
        (tmp_path / "root" / path).write_bytes(b"left")
    (tmp_path / "root" / "data" / ".tmp-folder").mkdir()
    every = sorted([*left, "data/a/x.tar", "data/b.tar", "log/1"])
    assert [info.key for info in list_with_unfinished(store, "")] == every
    assert [info.key for info in list_with_unfinished(store, "data/a/")] == ["data/a/.tmp-1", "data/a/x.tar"]
    assert [info.key for info in store.list()] == ["data/a/x.tar", "data/b.tar", "log/1"]
    assert list(list_keys(store)) == ["data/a/x.tar", "data/b.tar", "log/1"]
    assert {info.nbytes for info in list_with_unfinished(store, "") if is_unfinished(info.key)} == {4}
    for wrong in ("../b.tar", "../.tmp-1", "/.tmp-1", "/data/b.tar", "data/../b.tar"):
        with pytest.raises(InvalidStore):
            delete_in_place(store, [wrong])
    for _ in range(2):
        delete_in_place(
            store, ["data/a/.tmp-1", "data/b.tar", "log/.tmp-2", "data/b.tar/x", "none/x", "data/a"]
        )
    assert [info.key for info in list_with_unfinished(store, "")] == ["data/.tmp-0", "data/a/x.tar", "log/1"]


def linked(tmp_path):
    """A store behind a link, with links in it: to a folder, to a file, to nothing, to the folder of a prefix."""
    for name in ("away/a/x.tar", "away/y.tar", "true/data/t/b/z.tar", "true/data/u.tar"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "root").symlink_to("true")
    for link, to in (
        ("data/t/a", "away/a"),
        ("data/t/b/y.tar", "away/y.tar"),
        ("data/t/b/gone.tar", "nothing"),
        ("cards", "away"),
    ):
        (tmp_path / "true" / link).symlink_to(tmp_path / to)
    return open_store(tmp_path / "root")


def test_what_lies_behind_links_is_read_and_not_listed_in_place(tmp_path):
    store = linked(tmp_path)
    every = [
        "cards/a/x.tar",
        "cards/y.tar",
        "data/t/a/x.tar",
        "data/t/b/y.tar",
        "data/t/b/z.tar",
        "data/u.tar",
    ]
    assert [info.key for info in store.list()] == every
    assert list(list_keys(store)) == every
    here = {"data/t/b/z.tar": False, "data/u.tar": False}
    links = {"data/t/a": True, "data/t/b/gone.tar": True, "data/t/b/y.tar": True}
    found = [(info.key, link) for info, link in list_in_place(store, "data/")]
    assert found == sorted((here | links).items())
    assert {info.key: link for info, link in list_in_place(store, "")} == here | links | {"cards": True}
    assert [(info.key, link) for info, link in list_in_place(store, "cards/a/")] == [("cards", True)]
    assert [(info.key, link) for info, link in list_in_place(store, "car")] == [("cards", True)]
    assert [info.key for info, _ in list_in_place(store, "cards/a/", "cards/a/")] == ["cards/a/x.tar"]
    assert [(info.key, link) for info, link in list_in_place(store, "data/t/a/", "data/t/")] == [
        ("data/t/a", True)
    ]


@pytest.mark.parametrize("path", ["cards/a/x.tar", "data/t/a/x.tar", "data/t/b/y.tar", "data/t/b/gone.tar"])
def test_nothing_behind_a_link_is_deleted_in_place(tmp_path, path):
    store = linked(tmp_path)
    with refusal(InvalidStore, what="symbolic link", where=f"{store.url}/{path}"):
        delete_in_place(store, ["data/u.tar", path])
    assert (tmp_path / "true" / path).is_symlink() or store.get(path).data == b"x"
    assert [info.key for info in store.list("data/u")] == []
    delete_in_place(store, ["cards/y.tar"], "cards/")  # what the caller vouches for
    assert [info.key for info in store.list("cards/")] == ["cards/a/x.tar"]


@pytest.mark.parametrize("verb", ["put", "put_if_absent"])
def test_full_disk_leaves_nothing_and_says_what_to_do(tmp_path, monkeypatch, verb: str):
    store = open_store(tmp_path / "root")
    store.put("other", b"x")

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with refusal(StoreError, what="object", where=f"{tmp_path}/root/k", given="ENOSPC") as caught:
            getattr(store, verb)("k", b"x" * 10)
    assert str(tmp_path / "root" / "k") in str(caught.value)
    assert files_below(tmp_path / "root") == ["other"]


@pytest.mark.parametrize(
    ("number", "leaf"),
    [
        (errno.EACCES, Forbidden),
        (errno.EROFS, Forbidden),
        (errno.EDQUOT, StoreError),
        (errno.EMFILE, StoreError),
        (errno.EIO, Transient),
        (errno.ESTALE, Transient),
        (errno.ENAMETOOLONG, InvalidStore),
        (errno.ENOENT, ObjectNotFound),
        (errno.ENOTDIR, ObjectNotFound),
    ],
)
def test_what_the_system_answers(tmp_path, monkeypatch, number: int, leaf):
    store = open_store(tmp_path)
    store.put("k", b"x")

    def refuse(path: str, *_: object) -> int:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(leaf) as caught:
        store.get("k")
    assert type(caught.value) is leaf
    assert str(tmp_path / "k") in str(caught.value)


@pytest.mark.parametrize("folder", [None, "/dev/shm"])
def test_pieces_of_any_size_and_place_in_memory_are_written_one_behind_the_other(tmp_path, folder):
    """Large ones go past the page cache: not where the file has come to an odd place, or memory begins at one."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        memory, sizes = (
            allocate_aligned(DIRECT_BYTES + DIRECT_ALIGNMENT),
            [DIRECT_BYTES, DIRECT_BYTES + 7, DIRECT_BYTES, 1],
        )
        memory[:] = os.urandom(len(memory))
        pieces = [memory[:size] for size in sizes] + [memory[1 : 1 + DIRECT_BYTES], memory[DIRECT_ALIGNMENT:]]
        with closing(open_store(place).open_new("a/b")) as new:
            for piece in pieces:
                new.write(piece)
            new.finish()
        assert Path(place, "a/b").read_bytes() == b"".join(pieces)


def test_file_system_without_hard_links_is_refused(tmp_path, monkeypatch):
    store = open_store(tmp_path)

    def refuse(source: str, target: str) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with refusal(InvalidStore, what="hard link", where=f"{tmp_path}/k", given="EPERM"):
        store.put_if_absent("k", b"x")
    assert files_below(tmp_path) == []


def test_link_whose_answer_was_lost_is_ours(tmp_path, monkeypatch):
    store = open_store(tmp_path)
    link = os.link

    def lost(source: str, target: str) -> None:
        link(source, target)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "link", lost)
    store.put_if_absent("k", b"ours")
    with pytest.raises(AlreadyExists):
        store.put_if_absent("k", b"theirs")
    assert store.get("k").data == b"ours"
    assert files_below(tmp_path) == ["k"]


def test_key_below_a_file_and_a_key_above_files(tmp_path):
    store = open_store(tmp_path)
    store.put("a/b", b"x")
    for verb in (store.put, store.put_if_absent):
        with refusal(InvalidStore, what="object", where=f"{tmp_path}/a/b/c", given="ENOTDIR"):
            verb("a/b/c", b"y")
        with refusal(InvalidStore, what="object", where=f"{tmp_path}/a"):
            verb("a", b"y")
    assert files_below(tmp_path) == ["a/b"]


def test_foreign_entries(tmp_path, caplog):
    store = open_store(tmp_path)
    store.put("a", b"x")
    (tmp_path / ".tmp-left-behind").write_bytes(b"half")
    (tmp_path / "empty folder").mkdir()
    (tmp_path / "broken link").symlink_to("nowhere")
    os.mkfifo(tmp_path / "fifo")
    with open(os.fsencode(tmp_path) + b"/not-\xff-text", "wb") as out:
        out.write(b"x")
    assert [info.key for info in store.list()] == ["a"]
    assert "not UTF-8" in caplog.text


def test_links_are_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x").write_bytes(b"far")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "d").symlink_to(tmp_path / "elsewhere")
    store = open_store(tmp_path / "root")
    assert [info.key for info in store.list()] == ["d/x"]
    assert store.get("d/x").data == b"far"


def test_open_stream_keeps_its_object(tmp_path):
    store = open_store(tmp_path)
    store.put("k", b"first" * 1000)
    with store.open_stream("k") as stream:
        store.put("k", b"other")
        assert stream.read() == b"first" * 1000


def test_url_is_an_absolute_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = open_store("a relative/path")
    assert store.url == str(tmp_path / "a relative/path")
    monkeypatch.chdir("/")
    store.put("k", b"x")
    assert (tmp_path / "a relative/path/k").read_bytes() == b"x"
    assert open_store((tmp_path / "a relative/path").as_uri()).get("k").data == b"x"
    assert open_store(f"file://{tmp_path}/a%20relative/path").url == store.url
    assert open_store(f"file://localhost{tmp_path}/x#y?z").url == f"{tmp_path}/x#y?z"


@pytest.mark.parametrize("url", ["~/data", "~", "~somebody/data", "file://host/path", "a\0b", ""])
def test_paths_that_are_refused(url: str):
    with pytest.raises(InvalidStore):
        open_store(url)


def test_file_is_no_store(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    with refusal(
        InvalidStore, what="store", where=f"{tmp_path}/file", given="a file", accepted="a directory"
    ):
        open_store(tmp_path / "file")
    with refusal(InvalidStore, what="options", where=tmp_path, given=["anon"], accepted="none"):
        open_store(tmp_path, {"anon": True})


def test_name_that_was_not_made_durable_is_when_the_create_is_repeated(tmp_path, monkeypatch):
    """Of a create whose name could not be synced: that the bytes are there is not enough to say that it was done."""
    store, synced = open_store(tmp_path), []

    def fail(path: str) -> None:
        synced.append(path)
        if len(synced) == 1:
            raise OSError(errno.EIO, "Input/output error")

    (tmp_path / "folder").mkdir()
    for module in ("folder_files", "store"):
        monkeypatch.setattr(f"loader.storage.disk.{module}.fsync_directory", fail)
    with pytest.raises(Transient):
        store.put_if_absent("folder/k", b"x")
    store.put_if_absent("folder/k", b"x")
    assert synced == [f"{tmp_path}/folder"] * 2


def test_folder_that_vanishes_is_made_again(tmp_path, monkeypatch):
    """A probe of another process removes the folders that it made, once they are empty."""
    real = folder_files.make_directories
    folder = str(tmp_path / "a")
    calls = []

    def vanishing(path):
        real(path)
        if path == folder:
            calls.append(path)
            if len(calls) <= 2:
                os.rmdir(path)

    monkeypatch.setattr(folder_files, "make_directories", vanishing)
    store = open_store(str(tmp_path))
    store.put("a/b", b"bytes")
    assert len(calls) == 3
    assert store.get("a/b").data == b"bytes"


def test_folder_that_always_vanishes_ends_the_write(tmp_path, monkeypatch):
    real = folder_files.make_directories
    folder = str(tmp_path / "a")

    def vanishing(path):
        real(path)
        if path == folder:
            os.rmdir(path)

    monkeypatch.setattr(folder_files, "make_directories", vanishing)
    store = open_store(str(tmp_path))
    with refusal(ObjectNotFound, what="object", where=f"{tmp_path}/a/b", given="ENOENT"):
        store.put("a/b", b"bytes")
