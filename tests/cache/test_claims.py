"""A claim lives no longer than the call that took it, whatever fails; and no byte of the count is lost."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.cache.cached_store import CachedStore
from loader.cache.memory import MemoryPages
from loader.cache.node_cache import OpenCache
from loader.cache.pages import page_name
from loader.cache.room import folder_bytes
from loader.cache.spec import NodeCache, PageMemory
from loader.errors import PenstockError, Transient
from loader.run.ahead.next_reads import ObjectPage, PagesAhead
from loader.run.ahead.read_ahead import Claim
from loader.storage import ByteRange

PAGE = 4096
SIZES = {"data/a.tar": 5 * PAGE + 17, "data/b.tar": 3 * PAGE, "data/c.tar": 40}


class Faults:
    """A store that refuses some of its reads."""

    def __init__(self, origin):
        self._origin, self.refusals = origin, []
        self.url, self.content, self.sets = origin.url, origin.content, origin.sets

    def get_range(self, *args):
        return self._origin.get_range(*args)

    def get_ranges(self, key, spans, **options):
        if self.refusals and self.refusals.pop():
            raise Transient("not now")
        return self._origin.get_ranges(key, spans, **options)


@st.composite
def calls(draw):
    """(reader, verb, key, spans, which of its reads the store refuses, whether the disk refuses to write)"""
    key = draw(st.sampled_from(sorted(SIZES)))
    places = st.tuples(st.integers(0, SIZES[key]), st.integers(0, SIZES[key]))
    spans = [(min(pair), max(pair) - min(pair)) for pair in draw(st.lists(places, min_size=1, max_size=4))]
    verb = draw(st.sampled_from(["read", "ahead", "given back", "corrupt", "epoch"]))
    refusals = draw(st.lists(st.booleans(), max_size=3))
    return draw(st.integers(0, 1)), verb, key, spans, refusals, draw(st.booleans())


def call(verb, store, ahead, cache, key, spans):
    first = ObjectPage(store, key, min(spans[0][0], SIZES[key] - 1) // PAGE)
    if verb == "read":
        store.get_ranges(key, [ByteRange(*span) for span in spans])
    elif verb == "corrupt":
        store.get_range(key, *spans[0])
    elif verb == "epoch":
        cache.begin_epoch()
    elif ahead.claim(first) is Claim.GRANTED:
        ahead.fetch(first) if verb == "ahead" else ahead.give_back(first)


@pytest.mark.parametrize("wait_s", [None, 5.0])
def test_page_that_comes_while_a_reader_looks_is_read(wait_s, tmp_path, make_origin):
    """Its reader has no claim: it was told that the page is coming, and else would read the range from the store."""
    origin = make_origin(SIZES)
    spec = NodeCache(path=tmp_path / "cache", limit_bytes=64 * PAGE, page_bytes=PAGE)
    writer, reader = (OpenCache(spec, lambda what, n: None, origin.sets) for _ in range(2))
    name = page_name(origin.content("data/a.tar").sha256, PAGE, 0)
    grant = writer.read(name, (), claim=PAGE)
    is_taken = reader._claims.is_taken

    def write_then_check(name):
        writer.put(name, grant.nonce, bytes(PAGE))
        return is_taken(name)

    reader._claims.is_taken = write_then_check
    assert reader.read(name, [slice(0, 10)], wait_s=wait_s) == [bytes(10)]


@pytest.mark.parametrize("where", ["folder", "memory"])
@settings(max_examples=40, deadline=None, derandomize=True)
@given(script=st.lists(calls(), min_size=1, max_size=8), limit=st.sampled_from([8, 64]))
def test_no_claim_outlives_the_call_that_took_it(where, script, limit, make_origin, tmp_path_factory):
    folder = tmp_path_factory.mktemp("claims") / "cache"
    readers = []
    for _ in range(2):
        origin = Faults(make_origin(SIZES))
        if where == "folder":
            spec = NodeCache(path=folder, limit_bytes=limit * PAGE, page_bytes=PAGE)
            cache, memory = OpenCache(spec, lambda what, n: None, origin.sets), None
        else:
            cache = memory = MemoryPages(
                PageMemory(limit_bytes=limit * PAGE, page_bytes=PAGE), lambda what, n: None
            )
        store = CachedStore(origin, cache, origin.content, fraction=0.0)
        readers.append((origin, cache, store, PagesAhead(lambda step: {}, {0: store}, PAGE, memory, int)))
    for number, verb, key, spans, refusals, is_full in script:
        origin, cache, store, ahead = readers[number]
        origin.refusals = list(refusals)
        if is_full and where == "folder":
            (folder / "writing").rmdir()
        try:
            call(verb, store, ahead, cache, key, spans)
        except PenstockError:
            assert True in refusals
        (folder / "writing").mkdir(parents=True, exist_ok=True)
        assert not ahead._nonces
        if where == "memory":
            assert not cache._coming
            assert cache.taken_bytes == sum(map(len, cache._pages.values()))
            continue
        cache._paused_until_s = 0.0
        assert not cache._granted
        assert list((folder / "claims").iterdir()) == []
        count, _, _ = struct.unpack("<qqq", (folder / "held").read_bytes())
        assert count == folder_bytes(str(folder))
