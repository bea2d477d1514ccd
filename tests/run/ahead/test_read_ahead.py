"""Remote stores read ahead: the same batches, few requests, bounded bytes, and nothing left behind."""

import gc
import logging
import threading
import time
from collections import Counter
from concurrent.futures import Future

import numpy as np
import pytest

import loader
from loader.cache.cached_store import CachedStore
from loader.cache.memory import MemoryPages
from loader.cache.page_cache import count_nothing
from loader.cache.spec import PageMemory
from loader.errors import ObjectNotFound, Transient
from loader.run.ahead import range_reads, read_ahead
from loader.run.ahead.next_reads import Extents, PagesAhead
from loader.run.ahead.range_reads import APART_STEPS, MISSES_AT_ONCE, AheadReader, Ranges, RangesAhead
from loader.run.ahead.read_ahead import Claim
from loader.storage import ByteRange, open_store
from loader.storage.requests import Traffic, count_requests
from tests.cache.origin import Origin, body, make_origin
from tests.refusals import refusal
from tests.run.range_server import RangeServer
from tests.servers.patience import PATIENCE_S, until

PAGE = 2**16
SAMPLE = 6_000


def write(root, n, part_samples=None):
    with root.write("large", part_samples=part_samples) as writer:
        for i in range(n):
            writer.add(f"{i:05d}", {"bin": i.to_bytes(4, "little") * (SAMPLE // 4)})
    return writer.version


def make_plan(root, global_batch=8, **source):
    view = root.open("large@latest").select("bin")
    return loader.plan({"large": loader.source(view, **source)}, seed=5, global_batch=global_batch)


def numbers(batch):
    return [int.from_bytes(data[:4], "little") for data in batch["bin"]]


def tar_bytes(root):
    return sum(info.nbytes for info in root.store.list("data/") if info.key.endswith(".tar"))


@pytest.fixture
def serve_root():
    """serve_root(root in memory) -> (its objects on a real server, the root there)."""
    open_ = []

    def serve(root):
        objects = {f"r/{info.key}": root.store.get(info.key).data for info in root.store.list("")}
        server = RangeServer(objects)
        there = loader.Root("s3://bucket/r", options={**server.options, "retry_deadline_s": 0})
        open_.append((server, there))
        return server, there

    yield serve
    for server, there in open_:
        there.close()
        there.store.close()
        server.close()
    gc.collect()  # connections of loaders are files, which other tests count


@pytest.mark.parametrize(
    ("budget", "world_size", "workers"),
    [(0, 3, 2), (1, 1, 0), (3 * 4096, 3, 2), (20 * 4096, 1, 0), (2**30, 3, 2)],
)
def test_same_batches_with_every_budget(budget, world_size, workers, versions, samples, properties):
    plan = loader.plan(
        {
            "text": loader.source(versions["text"], chunk=4, lanes=2),
            "photos": versions["photos"].where("i % 3 <> 1"),
        },
        seed=11,
        global_batch=10,
    )
    for page_bytes in (4096, 2**20):
        properties.delivers_the_plan(
            plan,
            lambda source, key: samples.sample(key.partition("/")[0], samples.number(key)),
            world_size=world_size,
            workers=workers,
            steps=20,
            cache=PageMemory(limit_bytes=budget, page_bytes=page_bytes),
        )


@pytest.mark.parametrize("mode", ["pages", "ranges"])
def test_sixteen_requests_are_in_flight(memory_root, serve_root, mode):
    """A server that answers nothing before sixteen requests are there: with fewer, everything would time out."""
    write(memory_root, 400, part_samples=200)
    server, there = serve_root(memory_root)
    arrived, most, lock, gate = [], [], threading.Lock(), threading.Event()

    def hold_read(path, nbytes):
        if not path.endswith(".tar") or (mode == "pages" and nbytes < PAGE // 2):
            return
        with lock:
            arrived.append(path)
            most.append(len(arrived))
            if len(arrived) >= 16:
                gate.set()
        assert gate.wait(PATIENCE_S)
        with lock:
            arrived.pop()

    plan = make_plan(there)
    limit = 2**30 if mode == "pages" else 300_000
    cache = PageMemory(limit_bytes=limit, page_bytes=PAGE)
    with loader.Loader(plan, 0, 1, workers=0, framework="numpy", decode=False, cache=cache) as batches:
        done = batches._assembler._reads.done

        def first_is_read(step):
            server.before = hold_read
            done(step)

        batches._assembler._reads.done = first_is_read
        for _ in range(2):  # nothing is read ahead before the second batch is asked for
            next(batches)
        until(gate.is_set)
    assert max(most) >= 16


@pytest.mark.parametrize(("n", "step"), [(600, 0), (2400, 50), (2400, 10**6)])
def test_start_reads_its_samples_alone(n, step, memory_root, watch_store):
    """Wherever it begins and however large the version is; nothing more is asked for before the first batch."""
    write(memory_root, n, part_samples=300)
    store = watch_store(memory_root)
    plan = make_plan(memory_root)
    cache = PageMemory(limit_bytes=2**30, page_bytes=PAGE)
    with loader.Loader(plan, 0, 1, workers=0, framework="numpy", decode=False, cache=cache) as batches:
        for one in range(5 * n // 8):
            plan.sources["large"].view.version.address(plan.slots(one).ordinal, ["bin"])  # every index
        store.nbytes.clear()
        store.requests.clear()
        seen = {}
        done = batches._assembler._reads.done

        def first_is_read(one):
            seen.setdefault("nbytes", store.nbytes["get_ranges"] + store.nbytes["get_range"])
            seen.setdefault("requests", sum(store.requests.values()))
            done(one)

        batches._assembler._reads.done = first_is_read
        batches.seek(step)
        batch = next(batches)
    assert len(batch["bin"]) == 8
    assert seen["nbytes"] == 8 * SAMPLE
    assert seen["requests"] <= n // 300  # a request per shard


@pytest.mark.parametrize(
    "how",
    [{"workers": 0}, {"executor": "threads", "workers": 4}],
    ids=lambda how: how.get("executor", "caller"),
)
def test_nothing_is_read_before_the_second_batch_is_requested(how, memory_root, serve_root):
    """Thousands of ranks begin at once: a store that throttles them serves everyone's first batch first."""
    write(memory_root, 400, part_samples=200)
    server, there = serve_root(memory_root)
    plan, paths = make_plan(there), []
    server.before = lambda path, nbytes: paths.append((path, nbytes))
    with loader.Loader(plan, 0, 1, framework="numpy", decode=False, **how) as batches:
        assert len(numbers(next(batches))) == 8
        before = [nbytes for path, nbytes in paths if path.endswith(".tar")]
        assert sum(before) < 3 * 8 * SAMPLE  # with the gaps of coalesced ranges
        assert batches.metrics()["batches_total"] == 1
        n_before = len(paths)
        time.sleep(0.5)
        assert len(paths) == n_before
        assert batches.metrics()["ahead_bytes_total"] == 0
        next(batches)
        until(lambda: batches.metrics()["ahead_bytes_total"] > 0)


def test_epoch_costs_each_page_once(memory_root, watch_store):
    """And the next epochs nothing; what the first batches read alone comes on top."""
    write(memory_root, 300, part_samples=120)
    store = watch_store(memory_root)
    stored = tar_bytes(memory_root)
    plan = make_plan(memory_root)
    cache = PageMemory(limit_bytes=2**30, page_bytes=PAGE)
    with loader.Loader(plan, 0, 1, workers=2, framework="numpy", decode=False, cache=cache) as batches:
        got = [number for _ in range(38) for number in numbers(next(batches))]
        assert set(got) == set(range(300))
        reads = batches._assembler._reads
        until(lambda: len(reads._cache) >= reads._ahead._source._n_pages and not reads._cache._coming)
        until(lambda: not reads._ahead._busy)  # a page is there a moment before its bytes are counted
        metrics = batches.metrics()
        assert metrics["ahead_bytes_total"] <= stored
        store.nbytes.clear()
        for _ in range(76):
            next(batches)
        assert sum(store.nbytes.values()) == 0
        assert batches.metrics()["ahead_bytes_total"] == metrics["ahead_bytes_total"]


@pytest.mark.parametrize("limit", [3 * PAGE, 9 * PAGE, 2**30])
@pytest.mark.parametrize("source", [{}, {"chunk": 4, "lanes": 2}])
def test_budget_is_never_exceeded(limit, source, memory_root, monkeypatch):
    """Neither by pages, nor by ranges."""
    write(memory_root, 400, part_samples=150)
    peaks = Counter()
    stopped = threading.Event()

    def watch(kind, verb, memory):
        claim = getattr(kind, verb)

        def check_claim(self, *args, **options):
            found = claim(self, *args, **options)
            taken = memory(self).taken_bytes
            peaks[kind.__name__] = max(peaks[kind.__name__], taken)
            if found is Claim.NO_ROOM or taken > limit:
                stopped.set()
            return found

        monkeypatch.setattr(kind, verb, check_claim)

    watch(PagesAhead, "claim", lambda source: source._memory)
    watch(RangesAhead, "claim", lambda source: source)
    watch(MemoryPages, "read", lambda pages: pages)
    cache = PageMemory(limit_bytes=limit, page_bytes=PAGE)
    plan = make_plan(memory_root, **source)
    with loader.Loader(
        plan, 0, 1, workers=2, steps=120, framework="numpy", decode=False, cache=cache
    ) as batches:
        got = len(numbers(next(batches))) + len(numbers(next(batches)))
        until(lambda: batches.metrics()["ahead_bytes_total"] > 0)
        if limit < 2**30:  # than which the version is smaller
            until(stopped.is_set)  # as far as it goes, however fast batches are asked for
        got += sum(len(numbers(batch)) for batch in batches)
        metrics = batches.metrics()
    assert (got, metrics["refetched_total"]) == (960, 0)
    assert 0 < max(peaks.values()) <= limit


def test_each_range_of_a_unit_is_its_own(memory_root):
    store = memory_root.store
    store.put("object", bytes(range(100)))
    spans = [ByteRange(0, 4), ByteRange(40, 3), ByteRange(90, 2)]
    ahead = RangesAhead(lambda step: {}, {0: store}, 2**20)
    unit = (Ranges(7, 0, "object", spans, sum(span.nbytes for span in spans), Future()),)
    assert ahead.claim(unit) is Claim.GRANTED
    assert ahead.fetch(unit) == 9
    taken = ahead.take(0, "object", spans[::-1])
    assert [bytes(one.data) for one in taken] == [
        bytes(range(n.offset, n.offset + n.nbytes)) for n in spans[::-1]
    ]
    assert ahead.take(0, "object", spans) == [None] * 3


def test_steps_of_cached_pages_are_read_by_one_call(tmp_path, monkeypatch):
    """A call for four steps once 16 steps found all pages, a call per object after a read of the bucket."""
    sizes = {"a": 3 * PAGE, "b": 2 * PAGE + 7, "c": PAGE}
    origin = make_origin(tmp_path / "origin", sizes)
    cache = MemoryPages(PageMemory(limit_bytes=2**24, page_bytes=PAGE), count_nothing)
    cache.keep_share(2**24, origin.sets, by_need=False)
    store = CachedStore(origin, cache, origin.content, fraction=0.0)
    for key, nbytes in sizes.items():
        store.get_ranges(key, [ByteRange(0, nbytes)])
    calls = []
    read_all = MemoryPages.read_all

    def record_call(self, questions):
        calls.append(len(questions))
        return read_all(self, questions)

    monkeypatch.setattr(MemoryPages, "read_all", record_call)
    end = 61

    def step_extents(step):
        near_the_end = PAGE - 70 + step
        extents = Extents(np.array([5 + step, near_the_end]), np.array([40, 9]))
        across = Extents(np.array([near_the_end]), np.array([PAGE - near_the_end + 4]))
        return {"a": extents, "b": across, "c": extents}

    def steps(step):
        return {0: step_extents(step)} if step < end else None

    ahead = RangesAhead(steps, {0: store}, 2**20)

    def read(step):
        units = ahead.units(step)
        if units is None:
            return None
        for unit in units:
            assert ahead.claim(unit) is Claim.GRANTED
        for unit in units:
            ahead.fetch(unit)
        reader = AheadReader(ahead, 0, store)
        for of_step in sorted({ranges.step for unit in units for ranges in unit}):
            for key, spans in step_extents(of_step).items():
                wanted = [*map(ByteRange, spans.offset.tolist(), spans.nbytes.tolist())]
                assert reader.is_read_ahead(key, wanted[0])
                for span, blob in zip(wanted, reader.get_ranges(key, wanted), strict=True):
                    assert blob.data == body(key, sizes[key])[span.offset : span.offset + span.nbytes]
                assert not reader.is_read_ahead(key, wanted[0])
        return len(units)

    origin.asked.clear()
    assert [read(step) for step in range(24)] == [3] * 16 + [0, 0, 0, 1] * 2
    assert calls[48:] == [24] * 2  # questions: 6 of each step
    assert origin.asked == []
    store.get_range("b", 0, 1)  # drops a page, as for wrong bytes
    assert [read(step) for step in range(24, 28)] == [0, 0, 0, 1]
    assert [read(step) for step in range(28, 46)] == [3] * 16 + [0, 0]
    assert {key for key, _, _ in origin.asked} == {"b"}
    assert read(50) == 0  # a seek: the two steps that waited are dropped
    assert read(end) is None
    assert [read(step) for step in (end - 1, end, end + 1)] == [0, 1, None]


@pytest.fixture
def one_step_a_call(monkeypatch):
    monkeypatch.setattr(range_reads, "GROUP_STEPS", 1)


def fill_cache(origin, sizes, steps):
    """Return (a cache with all pages, its store, reads ahead of `steps`, which asked for 16 steps)."""
    cache = MemoryPages(PageMemory(limit_bytes=2**24, page_bytes=PAGE), count_nothing)
    cache.keep_share(2**24, origin.sets, by_need=False)
    store = CachedStore(origin, cache, origin.content, fraction=0.0)
    for key, nbytes in sizes.items():
        store.get_ranges(key, [ByteRange(0, nbytes)])
    ahead = RangesAhead(steps, {0: store}, 2**20)
    for step in range(APART_STEPS):
        ahead.units(step)
    return cache, store, ahead


def test_one_call_reads_a_quarter_of_the_memory_at_most(tmp_path):
    sizes = {"a": PAGE}
    origin = make_origin(tmp_path / "origin", sizes)
    _, store, _ = fill_cache(origin, sizes, lambda step: None)
    step_bytes = 40
    ahead = RangesAhead(
        lambda step: {0: {"a": Extents(np.array([step]), np.array([step_bytes]))}},
        {0: store},
        8 * step_bytes,
    )
    for step in range(APART_STEPS):
        ahead.units(step)
    steps_of_calls = []
    for step in range(APART_STEPS, APART_STEPS + 8):
        steps_of_calls += [[ranges.step for ranges in unit] for unit in ahead.units(step)]
    assert steps_of_calls == [[16, 17], [18, 19], [20, 21], [22, 23]]


@pytest.mark.usefixtures("one_step_a_call")
@pytest.mark.parametrize(("misses", "in_flight"), [(5, 5), (12, MISSES_AT_ONCE)])
def test_missing_pages_of_one_call_are_read_at_once(misses, in_flight):
    """A server that answers nothing before so many requests are there."""
    sizes = {f"{number:02d}": PAGE for number in range(14)}
    server = RangeServer({key: body(key, nbytes) for key, nbytes in sizes.items()})
    origin = Origin(open_store("s3://bucket", {**server.options, "retry_deadline_s": 0}), sizes)
    spans = [ByteRange(7, 40), ByteRange(300, 9)]
    extents = Extents(np.array([7, 300]), np.array([40, 9]))
    cache, store, ahead = fill_cache(origin, sizes, lambda step: {0: dict.fromkeys(sizes, extents)})
    (unit,) = ahead.units(APART_STEPS)
    assert ahead.claim(unit) is Claim.GRANTED
    for key in list(sizes)[:misses]:
        cache.discard(store.page_name(key, 0))
    arrived, most, lock, gate = [], [], threading.Lock(), threading.Event()

    def hold_read(path, nbytes):
        with lock:
            arrived.append(path)
            most.append(len(arrived))
            if len(arrived) == in_flight:
                threading.Timer(0.05, gate.set).start()  # time for one more
        assert gate.wait(PATIENCE_S)
        with lock:
            arrived.remove(path)

    server.before = hold_read
    traffic = Traffic()
    with count_requests(traffic):
        ahead.fetch(unit)
    assert max(most) == in_flight
    assert traffic.requests == len(most) == misses
    reader = AheadReader(ahead, 0, store)
    for key, nbytes in sizes.items():
        assert reader.is_read_ahead(key, spans[0])
        data = [blob.data for blob in reader.get_ranges(key, spans)]
        assert data == [body(key, nbytes)[span.offset : span.offset + span.nbytes] for span in spans]
    assert len(most) == misses  # the batch reads none again
    server.close()


@pytest.mark.usefixtures("one_step_a_call")
def test_missing_pages_of_one_call_that_fail_are_given_back(tmp_path):
    """The others are read, and the error is raised once all reads have ended."""
    sizes = {f"{number}": PAGE for number in range(6)}
    origin = make_origin(tmp_path / "origin", sizes)
    extents = Extents(np.array([7]), np.array([40]))
    cache, store, ahead = fill_cache(origin, sizes, lambda step: {0: dict.fromkeys(sizes, extents)})
    (unit,) = ahead.units(APART_STEPS)
    assert ahead.claim(unit) is Claim.GRANTED
    for key in sizes:
        cache.discard(store.page_name(key, 0))
    for key in ("0", "3"):
        (tmp_path / "origin" / key).unlink()
    with pytest.raises(ObjectNotFound):
        ahead.fetch(unit)
    for key, nbytes in sizes.items():
        expected = None if key in ("0", "3") else body(key, nbytes)[7:47]
        (blob,) = ahead.take(0, key, [ByteRange(7, 40)])
        assert (blob and blob.data) == expected


@pytest.mark.usefixtures("one_step_a_call")
def test_objects_without_pages_are_read_beside_the_one_call(tmp_path):
    """Objects with redacted samples have no pages: each step reads them from the bucket, which switches nothing."""
    sizes = {"a": PAGE, "b": PAGE}
    origin = make_origin(tmp_path / "origin", {**sizes, "redacted": PAGE})
    del origin.sizes["redacted"]
    extents = Extents(np.array([7]), np.array([40]))
    shards = {"a": extents, "redacted": extents, "b": extents}
    _, _, ahead = fill_cache(origin, sizes, lambda step: {0: shards})
    origin.asked.clear()
    for step in range(APART_STEPS, 2 * APART_STEPS):
        units = ahead.units(step)
        assert [[ranges.key for ranges in unit] for unit in units] == [["redacted"], ["a", "b"]]
        for unit in units:
            assert ahead.claim(unit) is Claim.GRANTED
            ahead.fetch(unit)
        for key in shards:
            (blob,) = ahead.take(0, key, [ByteRange(7, 40)])
            assert blob.data == body(key, PAGE)[7:47]
    assert origin.asked == [("redacted", 7, 40)] * APART_STEPS


def test_page_that_fails_is_read_by_the_batch(memory_root, watch_store, monkeypatch):
    """Pages fail, samples do not: the same batches; the failures are counted and reading ahead goes on."""
    monkeypatch.setattr(
        "loader.run.making.prefetch.MAX_STEPS", 1
    )  # batches made together read whole pages themselves
    write(memory_root, 200, part_samples=100)
    store = watch_store(memory_root)
    plan = make_plan(memory_root)
    failed = []

    def change(key, offset, data):
        if key.endswith(".tar") and len(data) == PAGE and len(failed) < 3:
            failed.append(key)
            raise Transient("not now")
        return data

    with loader.Loader(plan, 0, 1, workers=0, framework="numpy", decode=False, cache=0) as batches:
        wanted = [numbers(next(batches)) for _ in range(40)]
    store.change = change
    cache = PageMemory(limit_bytes=2**30, page_bytes=PAGE)
    with loader.Loader(plan, 0, 1, workers=0, framework="numpy", decode=False, cache=cache) as batches:
        assert [numbers(next(batches)) for _ in range(40)] == wanted
        # While batches are taken: after a page that failed, reading ahead goes on with the next of them.
        until(lambda: numbers(next(batches)) and batches.metrics()["ahead_failed_total"] == len(failed) == 3)
        until(lambda: numbers(next(batches)) and batches.metrics()["ahead_bytes_total"] > 0)


def test_store_that_is_gone_is_an_error_of_the_step_that_needs_it(memory_root, watch_store):
    """What was read ahead is still handed out; then the batch's own error is raised, once per try, at its step."""
    write(memory_root, 64)
    store = watch_store(memory_root)
    plan = make_plan(memory_root)

    def raise_transient(key, offset, data):
        raise Transient(f"{key} cannot be reached", what="request", given="cut")

    with loader.Loader(plan, 0, 1, workers=1, framework="numpy", decode=False) as batches:
        batches.seek(5)
        store.change = raise_transient
        for _ in range(2):
            with refusal(Transient, what="request", given="cut"):
                next(batches)
            assert batches.step == 5
        store.change = lambda key, offset, data: data
        assert next(batches).step == 5


def test_flipped_bit_of_a_page_in_memory_is_read_again(memory_root, watch_store):
    write(memory_root, 64)
    store = watch_store(memory_root)
    plan = make_plan(memory_root)
    store.change = lambda key, offset, data: bytes(len(data)) if len(data) > 9 * SAMPLE else data
    with loader.Loader(plan, 0, 1, workers=0, framework="numpy", decode=False) as batches:
        got = [number for _ in range(8) for number in numbers(next(batches))]
        assert sorted(got) == list(range(64))
        until(lambda: len(batches._assembler._reads._cache) > 0 or batches.metrics()["refetched_total"] > 0)
        assert sorted(number for _ in range(8) for number in numbers(next(batches))) == list(range(64))
        assert batches.metrics()["refetched_total"] > 0


@pytest.mark.parametrize("cached", ["memory", "disk"])
def test_corrupt_samples_are_substituted_through_a_cache(
    cached, memory_root, samples, watch_store, properties, tmp_path
):
    version = samples.write(memory_root, "photos", range(30), part_samples=8)
    store = watch_store(memory_root)
    view = memory_root.open("photos@latest").select("cls", "x.npy")
    keys = [samples.key("photos", i) for i in (2, 3, 11, 12, 13, 29)]
    places = [one.fields["x.npy"] for one in version.address(view.ordinals(keys), ["x.npy"])]

    def flip(key, offset, data):
        for at in places:
            if at.path == key and offset <= at.offset < offset + len(data):
                low = at.offset - offset
                data = data[:low] + bytes([data[low] ^ 1]) + data[low + 1 :]
        return data

    store.change = flip
    disk = loader.NodeCache(path=tmp_path / "cache", limit_bytes=2**26)
    for workers in (0, 2):
        properties.substitutes_exactly(
            loader.plan({"photos": view}, seed=7, global_batch=13),
            {("photos", key) for key in keys},
            lambda name, key: samples.sample(name, samples.number(key)),
            world_size=2,
            workers=workers,
            steps=6,
            cut=3,
            cache=disk if cached == "disk" else None,
        )


def test_ranges_of_batches_that_another_process_makes_are_not_read_for_ever(memory_root, watch_store):
    """Every fourth batch, as one of four worker processes has it: in vain is at most what was of use, and 256."""
    write(memory_root, 800)
    store = watch_store(memory_root)
    plan = make_plan(memory_root)
    with loader.Loader(plan, 0, 1, workers=0, framework="numpy", decode=False, cache=2**20) as batches:
        ahead = batches._assembler._reads._ahead
        for step in range(0, 400, 4):
            batches.seek(step)
            assert len(numbers(next(batches))) == 8
            until(lambda: not ahead._planning and not ahead._busy)  # it has read as far as it wants to
        source = ahead._source
        assert source._wasted <= source._used + 256 + 16 * 8
    assert store.nbytes["get_ranges"] <= (100 * 8 + 100 * 8 + 512) * SAMPLE


def test_worker_processes_share_the_budget(memory_root, monkeypatch):
    from torch.utils.data import get_worker_info  # noqa: F401 - the dataset imports torch

    from loader.api import torch_iterable as plan_dataset

    write(memory_root, 64)
    seen = []

    class Watched(plan_dataset.Loader):
        def __init__(self, *args, **options):
            seen.append(options.get("cache"))
            super().__init__(*args, **options)

    monkeypatch.setattr(plan_dataset, "Loader", Watched)
    dataset = loader.torch_dataset(make_plan(memory_root), 0, 1, decode=False, cache=4096 * 4, steps=8)
    monkeypatch.setattr(
        plan_dataset, "get_worker_info", lambda: type("Info", (), {"id": 1, "num_workers": 4})
    )
    assert [batch.step for batch in dataset] == [1, 5]
    assert seen[-1] == PageMemory(limit_bytes=4096)


def test_how_it_reads_is_said(memory_root, caplog):
    write(memory_root, 64)
    plan = make_plan(memory_root)
    caplog.set_level(logging.INFO, "loader.run.ahead.remote_reads")
    for limit, said in ((2**30, "in pages"), (2**10, "by ranges")):
        caplog.clear()
        with loader.Loader(plan, 0, 1, workers=0, framework="numpy", cache=limit):
            assert said in caplog.text


def test_first_batch_waits_for_nothing_that_is_read_ahead(memory_root, serve_root):
    """No page is answered before it is there."""
    write(memory_root, 200, part_samples=100)
    server, there = serve_root(memory_root)
    gate, held = threading.Event(), threading.Semaphore(0)

    def hold_page(path, nbytes):
        if path.endswith(".tar") and nbytes == PAGE:
            held.release()
            assert gate.wait(PATIENCE_S)

    server.before = hold_page
    cache = PageMemory(limit_bytes=2**30, page_bytes=PAGE)
    with loader.Loader(
        make_plan(there), 0, 1, workers=0, framework="numpy", decode=False, cache=cache
    ) as batches:
        batches._assembler._reads._ahead._waits = False  # as after the second batch
        for step in (0, 10**6):
            batches.seek(step)
            assert len(numbers(next(batches))) == 8
            assert batches.metrics()["ahead_failed_total"] == 0  # nor has one been given up
            assert held.acquire(timeout=PATIENCE_S)
        gate.set()


def test_close_while_reads_are_on_their_way(memory_root, serve_root):
    others = set(threading.enumerate())
    write(memory_root, 200, part_samples=100)
    server, there = serve_root(memory_root)
    gate, held = threading.Event(), threading.Semaphore(0)

    def hold_page(path, nbytes):
        if path.endswith(".tar") and nbytes == PAGE:  # no batch's own read
            held.release()
            assert gate.wait(PATIENCE_S)

    server.before = hold_page
    cache = PageMemory(limit_bytes=2**30, page_bytes=PAGE)
    batches = loader.Loader(make_plan(there), 0, 1, workers=0, framework="numpy", decode=False, cache=cache)
    batches._assembler._reads._ahead._waits = False  # as after the second batch
    closing = threading.Thread(target=batches.close)
    next(batches)
    assert held.acquire(timeout=PATIENCE_S)
    closing.start()
    gate.set()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    there.store.close()
    started = set(threading.enumerate()) - others
    left = {thread.name for thread in started if thread.name.startswith("penstock")}
    assert left <= {"penstock-leases"}, "of roots that are open"


def test_order_and_diversity_are_those_of_the_plan(memory_root):
    """Distinct stretches of a twentieth per batch are those that the plan draws: nothing is reordered for reading."""
    write(memory_root, 640, part_samples=200)
    plan = make_plan(memory_root, global_batch=64)
    cache = PageMemory(limit_bytes=2**30, page_bytes=PAGE)
    with loader.Loader(
        plan, 0, 1, workers=2, steps=10, framework="numpy", decode=False, cache=cache
    ) as batches:
        for batch in batches:
            assert [key for _, key in batch.ids] == [key for _, key in plan.batch_ids(batch.step)]
            assert len(np.unique(np.array(numbers(batch)) // 32)) >= 16


def test_loader_is_collected_as_the_planning_thread_begins(memory_root, serve_root, monkeypatch):
    """By the thread that begins: the one that started it waits for it, and holds no lock that a finalizer takes."""
    write(memory_root, 24)
    _, root = serve_root(memory_root)
    dismissed, real = [], read_ahead.ThreadPool

    def check_collection(*args, **options):
        (ahead,) = [one for one in gc.get_objects() if type(one) is read_ahead.ReadAhead and not one._stopped]
        collector = threading.Thread(target=ahead.dismiss, daemon=True)
        collector.start()
        collector.join(PATIENCE_S)
        dismissed.append(not collector.is_alive())
        return real(*args, **options)

    gc.collect()
    monkeypatch.setattr(read_ahead, "ThreadPool", check_collection)
    with loader.Loader(make_plan(root), 0, 1, workers=0, framework="numpy") as batches:
        batches._assembler._reads._ahead._waits = False  # as after the second batch
        next(batches)
    assert dismissed == [True]
