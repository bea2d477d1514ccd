"""Origins that are counted, caches over them, and processes that share them."""

import importlib.util
import itertools
import json
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from loader.cache.cached_store import CachedStore
from loader.cache.node_cache import OpenCache
from loader.cache.spec import NodeCache
from loader.storage import ByteRange, open_store

HERE = Path(__file__).parent
PAGE = 4096
_numbers = itertools.count()

_spec = importlib.util.spec_from_file_location("penstock_cache_tests_origin", HERE / "origin.py")
_origin = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_origin)


@pytest.fixture(scope="session")
def body():
    """(key, bytes) -> what the object holds."""
    return _origin.body


@pytest.fixture(scope="session")
def put():
    """(cache, name, data) -> whether the cache took the page."""
    return _origin.put


@pytest.fixture(scope="session")
def make_origin():
    """sizes -> a counted origin in memory."""

    def make(sizes, **options):
        store = open_store(f"memory://cache-{next(_numbers)}")
        for key, nbytes in sizes.items():
            store.put(key, _origin.body(key, nbytes))
        return _origin.Origin(store, sizes, **options)

    return make


class Reader:
    """A store through a cache of its own handle, as one loader has it, with its counters. whole_pages: every page is
    fetched before it is read, as one is that is read ahead."""

    def __init__(self, origin, path, limit_pages=64, page_bytes=PAGE, whole_pages=True):
        self.counts = Counter()
        spec = NodeCache(path=path, limit_bytes=limit_pages * page_bytes, page_bytes=page_bytes)
        self.cache = OpenCache(spec, self._count, origin.sets)
        self.store = CachedStore(origin, self.cache, origin.content)
        self.whole_pages, self.page_bytes, self.origin = whole_pages, page_bytes, origin

    def _count(self, name, amount):
        self.counts[name.removeprefix("cache_")] += amount

    def keep(self, key, *spans):
        """Fetch the pages of these spans."""
        _origin.keep(self.store, key, spans, self.page_bytes)

    def get(self, key, *spans):
        if self.whole_pages and key in self.origin.sizes:
            self.keep(key, *spans)
        return [blob.data for blob in self.store.get_ranges(key, [ByteRange(*span) for span in spans])]


@pytest.fixture(scope="session")
def reader():
    """A fresh handle on a cache: what a process that starts has."""
    return Reader


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def page_files(folder):
    """() -> the page files that are there."""
    return lambda: sorted(path for path in (folder / "pages").rglob("*") if path.is_file())


@pytest.fixture
def start(tmp_path, folder):
    """start(what, **arguments) -> a running child.py over objects below tmp_path/objects."""
    running = []

    def begin(what, **arguments):
        given = {"folder": str(folder), "objects": str(tmp_path / "objects"), "log": str(tmp_path / "log")}
        command = [sys.executable, str(HERE / "child.py"), what, json.dumps({**given, **arguments})]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        running.append(subprocess.Popen(command, **pipes))
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.wait()
        process.stdout.close()
        with suppress(BrokenPipeError):  # what a child that died did not take
            process.stdin.close()


@pytest.fixture
def on_disk(tmp_path, start):
    """on_disk(sizes) -> an origin on a disk, for the children of `start` too."""

    def make(sizes):
        store = open_store(str(tmp_path / "objects"))
        for key, nbytes in sizes.items():
            store.put(key, _origin.body(key, nbytes))
        return _origin.Origin(store, sizes)

    return make
