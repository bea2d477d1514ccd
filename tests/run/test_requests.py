"""What the first batch costs: counted requests and bytes, wherever it lies and however large the version is."""

import json
import tracemalloc
from collections import Counter

import numpy as np
import pytest

import loader
from loader.dataset.shards.index import ROW_GROUP_ROWS
from tests.servers.processes import python

BATCH = 8


def first_batch(root, watched, step):
    """(watched store, requests for media) of the first batch of a fresh loader on a freshly opened version."""
    store = watched(root)
    version = root.open("large@latest")
    plan = loader.plan({"p": version.select("cls")}, seed=3, global_batch=BATCH)
    store.requests.clear()
    store.nbytes.clear()
    with loader.Loader(plan, 0, 1, workers=0, framework="numpy") as batches:
        batch = batches.batch_at(step)
    assert len(batch["cls"]) == BATCH
    root.store = store.inner
    return store, sum(n for (verb, _), n in store.requests.items() if verb == "get_ranges")


def write(root, n):
    with root.write("large", part_samples=n // 4) as writer:
        for i in range(n):
            writer.add(f"{i:06d}", {"cls": i})


def test_requests_do_not_depend_on_the_step(memory_root, watch_store):
    write(memory_root, 400)
    for step in (0, 10**7):
        store, data = first_batch(memory_root, watch_store, step)
        assert data <= 4  # the shards, each once
        assert sum(store.requests.values()) <= 4 + data  # indexes, shards
        assert store.nbytes["get_ranges"] <= BATCH * 8


def test_requests_do_not_depend_on_the_number_of_samples(watch_store):
    seen = {}
    for n in (400, 3200):
        with loader.Root(f"memory://requests-{n}") as root:
            write(root, n)
            store, data = first_batch(root, watch_store, 0)
            seen[n] = (
                sum(store.requests.values()) - data,
                store.nbytes["get_ranges"] <= BATCH * 8,
                data <= 4,
            )
    assert seen[400] == seen[3200] == (4, True, True)  # the indexes


def count_open(watched, n):
    """What a rank that has made nothing asks for until it can read, of two saved plans: one with a source in three
    buckets, one with a filtered source that grew.
    (requests by folder, keys of samples tables)"""
    with loader.Root(f"memory://opened-{n}") as root:
        with root.write("many", part_samples=n // 4) as writer:
            for i in range(n):
                writer.add(f"{i:06d}", {"cls": i}, metadata={"i": i, "third": f"b{i % 3}"})
        with root.write("other", part_samples=n // 4) as writer:
            for i in range(n):
                writer.add(f"{i:06d}", {"cls": i}, metadata={"i": i})
        filtered = root.open("other@1").where("i % 2 = 0")
        with root.write("other", part_samples=n // 4) as writer:
            for i in range(n, n + n // 2):
                writer.add(f"{i:06d}", {"cls": i}, metadata={"i": i})
        bucketed = loader.plan({"many": root.open("many@1")}, seed=3, global_batch=8, bucket_by="third")
        grown = loader.plan({"o": filtered}, seed=3, global_batch=8).grow({"o": root.open("other@2")}, 3)
        for made in (bucketed, grown):
            made.save(root)
    with loader.Root(f"memory://opened-{n}") as root:
        assert root.state  # the log is read
        store = watched(root)
        for made in (bucketed, grown):
            with loader.Loader(loader.open_plan(root, made.hash), 0, 1, workers=0) as batches:
                assert batches.plan.hash == made.hash
        requests = {key: count for (verb, key), count in store.requests.items() if verb.startswith("get")}
        root.store = store.inner
    kinds = Counter()
    for key, count in requests.items():
        kinds[key.partition("/")[0]] += count
    samples = [key for key in requests if "samples" in key]
    return kinds, samples


def test_rank_opens_a_saved_plan_without_reading_samples_or_shards(watch_store):
    """However many samples: the plan, of each version its manifest and tables of shards, a select table per view."""
    for n in (400, 3200):
        kinds, samples = count_open(watch_store, n)
        assert samples == []
        # A manifest per version, one for all buckets; a table of shards per publish. Two versions that are opened at
        # once may both read the table that they share.
        assert kinds.pop("data") in (3 + 3, 3 + 4)
        assert kinds == {
            "plans": 2 + 2,  # two plans and their start notes
            "views": 3 + 3,  # buckets; the old view, the new one, and what is new
        }


def test_large_index_is_read_by_row_group(tmp_path, watch_store):
    """Of an index above its whole-read limit, the footer and one row group are read, not the file."""
    root = loader.Root(str(tmp_path / "root"))
    rows = 40 * ROW_GROUP_ROWS
    with root.write("large") as writer:
        for i in range(rows):
            writer.add(f"{i * 7919 % rows:08d}/{i:x}", {"cls": i % 10})
    store, data = first_batch(root, watch_store, 5)
    shard = root.open("large@1").parts.shard("media", 0)
    index_requests = sum(n for (_, key), n in store.requests.items() if key == shard["index_path"])
    assert data == 1
    assert index_requests <= 1 + BATCH
    assert store.nbytes["get_range"] < shard["index_nbytes"] * (1 + BATCH) / 20


PLAN_AT_SCALE = """
import json, sys
import loader

def peak_kib():  # (ru_maxrss would also count the process that forked this one)
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

loader.plan({"web": loader.synthetic(10)}, seed=1, global_batch=4).batch_ids(0)  # all is imported now
before = peak_kib()
plan = loader.plan({"web": loader.synthetic(10**9)}, seed=1, global_batch=1024)
changed = loader.plan({"web": loader.synthetic(10**9)}, seed=1, global_batch=[(0, 256), (10**6, 1024)])
changed = changed.grow({"web": loader.synthetic(12 * 10**8)}, step=9_990_000)  # mixed in at step 1e7
for step in (0, 10**7, 10**12):
    for one in (plan, changed):
        slots = one.slots(step)
        assert len(slots) == one.batch_size(step)
        ids = one.batch_ids(step)
        assert one.check_state(one.state(step)) == step
        assert len({name for name, _ in one.batch_ids(10**7)}) == (1 if one is plan else 2)
after = peak_kib()
print(json.dumps([after, after - before, len(set(ids))]))
"""


def test_billion_samples_need_no_table():
    """Peak memory of a process that plans 1e9 samples and finds any step, also of a run that changed its batch and its
    version: well under 1 GiB."""
    done = python("-c", PLAN_AT_SCALE, check=True)
    peak_kib, grown_kib, distinct = json.loads(done.stdout)
    assert peak_kib < 2**18
    assert grown_kib < 32 * 2**10
    assert distinct == 1024


def test_memory_of_the_first_batch_does_not_depend_on_the_step_or_the_number_of_samples():
    """What one step allocates at its peak, on a synthetic version: counted, not timed. The least of three looks counts:
    threads that earlier tests left in this process allocate too."""

    def peak(n, step):
        tracemalloc.start()
        made = loader.plan({"web": loader.synthetic(n)}, seed=1, global_batch=1024)
        made.slots(step)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    cases = [(n, step) for n in (10**9, 10**11) for step in (0, 10**7)]
    peaks = {case: min(peak(*case) for _ in range(3)) for case in cases}
    assert max(peaks.values()) < 2**20
    assert max(peaks.values()) < 1.5 * min(peaks.values())


@pytest.mark.parametrize("step", [0, 10**7])
def test_planning_touches_no_more_than_the_batch(step):
    plan = loader.plan({"web": loader.synthetic(10**9)}, seed=1, global_batch=64)
    slots = plan.slots(step)
    assert {len(getattr(slots, name)) for name in ("source", "position", "epoch", "ordinal", "valid")} == {64}
    assert np.unique(slots.ordinal).size == 64
