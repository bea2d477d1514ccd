"""What things cost, counted in requests: none grows with the number of samples."""

import numpy as np
import pytest

import loader


def count_requests(root, stores):
    """The same root through a counting store, knowing nothing yet."""
    again = loader.Root(root.url)
    again._use(stores.Counting(again.store))
    return again


def write(root, prefix, n, part_samples=None):
    with root.write("d", part_samples=part_samples) as writer:
        for i in range(n):
            writer.add(f"{prefix}{i}", {"x": b"%d" % i}, metadata={"w": i})
    return writer.version


@pytest.fixture(params=[(10, 5), (3000, 1500)], ids=["10 samples", "3,000 samples"])
def two_parts(request, url):
    root = loader.Root(url)
    write(root, "k", *request.param)
    return root, request.param[0]


def test_opening_and_locating_do_not_grow_with_samples(two_parts, stores):
    """1 marker, 1 list, 1 guess and the log from the last hint, 1 lease (and the log again), 1 manifest and 1 shards
    table; 1 index per part that is asked for."""
    root, n = two_parts
    reader = count_requests(root, stores)
    version = reader.open("d")
    calls = dict(reader.store.calls)
    assert calls.pop(("get", "penstock.json")) == 1
    assert calls.pop(("list", "log")) == 1
    assert calls.pop(("get", "starts")) == 1
    assert calls.pop(("put", "leases")) == 1
    assert calls.pop(("get", "data")) == 2
    # Entries 1 and 2, and what is not there after them, twice.
    assert calls == {("get", "log"): 4}
    reader.store.calls.clear()
    assert len(version) == n
    assert reader.store.total == 0
    addresses = version.address(np.array([0, n - 1]), ["x"])
    assert reader.store.calls == {("get_range", "data"): 2}
    reader.store.calls.clear()
    version.address(np.arange(n), ["x"])
    version.keys(np.arange(n))
    assert reader.store.total == 0
    assert len({address.part for address in addresses}) == 2


def publish(root, prefix, n_parts):
    txn = root.begin("d")
    parts = [loader.write_part(root, txn, [(f"{prefix}{i}", {"x": b""}, {"w": i})]) for i in range(n_parts)]
    return txn, parts


@pytest.mark.parametrize("n_parts", [1, 6])
def test_writing_a_part_is_three_puts(root, stores, n_parts):
    writer = count_requests(root, stores)
    txn = writer.begin("d")
    writer.store.calls.clear()
    for i in range(n_parts):
        loader.write_part(writer, txn, [(f"k{i}", {"x": b""})])
    calls = dict(writer.store.calls)
    assert calls.pop(("put", "heartbeats"), 0) <= n_parts
    assert calls == {("put_file", "data"): n_parts, ("put_if_absent", "data"): 2 * n_parts}


@pytest.mark.parametrize("parts_there", [2, 40])
@pytest.mark.parametrize("new", [1, 7])
def test_publishing_costs_what_is_new(url, stores, parts_there, new):
    """Onto any number of parts: one read per new part, five tables, one manifest, a log entry and a listing before it,
    the parent's manifest twice, and one table of hashes of keys."""
    root = loader.Root(url)
    write(root, "old", parts_there, part_samples=1)
    writer = count_requests(root, stores)
    _, parts = publish(writer, "new", new)
    writer.store.calls.clear()
    writer.publish("d", parts)
    calls = dict(writer.store.calls)
    assert (
        calls.pop(("put_if_absent", "data")) == 5 + 1
    )  # shards, two column groups, stats, hashes; the manifest
    assert calls.pop(("put_if_absent", "log")) == 1
    assert calls.pop(("put", "starts")) == 1
    assert calls.pop(("list", "log")) == 1
    # New parts' samples; the parent's manifest for column types and for the check; its hashes. Our manifest is known.
    assert calls.pop(("get", "data")) == new + 2 + 1
    assert calls.pop(("get", "log")) <= 8
    assert calls.pop(("put", "heartbeats"), 0) <= 1
    assert calls == {}


@pytest.mark.parametrize("runs", [1, 5])
def test_keys_are_read_if_their_hashes_existed(url, stores, runs):
    """The tables of hashes, and then those of keys, each once; of new keys the hashes alone."""
    root = loader.Root(url)
    for run in range(runs):
        write(root, f"run{run}-", 2)
    writer = count_requests(root, stores)
    _, parts = publish(writer, "new", 1)
    writer.store.calls.clear()
    writer.publish("d", parts)
    assert writer.store.calls["get", "data"] == 1 + 2 + runs
    root.exclude("d", ["new0"], reason="blurred")
    _, parts = publish(writer, "new", 1)
    writer.store.calls.clear()
    writer.publish("d", parts)
    tables = runs + 1
    # And the parts of the newest version, to see that the old one is excluded: its shards and exclusions.
    assert writer.store.calls["get", "data"] == 1 + 2 + 2 * tables + (tables + 1)


@pytest.mark.parametrize("runs", [1, 5])
def test_version_of_many_runs_opens_with_one_table_each(url, stores, runs):
    root = loader.Root(url)
    for run in range(runs):
        write(root, f"run{run}-", 2)
    reader = count_requests(root, stores)
    version = reader.open("d")
    assert reader.store.calls["get", "data"] == 1 + runs  # the manifest
    reader.store.calls.clear()
    version.parts.locate(np.arange(2 * runs))
    assert not reader.store.calls


def test_large_tables_are_not_read_before_they_are_needed(url, stores, monkeypatch):
    root = loader.Root(url)
    write(root, "k", 2)
    monkeypatch.setattr("loader.dataset.reading.version_shards.PREPARED_BYTES", 100)
    reader = count_requests(root, stores)
    version = reader.open("d")
    assert reader.store.calls["get", "data"] == 1
    version.parts.locate(np.arange(2))
    assert reader.store.calls["get", "data"] == 2


@pytest.mark.parametrize("n", [100, 2000])
def test_add_group_reads_blocks_not_samples(url, stores, n):
    """Per 64 rows one ranged read of the field asked for; per part one index; three uploads per part."""
    root = loader.Root(url)
    write(root, "k", n)
    writer = count_requests(root, stores)
    writer.open("d")
    writer.store.calls.clear()
    writer.add_group("d", "g", {"t.txt": lambda sample: sample["x"].decode()})
    assert writer.store.calls["get_ranges", "data"] == -(-n // 64)
    assert writer.store.calls["get_range", "data"] == 1
    assert writer.store.calls["put_file", "data"] == 1
    assert writer.store.calls["put_if_absent", "data"] == 3  # the index, shards, the manifest


def test_verify_reads_each_shard_once(two_parts, stores):
    from penstock.upkeep.verify.version import verify

    root, n = two_parts
    reader = count_requests(root, stores)
    report = verify(reader, "d", full=True)
    assert (report.problems, report.rows) == ([], n)
    assert reader.store.of("open_stream") == 2
    assert reader.store.of("get_range") == 4  # the indexes, and the hashes of pages in them
    assert reader.store.of("get_ranges") == 0


def test_excluding_reads_the_keys_of_each_run(two_parts, stores):
    root, n = two_parts
    writer = count_requests(root, stores)
    writer.exclude("d", ["k1"], reason="x")
    assert len(writer.open("d")) == n - 1
    # d@1: manifest, shards, keys; the check on it: manifest, shards; d@2: its manifest, twice, shards and exclusions.
    assert writer.store.calls["get", "data"] <= 9
    assert writer.store.calls["put_if_absent", "data"] == 2
