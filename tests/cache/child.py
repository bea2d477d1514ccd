"""A job of its own, as the tests start it: `child.py WHAT {"folder": ..., "objects": ..., "sizes": ..., ...}`."""

import json
import os
import resource
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from origin import Origin, body, keep, put

from loader.cache import pages
from loader.cache.cached_store import CachedStore
from loader.cache.node_cache import OpenCache
from loader.cache.spec import NodeCache
from loader.storage import ByteRange, open_store

what, given = sys.argv[1], json.loads(sys.argv[2])
sizes, page = given["sizes"], given["page_bytes"]
counts = Counter()


def count(name, amount):
    counts[name.removeprefix("cache_")] += amount


def open_cache():
    """(cache, store through it)"""
    limit = given["limit_pages"] * page
    before = (lambda: time.sleep(given["slow_s"])) if "slow_s" in given else (lambda: None)
    origin = Origin(open_store(given["objects"]), sizes, given["log"], before)
    cache = OpenCache(NodeCache(path=given["folder"], limit_bytes=limit, page_bytes=page), count, origin.sets)
    return cache, CachedStore(origin, cache, origin.content)


def read_all(store):
    """Every object in stretches of a third of a page; whether all bytes are right."""
    step = page // 3
    right = True
    for key, nbytes in sizes.items():
        truth = body(key, nbytes)
        for low in range(0, nbytes, step):
            high = min(nbytes, low + step)
            keep(store, key, [(low, high - low)], page)
            right &= store.get_ranges(key, [ByteRange(low, high - low)])[0].data == truth[low:high]
    return right


if what == "read":
    _, store = open_cache()
    print("ready", flush=True)
    sys.stdin.readline()  # all begin together
    print(json.dumps({"right": read_all(store), **counts}), flush=True)
elif what == "small files":
    resource.setrlimit(resource.RLIMIT_FSIZE, (given["most_bytes"], given["most_bytes"]))
    _, store = open_cache()
    right = read_all(store)
    print(json.dumps({"right": right, **counts}), flush=True)
elif what == "stop in mid-write":
    real = os.write

    def half(descriptor, data):
        if len(data) < page:
            return real(descriptor, data)
        real(descriptor, data[: page // 2])
        print("half", flush=True)
        sys.stdin.readline()  # for ever
        raise AssertionError

    _, store = open_cache()
    os.write = half
    read_all(store)
elif what == "write for ever":
    cache, _ = open_cache()
    print("ready", flush=True)
    number = 0
    while True:
        data = body(str(number % 50), page)
        put(cache, pages.page_name("0" * 64, page, number % 50), data)
        number += 1
