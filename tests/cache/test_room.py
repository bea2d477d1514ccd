"""A count of a folder's files beside the claims, pages and deletions of others."""

import os
import threading
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from loader.cache import room as room_module
from loader.cache.node_cache import SLACK_PAGES, OpenCache
from loader.cache.object_sets import ObjectSet
from loader.cache.page_cache import Grant
from loader.cache.pages import HEADER_BYTES, page_name
from loader.cache.room import folder_bytes
from loader.cache.spec import NodeCache

PAGE = 4096
FILE = PAGE + HEADER_BYTES
SHA = "5" * 64
PAGES = 12


def name(number):
    return page_name(SHA, PAGE, number)


def open_cache(folder, pages):
    """Return a cache with room for so many pages, of an object that it reads."""
    spec = NodeCache(path=folder, limit_bytes=(pages + SLACK_PAGES) * FILE, page_bytes=PAGE)
    return OpenCache(spec, lambda what, amount: None, lambda: [ObjectSet.of([(SHA, pages * PAGE)])])


class Reader:
    """A reader whose claims stay open until `publish` or `release`."""

    def __init__(self, folder):
        self.cache = open_cache(folder, 1000)
        self.claims = {}  # number -> nonce

    def act(self, action, number):
        if action == "claim" and number not in self.claims:
            answer = self.cache.read(name(number), (), claim=PAGE)
            if isinstance(answer, Grant):
                self.claims[number] = answer.nonce
        elif action == "publish" and number in self.claims:
            self.cache.put(name(number), self.claims.pop(number), bytes(PAGE))
        elif action == "release" and number in self.claims:
            self.cache.release(name(number), self.claims.pop(number))
        elif action == "discard":
            self.cache.discard(name(number))

    def close(self):
        for number, nonce in self.claims.items():
            self.cache.release(name(number), nonce)
        self.cache.close()


ACTIONS = st.tuples(
    st.sampled_from(["claim", "claim", "publish", "release", "discard"]), st.integers(0, PAGES - 1)
)


@settings(max_examples=60, deadline=None)
@given(
    before=st.lists(ACTIONS, max_size=12), meanwhile=st.lists(st.lists(ACTIONS, max_size=3), max_size=PAGES)
)
def test_count_never_misses_what_happens_meanwhile(tmp_path_factory, before, meanwhile):
    """Else the folder would pass its limit."""
    folder = tmp_path_factory.mktemp("cache")
    reader = Reader(folder)
    counter = open_cache(folder, 1000)
    steps = iter(meanwhile)
    scan = room_module.scan

    def scan_beside_the_reader(place):
        for action in next(steps, ()):
            reader.act(*action)
        for page in scan(place):
            yield page
            for action in next(steps, ()):
                reader.act(*action)
        for rest in steps:
            for action in rest:
                reader.act(*action)

    for action in before:
        reader.act(*action)
    counter._room.recount()
    room_module.scan = scan_beside_the_reader
    try:
        held_bytes = counter._room.held_bytes()
    finally:
        room_module.scan = scan
    assert held_bytes >= folder_bytes(str(folder)) + len(reader.claims) * FILE
    counter.close()
    reader.close()


def test_claims_do_not_wait_for_a_count(tmp_path, monkeypatch):
    """A million files take seconds."""
    monkeypatch.setattr(room_module, "COUNT_PAUSE", 0)
    cache = open_cache(tmp_path / "cache", PAGES)
    for number in range(PAGES // 2):
        grant = cache.read(name(number), (), claim=PAGE)
        cache.put(name(number), grant.nonce, bytes(PAGE))
    is_counting = threading.Event()
    may_end = threading.Event()
    scan = room_module.scan

    def slow_scan(folder):
        monkeypatch.setattr(room_module, "scan", scan)  # others count at once
        is_counting.set()
        assert may_end.wait(60)
        yield from scan(folder)

    monkeypatch.setattr(room_module, "scan", slow_scan)
    monkeypatch.setattr(room_module, "COUNT_S", 0.0)  # the figure is too old
    thread = threading.Thread(target=cache._room.held_bytes)
    thread.start()
    try:
        assert is_counting.wait(60)
        room = cache._room
        grant = cache.read(name(PAGES // 2), (), claim=PAGE)
        assert isinstance(grant, Grant)
        # Which page could make room, and whether one could, is unknown until the count ends.
        room.outdate()
        assert room.reserve(1.0, FILE, PAGES // 2 * FILE) is None
        others = open_cache(tmp_path / "cache", PAGES)._room
        assert others.reserve(1.0, FILE, 2 * PAGES * FILE) is not None
    finally:
        may_end.set()
        thread.join(60)
    cache.put(name(PAGES // 2), grant.nonce, bytes(PAGE))
    cache.close()


def test_loader_killed_during_a_count_is_counted_again(tmp_path, monkeypatch):
    cache = open_cache(tmp_path / "cache", PAGES)
    room = cache._room
    scan = room_module.scan

    def scan_beside_the_end(folder):
        monkeypatch.setattr(room_module, "scan", scan)
        room.recount()
        return scan(folder)

    monkeypatch.setattr(room_module, "COUNT_S", 0.0)
    monkeypatch.setattr(room_module, "scan", scan_beside_the_end)
    room.held_bytes()
    record = room_module._RECORD.unpack((tmp_path / "cache" / "held").read_bytes())
    assert record[1] == 0
    cache.close()


def test_ledger_of_an_earlier_release_is_counted_again(tmp_path):
    cache = open_cache(tmp_path / "cache", PAGES)
    grant = cache.read(name(0), (), claim=PAGE)
    cache.put(name(0), grant.nonce, bytes(PAGE))
    (tmp_path / "cache" / "held").write_bytes(
        (7).to_bytes(8, "little") + time.time_ns().to_bytes(8, "little")
    )
    assert cache._room.held_bytes() == FILE
    assert os.path.getsize(tmp_path / "cache" / "held") == 24
    cache.close()


def test_lower_limit_is_kept_after_one_count(tmp_path, monkeypatch):
    """A count scans all pages: a start whose figure is too old has one, not two."""
    cache = open_cache(tmp_path / "cache", PAGES)
    for number in range(PAGES):
        grant = cache.read(name(number), (), claim=PAGE)
        cache.put(name(number), grant.nonce, bytes(PAGE))
    cache.close()
    scans = []
    scan = room_module.scan
    monkeypatch.setattr(room_module, "scan", lambda folder: scans.append(folder) or scan(folder))
    (tmp_path / "cache" / "held").unlink()
    lower = open_cache(tmp_path / "cache", PAGES - 2)
    assert len(scans) == 1
    lower.close()
    monkeypatch.setattr(room_module, "scan", scan)
    assert folder_bytes(str(tmp_path / "cache")) <= (PAGES - 2) * FILE
