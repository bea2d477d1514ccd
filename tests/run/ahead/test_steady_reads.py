"""Steady reads of a bucket by counts: no Python function for each sample, and samples that are copied once."""

import os
import sys
import threading
from collections import Counter

import pytest

import loader
from loader.cache.cached_ranges import Content
from loader.cache.cached_store import CachedStore
from loader.cache.memory import MemoryPages
from loader.cache.page_cache import Grant
from loader.cache.spec import PageMemory
from tests.run.range_server import RangeServer

BATCH, SAMPLES, ROW_BYTES, PAGE = 64, 1_280, 2_000, 2**18
RANGES = "ranges"
EPOCH, EPOCHS_MAX = SAMPLES // BATCH, 50
PACKAGES = tuple(
    os.path.join(os.path.dirname(loader.__file__), name) for name in ("cache", "dataset", "storage")
)


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    with loader.Root(str(tmp_path_factory.mktemp("steady") / "root")) as root:
        with root.write("large") as writer:
            for i in range(SAMPLES):
                writer.add(f"{i:05d}", {"bin": bytes([i % 251]) * (ROW_BYTES + i % 7)})
        objects = {f"r/{info.key}": root.store.get(info.key).data for info in root.store.list("")}
    server = RangeServer(objects)
    yield server
    server.close()


@pytest.fixture
def calls():
    """Function of the packages that read -> calls, in every thread that starts from now on. RANGES: ranges read."""
    counted, lock = Counter(), threading.Lock()

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGES):
            with lock:
                counted[frame.f_code.co_qualname] += 1
                if frame.f_code is CachedStore.lend_ranges.__code__:
                    counted[RANGES] += len(frame.f_locals["spans"])

    threading.setprofile(note)
    sys.setprofile(note)
    yield counted
    sys.setprofile(None)
    threading.setprofile(None)


def test_steady_reads_call_nothing_for_each_sample(bucket, calls):
    """From the store to the batch, functions are called for a page or a batch."""
    with loader.Root("s3://bucket/r", options=bucket.options) as root:
        plan = loader.plan({"large": root.open("large@latest")}, seed=5, global_batch=BATCH)
        cache = PageMemory(limit_bytes=2**26, page_bytes=PAGE)
        with loader.Loader(plan, 0, 1, workers=1, framework="numpy", decode=False, cache=cache) as batches:
            for _ in range(EPOCHS_MAX):
                calls.clear()
                for _ in range(EPOCH):
                    assert len(next(batches)["bin"]) == BATCH
                seen = calls.copy()
                if not seen["CachedStore._read_alone"] and seen[RANGES] >= SAMPLES:
                    break  # the pages that the first batches did not wait for are there
            else:
                pytest.fail(f"the pages never arrived: {seen}")
    samples = seen.pop(RANGES)  # there are ten pages: a batch alone has 10 calls for each page function
    assert {name: n for name, n in seen.items() if 2 * n >= samples} == {}


def test_memory_pages_lend_their_bytes_uncopied():
    body = bytes(range(256)) * 40
    pages = MemoryPages(PageMemory(limit_bytes=2**20, page_bytes=4096), lambda name, amount: None)
    store = CachedStore(Origin(body), pages, lambda key: Content("ab" * 32, len(body)))
    spans = [(0, 10), (4090, 12), (5000, 0), (4096, 4096), (8192, 2048)]
    wanted = [body[offset : offset + nbytes] for offset, nbytes in spans]
    for number in range(3):
        answer = store.claim("a", number)
        assert isinstance(answer, Grant)
        store.keep("a", number, answer.nonce)
    lent, token = store.lend_ranges("a", spans, None)
    assert [bytes(one) for one in lent] == wanted
    assert token == "ab" * 32
    inside = [one for one, (offset, _) in zip(lent, spans, strict=True) if offset not in (4090, 5000)]
    assert all(isinstance(one, memoryview) and len(one.obj) in (4096, 2048) for one in inside)
    assert [blob.data for blob in store.get_ranges("a", spans)] == wanted
    assert {type(blob.data) for blob in store.get_ranges("a", spans)} == {bytes}


class Origin:
    """An object in memory."""

    url = "memory://one"

    def __init__(self, body):
        self.body = body

    def get_ranges(self, key, spans, *, etag=None, **limits):
        return [loader.storage.Blob(self.body[at : at + nbytes], "one") for at, nbytes in spans]
