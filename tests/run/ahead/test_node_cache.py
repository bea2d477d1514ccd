"""A Loader with a node cache: the same batches, and an origin that is asked once."""

import logging
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import loader
from loader.cache.fixed_share import page_rank
from loader.errors import Corrupt, InvalidRuntime
from loader.run.ahead.read_choice import working_set_bytes
from loader.storage.cloud.store import RemoteStore
from tests.refusals import refusal
from tests.servers.patience import PATIENCE_S, until

PAGE = 4096


@pytest.fixture
def cache(tmp_path):
    return loader.NodeCache(path=tmp_path / "cache", limit_bytes=2**22, page_bytes=PAGE)


JOB = """
import sys
import time
import loader

plan = loader.open_plan(loader.Root(sys.argv[1]), sys.argv[2])
with loader.Loader(plan, 0, 1, steps=int(sys.argv[4]), framework="numpy", cache=sys.argv[3]) as batches:
    digests = [batch.digest for batch in batches]
    print(int(batches.metrics()["cache_misses_total"]), int(batches.metrics()["cache_hits_total"] > 0), *digests)
"""


@pytest.fixture
def wait_pages(tmp_path):
    """wait_pages(n, folder) -> at least n page files, once they are there: they are read ahead, in threads."""

    def wait(n, folder=tmp_path / "cache"):
        pages = folder / "pages"
        until(lambda: sum(path.is_file() for path in pages.rglob("*")) >= n)
        return [path for path in pages.rglob("*") if path.is_file()]

    return wait


def test_epoch_later_nobody_asks_the_origin(s3, samples, properties, tmp_path, wait_pages, monkeypatch):
    """Nor does the next job of the node ask it for a page."""
    folder = tmp_path / "cache"
    with loader.Root("s3://bucket/epochs", options=s3) as root:
        samples.write(root, "photos", range(40), part_samples=9)
        plan = loader.plan({"p": root.open("photos@1").select("x.npy", "txt")}, seed=4, global_batch=8)
        wanted = properties.reference_digests(loader.open_plan(root, plan.save(root)), 15)
        sent = []
        get_range = RemoteStore.get_range

        def record_range(self, key, *where):
            sent.append(key)
            return get_range(self, key, *where)

        monkeypatch.setattr(RemoteStore, "get_range", record_range)
        with loader.Loader(plan, 0, 1, workers=0, steps=15, framework="numpy", cache=folder) as batches:
            batches._assembler._reads._ahead._waits = False  # as after the second batch
            first = next(batches)
            wait_pages(10)  # five shards and their indexes, of one page each
            asked = sum(key.endswith(".tar") for key in sent)
            got = {first.step: first.digest} | {batch.step: batch.digest for batch in batches}
            counts = batches.metrics()
        assert got == wanted
        assert sum(key.endswith(".tar") for key in sent) == asked
        assert counts["cache_hits_total"] > 0
        assert counts["cache_failed_total"] == counts["cache_corrupt_total"] == 0
        command = [sys.executable, "-c", JOB, root.url, plan.hash, str(folder), "15"]
        given = {
            "AWS_ACCESS_KEY_ID": s3["key"],
            "AWS_SECRET_ACCESS_KEY": s3["secret"],
            "AWS_ENDPOINT_URL": s3["endpoint_url"],
        }
        done = subprocess.run(
            command, env={**os.environ, **given}, capture_output=True, text=True, timeout=PATIENCE_S
        )
    assert done.returncode == 0, done.stderr
    assert [int(word) for word in done.stdout.split()] == [0, 1, *wanted.values()]


@pytest.mark.parametrize("workers", [0, 2])
def test_same_batches(versions, samples, properties, cache, workers):
    """Two ranks, three sources, a cold cache and then a warm one."""
    plan = loader.plan(dict(versions), seed=7, global_batch=13)
    for _ in range(2):
        properties.delivers_the_plan(
            plan,
            lambda _, key: samples.sample(key.partition("/")[0], samples.number(key)),
            world_size=2,
            workers=workers,
            cache=cache,
        )


def shard_keys(root):
    return [info.key for info in root.store.list("data/") if info.key.endswith(".tar")]


def test_bit_flipped_after_the_first_use(memory_root, samples, tmp_path, wait_pages):
    """The page was found right once and is not checked again; the field's own checksum finds it."""
    samples.write(memory_root, "photos", range(8))
    plan = loader.plan({"p": memory_root.open("photos@latest").select("x.npy")}, seed=1, global_batch=8)
    cache = loader.NodeCache(path=tmp_path / "cache", limit_bytes=2**22, page_bytes=2**16)
    with loader.Loader(plan, 0, 1, workers=0, framework="numpy", cache=cache) as batches:
        batches._assembler._reads._ahead._waits = False  # as after the second batch
        next(batches)
        damaged = max(wait_pages(2), key=lambda path: path.stat().st_size)  # the other is of the index
        before = batches.batch_at(1)
        status = damaged.stat()
        with open(damaged, "r+b") as file:
            data = bytes(byte ^ 1 for byte in file.read())
            file.seek(0)
            file.write(data)
        os.utime(damaged, ns=(status.st_atime_ns, status.st_mtime_ns))
        after = batches.batch_at(1)
        assert np.array_equal(after["x.npy"], before["x.npy"])
        refetched = batches.metrics()["refetched_total"]
        assert refetched >= 1
        assert batches.batch_at(1).digest == before.digest
        assert batches.metrics()["refetched_total"] == refetched  # the damaged page is gone


def test_shard_that_is_corrupt_at_the_origin_is_an_error(memory_root, samples, watch_store, cache):
    samples.write(memory_root, "photos", range(8))
    store = watch_store(memory_root)
    plan = loader.plan({"p": memory_root.open("photos@latest").select("x.npy")}, seed=1, global_batch=8)
    shards = shard_keys(memory_root)
    store.change = lambda key, offset, data: bytes(b ^ 1 for b in data) if key in shards else data
    with (
        loader.Loader(plan, 0, 1, workers=0, framework="numpy", cache=cache) as batches,
        refusal(Corrupt, what="x.npy", within="field 'x.npy'") as corrupt,
    ):
        next(batches)
    assert str(corrupt.value.given).startswith("CRC-32C ")
    store.change = lambda key, offset, data: data
    with loader.Loader(plan, 0, 1, workers=0, framework="numpy", cache=cache) as batches:
        assert len(next(batches)["x.npy"]) == 8  # the pages of wrong bytes are gone, or found out


def test_local_root_needs_no_cache(samples, tmp_path, cache):
    root = loader.Root(str(tmp_path / "root"))
    version = samples.write(root, "photos", range(8))
    plan = loader.plan({"p": version.select("cls")}, seed=1, global_batch=4)
    with loader.Loader(plan, 0, 1, cache=cache) as batches:
        next(batches)
        assert batches.metrics()["cache_misses_total"] == 0
    assert not (tmp_path / "cache").exists()


def test_what_a_cache_may_be(versions, tmp_path):
    plan = loader.plan({"p": versions["photos"]}, seed=1, global_batch=4)
    (tmp_path / "mine.txt").write_text("not a cache")
    with refusal(InvalidRuntime, what="cache", where=tmp_path, given="mine.txt"):
        loader.Loader(plan, 0, 1, cache=tmp_path)
    with refusal(InvalidRuntime, what="cache", given=7.5):
        loader.Loader(plan, 0, 1, cache=7.5)
    with refusal(InvalidRuntime, what="cache path", given="s3://bucket/cache"):
        loader.Loader(plan, 0, 1, cache="s3://bucket/cache")


def test_it_travels_to_worker_processes(versions, cache, tmp_path):
    """As its description: every process opens its own."""
    given = pickle.loads(pickle.dumps(cache))  # noqa: S301 - our own
    assert given == cache
    dataset = loader.torch_dataset(
        loader.plan({"p": versions["photos"].select("cls")}, seed=1, global_batch=4),
        0,
        1,
        cache=cache,
        steps=3,
    )
    assert [batch.step for batch in dataset] == [0, 1, 2]
    assert (tmp_path / "cache" / "pages").is_dir()


def test_first_batch_reads_its_samples_and_what_does_not_fit_is_kept_in_part(
    memory_root, watch_store, tmp_path, wait_pages, monkeypatch
):
    """Small samples out of large shards: the first batch reads just them, the later ones bring a share of the pages."""
    for module in ("read_choice", "remote_reads"):  # less than what does not fit
        monkeypatch.setattr(f"loader.run.ahead.{module}.OVERFLOW_BYTES", PAGE)
    with memory_root.write("large", part_samples=64) as writer:
        for i in range(64):
            writer.add(f"{i:03d}", {"bin": bytes([i]) * 2000})
    store = watch_store(memory_root)
    view = memory_root.open("large@latest").select("bin")
    plan = loader.plan({"p": view}, seed=1, global_batch=4)
    view.version.address(plan.slots(0).ordinal, ["bin"])  # from here on its index is in memory
    stored = sum(info.nbytes for info in memory_root.store.list("data/") if info.key.endswith(".tar"))
    for some in (
        [view],
        [view, view.where("key < '032'")],
    ):  # of two views of one version, each page is one page
        assert working_set_bytes([plan.sources["p"]] * len(some), some, PAGE) == stored
    pages = -(-stored // (2 * PAGE))
    for limit in (3 * stored // 5, 2 * stored):
        folder = tmp_path / str(limit)
        cache = loader.NodeCache(path=folder, limit_bytes=limit, page_bytes=2 * PAGE)
        with loader.Loader(plan, 0, 1, workers=0, framework="numpy", cache=cache) as batches:
            store.nbytes.clear()
            batches.batch_at(0)
            assert store.nbytes["get_ranges"] == 4 * 2000
            for _ in range(48):  # three epochs; nothing is read ahead before the second batch is asked for
                next(batches)
            if limit > stored:
                wait_pages(pages - 2, folder)  # the ends of the shards hold no sample
            until(lambda reads=batches._assembler._reads: not reads._ahead._busy)
            store.nbytes.clear()
            for _ in range(20 * 16):  # many epochs: small batches are made many at a time
                next(batches)
            share = batches._assembler._reads._cache.share.share
            if limit > stored:
                assert (share, store.nbytes["get_ranges"]) == (1.0, 0)
            else:
                assert 0.4 < share < 0.6
                assert 0 < store.nbytes["get_ranges"] < 20 * 1.4 * (1 - share) * 64 * 2000
        held = [path for path in (folder / "pages").rglob("*") if path.is_file()]
        assert share * pages / 2 < len(held) <= pages


def test_several_nodes_keep_pages_only_where_that_pays(memory_root, tmp_path, monkeypatch, caplog):
    """In a full shuffle each of 64 nodes uses few samples of a page; the nodes are those that the launcher states."""
    with memory_root.write("large", part_samples=64) as writer:
        for i in range(256):
            writer.add(f"{i:03d}", {"bin": bytes([i]) * 40_000})
    plan = loader.plan({"p": memory_root.open("large@latest").select("bin")}, seed=1, global_batch=64)
    cache = loader.NodeCache(path=tmp_path / "cache", limit_bytes=2**22, page_bytes=2**16)
    caplog.set_level(logging.INFO, "loader.run.ahead.remote_reads")
    for nodes, held in ((64, 0), (1, 1)):
        monkeypatch.setenv("SLURM_NNODES", str(nodes))
        caplog.clear()
        with loader.Loader(plan, 0, 64, workers=0, framework="numpy", cache=cache) as batches:
            for _ in range(40):
                next(batches)
        assert ("no page is kept" in caplog.text) == (nodes > 1)
        assert ("on 64 nodes" in caplog.text) == (nodes > 1)
        pages = [path for path in (tmp_path / "cache" / "pages").rglob("*") if path.is_file()]
        assert (len(pages) > 0) == (held > 0)


def test_chunks_are_read_in_pages_and_those_above_the_share_stay_in_memory(
    memory_root, watch_store, tmp_path, monkeypatch
):
    """A folder of half of the data: each epoch reads the other half once, in pages, and none of it gets to the disk."""
    page = 4 * PAGE
    for module in ("read_choice", "remote_reads"):
        monkeypatch.setattr(f"loader.run.ahead.{module}.OVERFLOW_BYTES", 14 * page)
    with memory_root.write("large", part_samples=128) as writer:
        for i in range(512):
            writer.add(f"{i:03d}", {"bin": bytes([i % 251]) * 3000})
    store = watch_store(memory_root)
    view = memory_root.open("large@latest").select("bin")
    plan = loader.plan({"p": loader.source(view, chunk=16, lanes=2)}, seed=1, global_batch=8)
    stored = sum(info.nbytes for info in memory_root.store.list("data/") if info.key.endswith(".tar"))
    epochs, steps = 5, 64
    cache = loader.NodeCache(path=tmp_path / "cache", limit_bytes=stored // 2, page_bytes=page)
    with loader.Loader(plan, 0, 1, workers=0, framework="numpy", cache=cache) as batches:
        for _ in range(2 * steps):
            next(batches)
        pages = sorted(path for path in (tmp_path / "cache" / "pages").rglob("*") if path.is_file())
        store.nbytes.clear()
        ahead_bytes = batches.metrics()["ahead_bytes_total"]
        for _ in range(epochs * steps):
            next(batches)
        assert batches.metrics()["ahead_bytes_total"] > ahead_bytes
        read = store.nbytes["get_ranges"] / (epochs * stored)
        share = batches._assembler._reads._cache.share.share
    assert 0.3 < share < 0.5
    assert all(page_rank(path.name) < share for path in pages)
    assert pages == sorted(path for path in (tmp_path / "cache" / "pages").rglob("*") if path.is_file())
    assert 0.2 < read < 0.7
