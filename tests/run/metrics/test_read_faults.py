"""Wrong reads: which bytes, from where, in whatever process they were read."""

import os

import pytest

import loader
from loader.dataset.reading.read_faults import FAULTS, NEWEST, ReadFault, ReadFaults, add_fault
from loader.dataset.shards.shard import crc32c
from tests.servers.patience import until


@pytest.fixture
def new_faults():
    """new_faults() -> the faults since the test began."""
    before = FAULTS.count
    return lambda: FAULTS.after(before)[1]


def addresses(plan, step):
    return [one.address for one in loader.explain(plan, step)]


@pytest.mark.parametrize("workers", [0, 2])
def test_each_wrong_read_of_a_bucket_is_remembered_once(
    memory_root, samples, watch_store, properties, new_faults, workers
):
    samples.write(memory_root, "photos", range(16))
    store = watch_store(memory_root)
    plan = loader.plan({"p": memory_root.open("photos@latest").select("x.npy")}, seed=2, global_batch=8)
    digests, wrong = properties.reference_digests(plan, 4), []

    def flip(key, offset, data):
        if not key.endswith(".tar") or len(wrong) == 3:
            return data
        (place,) = [
            one.fields["x.npy"]
            for step in (0, 1)
            for one in addresses(plan, step)
            if one.fields["x.npy"].path == key and one.fields["x.npy"].offset == offset
        ][:1] or [None]
        if place is None or place in [one for one, _ in wrong]:
            return data
        changed = bytearray(data)
        changed[place.nbytes - 1] ^= 1  # its last value
        wrong.append((place, crc32c(bytes(changed[: place.nbytes]))))
        return bytes(changed)

    store.change = flip
    with loader.Loader(
        plan, 0, 1, workers=workers, executor="threads", framework="numpy", cache=0
    ) as batches:
        assert {batch.step: batch.digest for batch, _ in zip(batches, range(4), strict=False)} == digests
        assert batches.metrics()["refetched_total"] == len(wrong) > 1
    described = {(one.address, one.begin, one.end, one.expected, one.actual) for one in new_faults()}
    assert described == {
        (at.path, at.offset, at.offset + at.nbytes, f"{at.crc32c:08x}", f"{actual:08x}")
        for at, actual in wrong
    }
    assert {(one.kind, one.store) for one in new_faults()} == {("read", store.url)}


def test_wrong_read_of_a_gathered_field_is_remembered_and_counted(
    memory_root, samples, watch_store, new_faults
):
    """From the second batch on, headers are known, and bytes go straight into the batch."""
    samples.write(memory_root, "photos", range(64))
    store = watch_store(memory_root)
    plan = loader.plan({"p": memory_root.open("photos@latest").select("x.npy")}, seed=2, global_batch=8)
    wrong = []

    def flip(key, offset, data):
        if not key.endswith(".tar") or wrong:
            return data
        wrong.append(crc32c(data[:-1] + bytes([data[-1] ^ 1])))
        return data[:-1] + bytes([data[-1] ^ 1])

    with loader.Loader(plan, 0, 1, workers=0, framework="numpy", cache=0) as batches:
        for step in range(8):
            if step == 2:
                store.change = flip
            next(batches)
        assert batches.metrics()["refetched_total"] == len(wrong) == 1
    (fault,) = new_faults()
    assert (fault.actual, fault.expected != fault.actual) == (f"{wrong[0]:08x}", True)


def test_faults_of_worker_processes_reach_the_trainer(tmp_path, samples, new_faults):
    root = loader.Root(str(tmp_path / "root"))
    version = samples.write(root, "photos", range(16), part_samples=8)
    plan = loader.plan({"p": version.select("x.npy")}, seed=6, global_batch=8)
    place = addresses(plan, 0)[5].fields["x.npy"]
    file = os.path.join(root.url, place.path)
    status = os.stat(file)
    with open(file, "r+b") as shard:
        shard.seek(place.offset + place.nbytes - 1)
        (byte,) = shard.read(1)
        shard.seek(place.offset + place.nbytes - 1)
        shard.write(bytes([byte ^ 1]))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    with loader.Loader(plan, 0, 1, workers=1, executor="processes") as batches:
        next(batches)
    assert {(one.address, one.begin) for one in new_faults()} == {(place.path, place.offset)}
    assert {one.expected for one in new_faults()} == {f"{place.crc32c:08x}"}


def test_damaged_page_of_the_node_cache_is_a_fault(memory_root, samples, tmp_path, new_faults):
    samples.write(memory_root, "photos", range(8))

    def plan():  # of a version whose index is not in memory
        view = memory_root.open("photos@latest").select("x.npy")
        return loader.plan({"p": view}, seed=1, global_batch=8)

    options = {"workers": 0, "framework": "numpy"}
    cache = loader.NodeCache(path=tmp_path / "cache", limit_bytes=2**22, page_bytes=2**16)
    folder = tmp_path / "cache" / "pages"
    with loader.Loader(plan(), 0, 1, cache=cache, **options) as batches:
        digest = next(batches).digest
        next(batches)  # from here on, pages are read ahead
        until(lambda: sum(path.is_file() for path in folder.rglob("*")) == 2)  # of the shard and its index
    pages = [path for path in folder.rglob("*") if path.is_file()]
    for page in pages:
        data = bytearray(page.read_bytes())
        data[-1] ^= 1
        page.write_bytes(data)
    with loader.Loader(plan(), 0, 1, cache=cache, **options) as batches:
        assert batches.batch_at(0).digest == digest
        assert batches.metrics()["cache_corrupt_total"] == len(pages) > 0
    assert {(one.kind, one.address) for one in new_faults()} == {("cache page", page.name) for page in pages}
    assert all(one.expected != one.actual and len(one.actual) == 8 for one in new_faults())


def test_thousand_faults_are_remembered():
    faults, before = ReadFaults(), FAULTS.count
    for number in range(3):
        add_fault("read", "memory://a", "a.tar", (number, 1), 1, None)
    three = FAULTS.after(before)[1]
    assert [(one.begin, one.end, one.expected, one.actual) for one in three] == [
        (number, number + 1, "00000001", "") for number in range(3)
    ]
    for _ in range(400):
        faults.extend(three)
    assert (faults.count, len(faults.after(0)[1]), len(faults.after(1199)[1])) == (1200, NEWEST, 1)
    assert (len(faults.drain()), faults.after(0), faults.count) == (NEWEST, (1200, []), 1200)
    assert {"wanted", "found"} < three[0].to_json().keys()
    assert ReadFault.from_json(three[0].to_json()) == three[0]
