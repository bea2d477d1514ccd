"""Requests and retries are counted for whoever asked, in every thread that works for them."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest

from loader.errors import ObjectNotFound, Throttled
from loader.storage import ByteRange, open_store
from loader.storage.requests import Traffic, count_request, count_requests

DATA = bytes(range(256)) * 40


def test_what_the_server_saw_is_what_is_counted(faulty, faulty_store):
    faulty.origin.hold("k", DATA)
    seen = Traffic()
    with count_requests(seen):
        faulty.faults.extend([503, "drop", "short"])
        faulty_store.get_range("k", 10, 1000)
        faulty_store.head("k")
        with pytest.raises(ObjectNotFound):
            faulty_store.get("nope")
    assert (seen.requests, seen.retries) == (6, 3)
    assert seen.requests == len(faulty.requests)
    faulty_store.head("k")
    assert seen.requests == 6, "nobody asked for this one"


def test_ranges_that_the_store_reads_in_its_own_threads_are_counted(faulty, faulty_store):
    faulty.origin.hold("k", DATA)
    seen = Traffic()
    with count_requests(seen):
        faulty.faults.extend([503] * 2)
        faulty_store.get_ranges("k", [ByteRange(i * 900, 9) for i in range(5)], max_gap=0)
    assert (seen.requests, seen.retries) == (7, 2)
    assert seen.requests == len(faulty.requests)


def test_verb_that_gives_up_counts_its_tries(faulty):
    options = {"key": "k", "secret": "ssss", "endpoint": faulty.endpoint, "retry_deadline_s": 0}
    store = open_store("s3://bucket", options)
    faulty.faults.append(503)
    seen = Traffic()
    with count_requests(seen), pytest.raises(Throttled):
        store.get("k")
    assert (seen.requests, seen.retries) == (1, 0)
    store.close()


def test_every_backend_counts_its_reads(store):
    store.put("k", DATA)
    seen = Traffic()
    with count_requests(seen):
        store.get_range("k", 0, 10)
        one = seen.requests
        store.get_ranges("k", [ByteRange(0, 10), ByteRange(20, 10)])
    assert one >= 1
    assert seen.requests > one
    assert seen.retries == 0


def test_each_counts_only_its_own_requests():
    ours, inner = Traffic(), Traffic()
    with count_requests(ours):
        count_request()
        with count_requests(inner):
            count_request(retry=True)
        stranger = threading.Thread(target=count_request)
        stranger.start()
        stranger.join()
        with ThreadPoolExecutor(2) as pool:
            for future in [pool.submit(copy_context().run, count_request) for _ in range(10)]:
                future.result()
    assert (ours.requests, ours.retries) == (11, 0)
    assert (inner.requests, inner.retries) == (1, 1)
