"""Every kind of damage to an index and a map: verify names that, and nothing else."""

import json

import numpy as np
import pytest

import loader
from penstock.search.index_build import make_index
from penstock.search.map.stored_map import make_map
from penstock.upkeep.verify.root import verify_root
from tests.dataset.search.vectors import SHAPES, write_vectors


@pytest.fixture
def root(tmp_path):
    root = loader.Root(tmp_path / "root")
    write_vectors(root, SHAPES["clustered"](12, 8, np.random.default_rng(1)))
    make_index(root, "d")
    make_map(root, "d")
    return root


def problems(root):
    return [(one.address, one.what) for one in verify_root(loader.Root(root.url)).problems]


def paths(root, ending, folder="search/"):
    return sorted(info.key for info in root.store.list(folder) if info.key.endswith(ending))


def test_index_as_it_was_made_has_no_problem(root):
    assert problems(root) == []
    assert verify_root(root).n_foreign == 0


def test_flipped_bit_of_each_segment(root):
    for path in [*paths(root, ".parquet"), *paths(root, ".parquet", "maps/")]:
        data = root.store.get(path).data
        n_named = 0
        positions = range(0, len(data), len(data) // 12)
        for position in positions:
            flipped = bytearray(data)
            flipped[position] ^= 1
            root.store.put(path, bytes(flipped))
            for address, what in problems(root):
                assert address == path
                assert "run penstock index" in what
                n_named += 1
        assert n_named >= len(positions) // 2  # bytes that no reader uses may differ
        root.store.put(path, data)


def test_record_that_was_changed(root):
    path = paths(root, "how.json")[0]
    body = json.loads(root.store.get(path).data)
    root.store.put(path, json.dumps({**body, "field": "other.npy"}).encode())
    addresses = {address for address, _ in problems(root)}
    assert path in addresses
    assert all(address.startswith(path.removesuffix("how.json")) for address in addresses)


def test_segment_in_another_folder(root):
    codes, texts = paths(root, ".parquet")
    if codes.endswith(".texts.parquet"):
        codes, texts = texts, codes
    folder = texts.rpartition("/")[0]
    copy = f"{folder}/{codes.rpartition('/')[2]}"
    root.store.put(copy, root.store.get(codes).data)
    ((address, what),) = problems(root)
    assert (address, "whose segments end in .texts.parquet" in what) == (copy, True)


def test_fit_of_another_map(root):
    (path,) = paths(root, "fit.parquet", "maps/")
    other = "maps/0123456789abcdef/fit.parquet"
    root.store.put(other, root.store.get(path).data)
    ((address, what),) = problems(root)
    assert address == other
    assert f"was written as {path}: it was exchanged or renamed" in what


@pytest.mark.parametrize("path", ["search/photo.jpg", "maps/photo.jpg", "maps/a/b/fit.parquet"])
def test_objects_that_no_index_has(root, path):
    root.store.put(path, b"x")
    ((address, what),) = problems(root)
    assert address == path
    assert "no index or map has an object of this name" in what
