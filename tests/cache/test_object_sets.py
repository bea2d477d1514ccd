"""Sets of objects: their bytes, the nodes that divide them, and sets of a million objects."""

import itertools
import shutil
import sys
import tracemalloc

import numpy as np
import pytest

from loader.cache.node_cache import TOUCH_S, OpenCache
from loader.cache.object_sets import ObjectEpochs, ObjectSet, pages_bytes
from loader.cache.pages import HEADER_BYTES, make_place, object_prefix, page_name
from loader.cache.spec import NodeCache
from loader.errors import Transient

PAGE = 4096
ROWS = np.dtype([("prefix", ">u8"), ("nbytes", "<u8")])
_numbers = itertools.count()


def many(count, nbytes=PAGE, *, seed=1, also=()):
    """Return a set of objects with drawn names, and of the objects of the names `also`."""
    drawn = np.random.default_rng(seed).integers(0, 2**63, count, np.int64).astype(np.uint64) * 2
    named = [int(object_prefix(name), 16) for name in also]
    prefixes = np.unique(np.concatenate([drawn, np.array(named, np.uint64)]))
    rows = np.empty(len(prefixes), ROWS)
    rows["prefix"] = prefixes
    rows["nbytes"] = nbytes
    return with_rows(rows.tobytes())


def with_rows(body):
    divided = ObjectSet("", body)
    return ObjectSet.of_shares(divided, 1)


def test_bytes_of_sets_count_each_object_once_by_its_largest_size():
    sizes = {f"object{number}": 5000 * number + 1 for number in range(500)}
    both = ObjectSet.of(sizes.items())
    half = ObjectSet.of((name, nbytes // 2 + 1) for name, nbytes in list(sizes.items())[:300])
    other = ObjectSet.of([("another", 10)])
    pages = sum(-(-nbytes // PAGE) for nbytes in sizes.values()) + 1
    expected = sum(sizes.values()) + 10 + pages * 16
    for sets in ([both, half, other], [other, half, both]):
        assert pages_bytes([objects.body for objects in sets], PAGE, 16) == expected


def test_bytes_of_large_sets_are_those_of_their_objects():
    first, second = many(50_000, seed=1), many(40_000, seed=2)
    names = set()
    for objects in (first, second):
        names |= set(np.frombuffer(objects.body, ROWS)["prefix"].tolist())
    assert pages_bytes([first.body, second.body], PAGE, 16) == len(names) * (PAGE + 16)


def test_epoch_of_an_object_is_the_earliest_of_its_readers():
    first, second = ObjectSet.of([("a", 1), ("b", 1)]), ObjectSet.of([("b", 2), ("c", 1)])
    epochs = ObjectEpochs([(first.body, 7), (second.body, 5)])
    begins = [epochs.get(object_prefix(name)) for name in "abcd"]
    assert begins == [7, 5, 5, None]


def calls_of_pages(folder, objects, pages):
    """Return the calls that claims, reads and a count of the files cost."""
    spec = NodeCache(path=folder, limit_bytes=20 * (PAGE + HEADER_BYTES), page_bytes=PAGE)
    cache = OpenCache(spec, lambda what, amount: None, lambda: [objects])
    cache.read(page_name("first", PAGE, 0), (), claim=PAGE)  # declares the objects
    n_calls = 0

    def count(frame, event, argument):
        nonlocal n_calls
        n_calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        for number in range(pages):
            cache.read(page_name("first", PAGE, number), (), claim=PAGE)
        cache._room.recount()
        cache._room.held_bytes()
    finally:
        sys.setprofile(None)
    cache.close()
    return n_calls


def test_cost_of_a_page_does_not_grow_with_the_objects(tmp_path):
    few = calls_of_pages(tmp_path / "few", many(1000, also=["first"]), 50)
    lots = calls_of_pages(tmp_path / "many", many(100_000, also=["first"]), 50)
    assert lots < 1.2 * few


@pytest.mark.parametrize("count", [1000, 200_000])
def test_memory_beside_the_list_of_objects_is_bounded(tmp_path, count):
    """A server reads lists that others wrote: it holds one at a time, and no object of Python for each row."""
    make_place(str(tmp_path / "cache"))
    objects = many(count)
    (tmp_path / "cache" / "wanted" / objects.id).write_bytes(objects.body)
    nbytes = len(objects.body)
    tracemalloc.start()
    try:
        spec = NodeCache(path=tmp_path / "cache", limit_bytes=2**20, page_bytes=PAGE)
        cache = OpenCache(spec, lambda what, amount: None)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    cache.close()
    assert cache._demand_bytes == np.frombuffer(objects.body, ROWS)["nbytes"].sum() + count * HEADER_BYTES
    assert kept < 2**18
    assert peak < 2.5 * nbytes + 2**20


class FailingSets:
    """The set of one object, whose first reads fail."""

    def __init__(self, failures=0):
        self.failures = failures
        self.reads = 0
        self.objects = ObjectSet.of([("first", 10 * PAGE)])

    def __call__(self):
        self.reads += 1
        if self.reads <= self.failures:
            raise Transient("memory://root/shards.parquet: no answer")
        return [self.objects]


def claim_pages(cache, count):
    for _ in range(count):
        number = next(_numbers)  # a page that nobody fetches yet
        cache.read(page_name("first", PAGE, number), (), claim=PAGE)


def pass_a_minute(cache):
    cache._next_declaration_s -= TOUCH_S


def opened_cache(folder, sets):
    spec = NodeCache(path=folder, limit_bytes=20 * (PAGE + HEADER_BYTES), page_bytes=PAGE)
    return OpenCache(spec, lambda what, amount: None, sets)


def test_sets_that_the_store_does_not_return_are_declared_a_minute_later(tmp_path, caplog):
    sets = FailingSets(failures=2)
    cache = opened_cache(tmp_path, sets)
    file = tmp_path / "wanted" / sets.objects.id
    for reads in (1, 2):
        claim_pages(cache, 3)
        assert (sets.reads, file.exists(), cache._demand_bytes) == (reads, False, 0)
        pass_a_minute(cache)
    claim_pages(cache, 3)
    pass_a_minute(cache)
    claim_pages(cache, 3)
    assert (sets.reads, file.exists()) == (3, True)
    assert cache._demand_bytes == 10 * (PAGE + HEADER_BYTES)
    assert [running.sets for running in cache._loaders.read()] == [(sets.objects.id,)]
    assert len(caplog.records) == 1
    cache.close()


def test_sign_that_the_disk_did_not_take_names_the_sets_a_minute_later(tmp_path):
    sets = FailingSets()
    cache = opened_cache(tmp_path, sets)
    shutil.rmtree(tmp_path / "writing")
    claim_pages(cache, 1)
    (tmp_path / "writing").mkdir()
    pass_a_minute(cache)
    claim_pages(cache, 1)
    (sign,) = (tmp_path / "loaders").iterdir()
    assert sign.read_bytes()[8:].hex() == sets.objects.id
    cache.close()


def test_share_of_other_nodes_that_failed_is_declared_later(tmp_path):
    sets = FailingSets()
    cache = opened_cache(tmp_path, sets)
    claim_pages(cache, 1)
    sets.objects = ObjectSet.of([("first", 5 * PAGE)])
    sets.failures = 2
    cache.reload_sets()
    pass_a_minute(cache)
    claim_pages(cache, 1)
    assert (tmp_path / "wanted" / sets.objects.id).exists()
    cache.close()
