"""Every kind of damage to an index: verify names that, and nothing else."""

import json

import numpy as np
import pytest

import loader
from penstock.search.make import make_index
from penstock.upkeep.verify.root import verify_root
from tests.dataset.search.vectors import SHAPES, write_vectors


@pytest.fixture
def root(tmp_path):
    root = loader.Root(tmp_path / "root")
    write_vectors(root, SHAPES["clustered"](12, 8, np.random.default_rng(1)))
    make_index(root, "d")
    return root


def problems(root):
    return [(one.address, one.what) for one in verify_root(loader.Root(root.url)).problems]


def paths(root, ending):
    return sorted(info.key for info in root.store.list("search/") if info.key.endswith(ending))


def test_index_as_it_was_made_has_no_problem(root):
    assert problems(root) == []
    assert verify_root(root).n_foreign == 0


def test_flipped_bit_of_each_segment(root):
    for ending in (".codes.parquet", ".texts.parquet"):
        (path,) = paths(root, ending)
        data = root.store.get(path).data
        n_named = 0
        positions = range(0, len(data), len(data) // 12)
        for position in positions:
            flipped = bytearray(data)
            flipped[position] ^= 1
            root.store.put(path, bytes(flipped))
            for address, what in problems(root):
                assert address == path
                assert "run penstock index again" in what
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
    assert (address, "is no segment of 'caption.txt'" in what) == (copy, True)


def test_objects_that_no_index_has(root):
    root.store.put("search/photo.jpg", b"x")
    ((address, what),) = problems(root)
    assert address == "search/photo.jpg"
    assert "no index has an object of this name" in what
