"""Hashes of the keys: a new key is found or missed without reading the keys that are there."""

from uuid import uuid4

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.dataset.names import hashes_of
from loader.dataset.publishing import commit, compaction, publication_gate
from loader.dataset.shards import key_hashes
from loader.dataset.shards.key_hashes import find_known, put_hashes
from loader.dataset.writing import run_samples
from loader.errors import Corrupt, DuplicateKey
from loader.storage import open_store
from penstock.upkeep.verify.version import verify
from tests.refusals import refusal


def write_hashes(store, n, seed=0):
    hashes = np.random.default_rng(seed).integers(0, 2**63, n)
    return hashes, put_hashes(store, "data/t/a", hashes)


def test_hashes_are_those_of_the_sketches():
    from loader.dataset.tables.stats import bottom_k

    keys = [f"k{i}" for i in range(50)]
    assert sorted(hashes_of(keys).tolist()) == bottom_k(keys)
    assert hashes_of([]).tolist() == []


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    table=st.lists(st.integers(0, 60), max_size=80),
    asked=st.lists(st.integers(0, 60), max_size=20),
    rows=st.integers(1, 9),
)
def test_known_is_membership(table, asked, rows):
    """Whole, and by row groups that repeat a value over their border."""
    store = open_store(f"memory://key-hashes-{uuid4().hex}")
    asked = np.array(sorted(asked), np.int64)
    for whole in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(key_hashes, "ROW_GROUP_ROWS", rows)
            patch.setattr(key_hashes, "WHOLE_BELOW_BYTES", 2**20 if whole else 0)
            patch.setattr(key_hashes, "TAIL_BYTES", 0)
            file = put_hashes(store, f"data/t/{whole}", np.array(table, np.int64))
            if whole or file["nbytes"] > 65536:
                (found,) = find_known(store, [file], asked)
                assert found.tolist() == [one in set(table) for one in asked.tolist()]


@pytest.mark.parametrize("n", [200_000, 800_000])
def test_new_keys_read_only_their_row_groups(url, stores, n):
    """Of a large table: the footer and a stretch per key, whatever its size. 20 keys among 200,000 and 800,000."""
    store = stores.Counting(open_store(url))
    hashes, file = write_hashes(store, n)
    asked = np.sort(np.random.default_rng(1).integers(0, 2**63, 20))
    store.calls.clear()
    assert find_known(store, [file], asked)[0].sum() == 0
    assert store.calls == {("get_range", "data"): 1, ("get_ranges", "data"): 1}
    assert store.nbytes < 70_000  # the footer
    some = np.sort(np.append(asked, hashes[[0, n // 2, n - 1]]))
    (found,) = find_known(store, [file], some)
    assert set(some[found].tolist()) == set(hashes[[0, n // 2, n - 1]].tolist())


def test_damaged_table_of_hashes_is_named(url):
    store = open_store(url)
    _, file = write_hashes(store, 200_000)
    good = store.get(file["path"]).data
    earlier = {name: value for name, value in file.items() if name != "footer_sha256"}
    asked = np.sort(np.random.default_rng(0).integers(0, 2**63, 2000))
    where = f"{store.url}/{file['path']}"
    for at, faults in (
        (5000, ({"what": "row group 0", "where": where}, {"what": "table", "given": "OSError"})),
        (
            len(good) - 20,
            ({"what": "its footer", "where": where}, {"what": "footer's CRC-32C", "where": where}),
        ),
    ):
        store.put(file["path"], good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        for one, fault in zip((file, earlier), faults, strict=True):
            with refusal(Corrupt, **fault):
                find_known(store, [one], asked)


def test_table_of_other_hashes_with_the_checksum_of_the_first_is_refused(url):
    """By its SHA-256, though nobody reads all of it; those of earlier releases have a CRC-32C alone."""
    store = open_store(url)
    _, file = write_hashes(store, 200_000)
    hashes, other = write_hashes(store, 200_000, seed=1)
    store.put(file["path"], store.get(other["path"]).data)
    forged = {**file, **{name: other[name] for name in ("nbytes", "footer_nbytes", "footer_crc32c")}}
    asked = np.sort(hashes[:5])
    with refusal(Corrupt, what="its footer"):
        find_known(store, [forged], asked)
    del forged["footer_sha256"]
    assert find_known(store, [forged], asked)[0].all()


def test_dataset_of_an_older_release_gets_its_hashes(root, monkeypatch, properties):
    """Its manifests have none: keys are compared, and the next publish leaves the hashes of all."""
    with monkeypatch.context() as patch:
        patch.setattr(commit, "compact_lists", lambda store, prefix, body, done: older(body))
        for run in range(3):
            with root.write("d") as writer:
                writer.add(f"k{run}", {"x": b"1"})
        assert "key_hashes" not in root.open("d").manifest
    with refusal(DuplicateKey, what="key", where="d@3", given="k1"), root.write("d") as writer:
        writer.add("k1", {"x": b"1"})
    with root.write("d") as writer:
        writer.add("new", {"x": b"1"})
    manifest = root.open("d").manifest
    assert sum(file["n_rows"] for file in manifest["key_hashes"]) == manifest["n_rows"] == 4
    with refusal(DuplicateKey, what="key", where="d@4", given="k1"), root.write("d") as writer:
        writer.add("k1", {"x": b"1"})
    assert verify(root, "d", full=True).problems == []


def older(body):
    return {name: value for name, value in body.items() if name != "key_hashes"}


def test_two_keys_of_one_hash_are_two_keys(root, monkeypatch):
    """A hash that is there proves nothing."""
    for module in (compaction, publication_gate, run_samples):
        monkeypatch.setattr(module, "hashes_of", lambda keys: np.zeros(len(keys), np.int64))
    for key in ("a", "b", "c"):
        with root.write("d") as writer:
            writer.add(key, {"x": b"1"})
    assert len(root.open("d")) == 3
    with refusal(DuplicateKey, what="key", where="d@3", given="b"), root.write("d") as writer:
        writer.add("b", {"x": b"1"})
