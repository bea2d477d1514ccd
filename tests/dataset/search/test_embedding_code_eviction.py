"""Local files of codes in a folder that no loader uses: the ones used the longest ago make room for others."""

import os
import time
from types import SimpleNamespace

import numpy as np
import pytest

import loader
from loader.dataset.search import embedding_code_eviction
from loader.dataset.search.embedding_code_eviction import ABANDONED_S, make_room
from penstock.search.index_build import make_index
from tests.dataset.search.vectors import nearest, read_vectors, write_vectors


@pytest.fixture
def disk(monkeypatch):
    """A disk whose free bytes the test decides."""
    disk = SimpleNamespace(free=2**40)
    monkeypatch.setattr(embedding_code_eviction, "free_bytes", lambda folder: disk.free)
    return disk


def put(folder, name, nbytes, used_s):
    path = folder / name
    path.write_bytes(b"c" * nbytes)
    os.utime(path, (time.time() - used_s, time.time() - used_s))


def evict_codes(folder, nbytes):
    return sorted(os.path.basename(path) for path in make_room(folder, nbytes))


def test_files_used_the_longest_ago_make_room(tmp_path, disk):
    for stem, used_s in (("old", 900), ("new", 10), ("older", 990)):
        put(tmp_path, f"{stem}.faiss", 80, used_s)
        put(tmp_path, f"{stem}.json", 20, used_s)
    disk.free = 400
    assert evict_codes(tmp_path, 50) == []
    assert evict_codes(tmp_path, 51) == ["older.faiss", "older.json"]
    disk.free = 100
    assert evict_codes(tmp_path, 50) == ["old.faiss", "old.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.faiss", "new.json"]


def test_files_of_killed_searches_go_and_those_of_running_ones_stay(tmp_path, disk):
    put(tmp_path, "a.faiss.0123abcd", 10, ABANDONED_S + 9)
    put(tmp_path, "b.faiss.0123abcd", 10, 1)
    assert evict_codes(tmp_path, 10) == ["a.faiss.0123abcd"]
    disk.free = 0
    assert evict_codes(tmp_path, 10) == []


def test_search_in_a_full_folder_evicts_the_codes_of_another_version(tmp_path, disk):
    root = loader.Root(tmp_path / "root")
    folder = tmp_path / "cache"
    for dataset in ("first", "second"):
        write_vectors(root, np.random.default_rng(len(dataset)).normal(size=(120, 12)), dataset=dataset)
        make_index(root, dataset)

    def search_dataset(dataset):
        version = root.open(dataset)
        result = version.search(like="k000007", k=20, cache=folder)
        vectors = read_vectors(version)
        (own,) = [place for place, key in enumerate(version.keys(range(120))) if key == "k000007"]
        assert result.ordinals.tolist() == nearest(vectors, vectors[own], 20)[0]
        return {path.name for path in (folder / "search").iterdir()}

    first = search_dataset("first")
    assert search_dataset("first") == first
    disk.free = 0
    second = search_dataset("second")
    assert second
    assert first.isdisjoint(second)
