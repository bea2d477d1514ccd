"""Files of a local disk mapped into memory."""

import os
import pickle
import resource
import subprocess
import sys

import numpy as np
import pytest

from loader.errors import Changed, ObjectNotFound
from loader.storage import open_store
from loader.storage.disk import mapped_files as module
from loader.storage.disk.mapped_files import MappedFiles, is_of_this_machine


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path / "disk"))


def open_maps():
    """Of files in this process."""
    with open("/proc/self/maps") as lines:
        return [line.split()[-1] for line in lines if "/disk/" in line]


def test_bytes_and_etag_are_those_of_a_read(store):
    store.put("a/b", bytes(range(256)) * 40)
    maps = MappedFiles(store)
    with maps.using("a/b", None) as (mapped, etag):
        assert etag == store.get_range("a/b", 0, 1).etag
        assert mapped.data[300:310] == bytes(range(44, 54))
        assert np.array_equal(mapped.array, np.arange(256 * 40) % 256)
        assert not mapped.array.flags.writeable
    with maps.using("a/b", etag) as (again, same):
        assert again is mapped
        assert same == etag


def test_a_file_that_was_replaced(store):
    store.put("k", b"one")
    maps = MappedFiles(store)
    with maps.using("k", None) as (mapped, etag):
        store.put("k", b"two, longer")
        assert mapped.data[:] == b"one"
    with pytest.raises(Changed, match="was replaced"), maps.using("k", etag):
        pass
    with maps.using("k", None) as (mapped, _):
        assert mapped.data[:] == b"two, longer"


def test_a_file_that_was_cut_short_in_its_place_is_not_touched(store):
    """Its old map would end the process with a signal."""
    store.put("k", bytes(100_000))
    maps = MappedFiles(store)
    with maps.using("k", None) as (_, etag):
        pass
    os.truncate(os.path.join(store.url, "k"), 10)
    with pytest.raises(Changed), maps.using("k", etag):
        pass
    with maps.using("k", None) as (mapped, _):
        assert len(mapped.array) == 10


def test_what_is_not_there_and_what_is_empty(store):
    store.put("empty", b"")
    maps = MappedFiles(store)
    with pytest.raises(ObjectNotFound), maps.using("gone", None):
        pass
    with maps.using("empty", None) as mapped:
        assert mapped is None


def test_more_files_than_maps(store, monkeypatch):
    """Some are mapped, the others read; what is not used any more gives way in the end."""
    monkeypatch.setattr(module, "KEPT_FILES", 3)
    maps = MappedFiles(store)
    for i in range(6):
        store.put(f"k{i}", b"x" * 5000)
    for _ in range(4):
        for i in range(6):
            with maps.using(f"k{i}", None) as mapped:
                assert (mapped is not None) == (i < 3)
    assert sorted(os.path.basename(path) for path in open_maps()) == ["k0", "k1", "k2"]
    for _ in range(3 * module.UNUSED):
        for i in (1, 2):
            with maps.using(f"k{i}", None):
                pass
    with maps.using("k5", None) as mapped:
        assert mapped is not None
    with maps.using("k4", None) as mapped:
        assert mapped is None
    assert sorted(os.path.basename(path) for path in open_maps()) == ["k1", "k2", "k5"]
    maps.close()
    assert open_maps() == []


def test_only_of_file_systems_of_this_machine(store, monkeypatch):
    """A map of a network's file may end the process when the network does."""
    store.put("k", b"x")
    assert is_of_this_machine(os.stat(store.url).st_dev)
    monkeypatch.setattr(module, "LOCAL_TYPES", frozenset({"nfs4"}))
    is_of_this_machine.cache_clear()
    with MappedFiles(store).using("k", None) as mapped:
        assert mapped is None
    monkeypatch.undo()
    is_of_this_machine.cache_clear()
    assert not is_of_this_machine(os.makedev(4000, 17))
    is_of_this_machine.cache_clear()


def test_after_waiting_for_the_disk_maps_rest(store):
    """Pages that the kernel had to fetch: a thread that waits for them may hold the interpreter's lock."""
    store.put("k", os.urandom(8 * 2**20))
    path = os.path.join(store.url, "k")
    maps = MappedFiles(store)
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
    with maps.using("k", None) as (mapped, _):
        sum(mapped.data[at] for at in range(0, 8 * 2**20, 128 * 1024 + 4096))
    waited = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt - before
    with maps.using("k", None) as found:
        assert (found is None) == (waited > module.FEW_WAITS)
    for _ in range(module.RESTS):
        with maps.using("k", None):
            pass
    with maps.using("k", None) as found:
        assert found is not None


def test_waiting_is_noticed(store, monkeypatch):
    store.put("k", b"x" * 5000)
    faults = iter([0, module.FEW_WAITS, 100, 100 + module.FEW_WAITS + 1])
    monkeypatch.setattr(module, "_major_faults", lambda: next(faults))
    maps, found = MappedFiles(store), []
    for _ in range(module.RESTS + 2):
        with maps.using("k", None) as mapped:
            found.append(mapped is not None)
    assert found == [True, True, *[False] * module.RESTS]


def test_a_store_travels_without_maps(store):
    store.put("k", b"x")
    with MappedFiles(store).using("k", None):
        assert pickle.loads(pickle.dumps(store)).get("k").data == b"x"  # noqa: S301 - our own


def test_a_file_for_which_there_is_no_descriptor_left_is_read(tmp_path):
    """Before Python 3.13 a map takes a descriptor beside the one of its file."""
    code = """
import os, resource, sys
from loader.storage import open_store
from loader.storage.store import disk_of
from loader.storage.disk.mapped_files import MappedFiles

store = open_store(sys.argv[1])
store.put("a", b"a" * 5000), store.put("b", b"b" * 5000)
maps = MappedFiles(disk_of(store))
with maps.using("a", None) as found:
    assert found is not None
lowest = os.dup(0)  # the next descriptor that would be given
os.close(lowest)
resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
with maps.using("b", None) as found:
    print("read" if found is None else "mapped")
assert store.get("b").data == b"b" * 5000
"""
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert run.stdout == ("mapped\n" if sys.version_info >= (3, 13) else "read\n"), run.stderr
