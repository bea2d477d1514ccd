"""Stored bytes that are not what was written: one clear error, at its own step, and never a batch."""

import os

import pytest

import loader
from loader.errors import Changed, Corrupt, ObjectNotFound
from tests.refusals import refusal


@pytest.fixture
def local(tmp_path, samples):
    """A version of 40 samples in five parts on a disk, and a plan of five batches over it."""
    root = loader.Root(str(tmp_path / "root"))
    version = samples.write(root, "photos", range(40), part_samples=8)
    return root, loader.plan({"p": version.select("x.npy", "txt")}, seed=6, global_batch=8)


def addresses(plan, step):
    return [one.address for one in loader.explain(plan, step)]


def overwrite(root, path, change):
    """Replaces a file's bytes in place and hides it from whoever looks at names, sizes and times."""
    full = os.path.join(root.url, path)
    status = os.stat(full)
    with open(full, "r+b") as file:
        data = bytearray(file.read())
        changed = change(data)
        file.seek(0)
        file.truncate()
        file.write(changed)
    os.utime(full, ns=(status.st_atime_ns, status.st_mtime_ns))


def flip(place):
    def change(data):
        data[place.offset + place.nbytes // 2] ^= 0x10
        return data

    return change


def full_address(address, field):
    place = address.fields[field]
    return (
        f"{address.version}/{address.part} {place.group}[{place.offset}:{place.offset + place.nbytes}] "
        f"sample {address.key!r} field {field!r} ({place.path})"
    )


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_flipped_byte_is_raised_at_its_step_with_the_full_address(local, workers):
    root, plan = local
    bad = addresses(plan, 3)[5]
    overwrite(root, bad.fields["x.npy"].path, flip(bad.fields["x.npy"]))
    with loader.Loader(plan, 0, 1, workers=workers, on_corrupt="raise") as batches:
        assert [next(batches).step for _ in range(3)] == [0, 1, 2]
        with pytest.raises(Corrupt) as caught:
            next(batches)
        assert full_address(bad, "x.npy") in str(caught.value)
        assert "after reading it twice" in str(caught.value)
        assert "penstock verify photos@1" in str(caught.value)
        batches.seek(4)
        assert next(batches).step == 4
        assert batches.metrics()["refetched_total"] >= 1


def test_only_the_reading_rank_and_only_requested_fields(local):
    root, plan = local
    bad = addresses(plan, 0)[5]
    overwrite(root, bad.fields["x.npy"].path, flip(bad.fields["x.npy"]))
    other = loader.plan({"p": plan.sources["p"].view.version.select("txt")}, seed=6, global_batch=8)
    with loader.Loader(plan, 0, 2) as first, loader.Loader(other, 1, 2) as second:
        assert next(first).step == next(second).step == 0
    with loader.Loader(plan, 1, 2, on_corrupt="raise") as batches, pytest.raises(Corrupt):
        next(batches)


@pytest.mark.parametrize("workers", [0, 2])
def test_truncated_shard_names_the_sample_at_its_end(local, workers):
    """Samples before the end are still read; the first one beyond it is named, not the first of the batch."""
    root, plan = local
    path = addresses(plan, 0)[0].fields["x.npy"].path
    inside = [
        (step, address)
        for step in range(5)
        for address in addresses(plan, step)
        if address.fields["x.npy"].path == path
    ]
    cut = sorted(address.fields["x.npy"].offset for _, address in inside)[4] + 3
    overwrite(root, path, lambda data: data[:cut])
    lost = [
        (step, address)
        for step, address in inside
        if address.fields["txt"].offset + address.fields["txt"].nbytes > cut
        or address.fields["x.npy"].offset + address.fields["x.npy"].nbytes > cut
    ]
    first_step = lost[0][0]
    with loader.Loader(plan, 0, 1, workers=workers, on_corrupt="raise") as batches:
        assert [next(batches).step for _ in range(first_step)] == list(range(first_step))
        with pytest.raises(Corrupt) as caught:
            next(batches)
    named = [address for step, address in lost if step == first_step]
    assert any(repr(address.key) in str(caught.value) for address in named)
    kept = [address for step, address in inside if (step, address) not in lost]
    assert not any(repr(address.key) in str(caught.value) for address in kept)
    assert path in str(caught.value)


def test_shard_that_is_gone(local):
    root, plan = local
    with loader.Loader(plan, 0, 1, workers=0) as batches:
        next(batches)
        victim = addresses(plan, 1)[0]
        os.unlink(os.path.join(root.url, victim.fields["txt"].path))
        with pytest.raises(ObjectNotFound) as caught:
            next(batches)
    assert full_address(victim, "x.npy") in str(caught.value)
    assert "restore it from a mirror" in str(caught.value)


def test_shard_that_is_replaced_during_the_run(local):
    """Even by the same bytes: somebody writes where nobody may."""
    root, plan = local
    path = addresses(plan, 0)[0].fields["txt"].path
    with loader.Loader(plan, 0, 1, workers=0) as batches:
        next(batches)
        root.store.put(path, root.store.get(path).data)
        batches.seek(0)
        with refusal(Changed, what="etag", where=f"{root.url}/{path}"):
            next(batches)
    with loader.Loader(plan, 0, 1, workers=0, steps=5) as batches:
        assert len(list(batches)) == 5


class Once:
    """Flips one byte of the first answer about `path`."""

    def __init__(self, path):
        self.path, self.done = path, False

    def __call__(self, key, offset, data):
        if self.done or key != self.path or not data:
            return data
        self.done = True
        return bytes([data[0] ^ 1]) + data[1:]


def test_flip_on_the_way_is_cured_by_a_second_read(memory_root, samples, watch_store, properties):
    samples.write(memory_root, "photos", range(16))
    store = watch_store(memory_root)
    version = memory_root.open("photos@latest")
    plan = loader.plan({"p": version.select("x.npy")}, seed=2, global_batch=8)
    wanted = properties.reference_digests(plan, 2)
    store.change = Once(addresses(plan, 0)[0].fields["x.npy"].path)
    with loader.Loader(plan, 0, 1, workers=2, framework="numpy", cache=0) as batches:
        got = [next(batches) for _ in range(2)]
        assert batches.metrics()["refetched_total"] == 1
    assert store.change.done
    assert {batch.step: batch.digest for batch in got} == wanted
    for step, batch in enumerate(got):
        properties.check_step(
            plan, step, [batch], lambda _, key: samples.sample("photos", samples.number(key))
        )


def test_replacement_between_the_two_reads_is_refused(memory_root, samples, watch_store):
    """The second read is pinned to the object of the first."""
    samples.write(memory_root, "photos", range(8))
    store = watch_store(memory_root)
    version = memory_root.open("photos@latest")
    plan = loader.plan({"p": version.select("x.npy")}, seed=2, global_batch=8)
    path = addresses(plan, 0)[0].fields["x.npy"].path

    class Replace(Once):
        def __call__(self, key, offset, data):
            if key == self.path and not self.done:
                store.inner.put(key, store.inner.get(key).data)
            return super().__call__(key, offset, data)

    store.change = Replace(path)
    with loader.Loader(plan, 0, 1, workers=0, cache=0) as batches, pytest.raises(Changed):
        next(batches)


def test_damaged_index_is_named(local):
    root, plan = local
    shard = plan.sources["p"].view.version.parts.shard("media", 0)
    overwrite(root, shard["index_path"], lambda data: data[:200] + b"\0\0\0\0" + data[204:])
    fresh = root.open(plan.sources["p"].view.version.id)
    again = loader.plan({"p": fresh.select("x.npy")}, seed=6, global_batch=8)
    with loader.Loader(again, 0, 1, workers=2, steps=5) as batches, pytest.raises(Corrupt) as caught:
        list(batches)
    assert shard["index_path"] in str(caught.value)
