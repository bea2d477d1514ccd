"""Files of a store that are held open, and mapped where they lie on this machine."""

import os
import pickle
import resource
import sys

import pytest

from loader.errors import Changed, ObjectNotFound
from loader.storage import open_store
from loader.storage.disk import file_handles as module
from loader.storage.disk.file_handles import FileHandles, is_local_filesystem
from tests.refusals import refusal
from tests.servers.processes import python


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path / "disk"))


def open_files(store):
    """Names of the store's files that this process has open."""
    targets = []
    for one in os.listdir("/proc/self/fd"):
        try:
            targets.append(os.readlink(f"/proc/self/fd/{one}"))
        except FileNotFoundError:  # the folder's own, closed by now
            continue
    return sorted({os.path.basename(one) for one in targets if one.startswith(store.url)})


def test_bytes_and_etag_are_those_of_a_read(store):
    store.put("a/b", bytes(range(256)) * 40)
    files = FileHandles(store)
    handle, etag = files.get("a/b", None)
    assert etag == store.get_range("a/b", 0, 1).etag
    assert os.pread(handle.descriptor, 10, 300) == handle.map[300:310] == bytes(range(44, 54))
    assert files.get("a/b", etag) == (handle, etag)


def test_file_that_was_replaced(store):
    """Who has the old one open may read it to the end."""
    store.put("k", b"one")
    files = FileHandles(store)
    old, etag = files.get("k", None)
    store.put("k", b"two, longer")
    with refusal(Changed, what="etag", where=f"{store.url}/k", accepted=etag):
        files.get("k", etag)
    new, _ = files.get("k", None)
    assert os.pread(old.descriptor, 99, 0) == b"one"
    assert os.pread(new.descriptor, 99, 0) == b"two, longer"


def test_file_that_was_replaced_between_two_looks(store, monkeypatch):
    store.put("k", b"one")
    monkeypatch.setattr(type(store), "etag_of", lambda self, key, etag=None: "before")
    assert FileHandles(store).get("k", None) is None


def test_what_is_not_there_and_what_is_empty(store):
    store.put("empty", b"")
    files = FileHandles(store)
    with pytest.raises(ObjectNotFound):
        files.get("gone", None)
    handle, _ = files.get("empty", None)
    assert handle.map is None
    assert os.pread(handle.descriptor, 9, 0) == b""


def test_more_files_than_may_be_open(store, monkeypatch):
    """Those used last stay; one that somebody still holds is closed when he lets it go."""
    monkeypatch.setattr(module, "KEPT_FILES", 2)
    files = FileHandles(store)
    for i in range(4):
        store.put(f"k{i}", b"x" * 5000)
    held, _ = files.get("k0", None)
    for name in ("k1", "k2", "k1", "k3"):
        files.get(name, None)
    assert open_files(store) == ["k0", "k1", "k3"]
    assert os.pread(held.descriptor, 1, 0) == b"x"
    del held
    assert open_files(store) == ["k1", "k3"]
    files.close()
    assert open_files(store) == []


def test_only_files_of_this_machine_are_mapped(store, monkeypatch):
    """A page of a network's file may not come for minutes."""
    store.put("k", b"x")
    assert is_local_filesystem(os.stat(store.url).st_dev)
    monkeypatch.setattr(module, "LOCAL_TYPES", frozenset({"nfs4"}))
    is_local_filesystem.cache_clear()
    handle, _ = FileHandles(store).get("k", None)
    assert handle.map is None
    assert os.pread(handle.descriptor, 1, 0) == b"x"
    monkeypatch.undo()
    is_local_filesystem.cache_clear()
    assert not is_local_filesystem(os.makedev(4000, 17))
    is_local_filesystem.cache_clear()


def test_few_descriptors_are_not_used_up(store, monkeypatch):
    limits = iter([(40, 40), (2, 2), (resource.RLIM_INFINITY, resource.RLIM_INFINITY)])
    monkeypatch.setattr(resource, "getrlimit", lambda which: next(limits))
    most = [module._most_files() for _ in range(3)]
    assert most == [10 if sys.version_info >= (3, 13) else 5, 1, module.KEPT_FILES]


def test_store_travels_without_open_files(store):
    store.put("k", b"x")
    FileHandles(store).get("k", None)
    assert pickle.loads(pickle.dumps(store)).get("k").data == b"x"  # noqa: S301 - our own


def test_file_for_which_there_is_no_descriptor_left_is_read(tmp_path):
    """Those that are kept open give way: a read needs one too."""
    code = """
import os, resource, sys
from loader.storage import open_store
from loader.storage.store import as_disk
from loader.storage.disk.file_handles import FileHandles

store = open_store(sys.argv[1])
store.put("a", b"a" * 5000), store.put("b", b"b" * 5000)
files = FileHandles(as_disk(store))
assert files.get("a", None) is not None
lowest = os.dup(0)  # the next descriptor that would be given
os.close(lowest)
resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
print(files.get("b", None))
assert store.get("b").data == b"b" * 5000
"""
    run = python("-c", code, tmp_path)
    assert run.stdout == "None\n", run.stderr
