"""A store through a node cache: the same bytes as without, from few requests, in bounded memory."""

import threading
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loader.cache.cached_store import CachedStore, waiting_for_no_page
from loader.cache.page_cache import Grant
from loader.cache.spec import NodeCache, cache_spec
from loader.errors import Changed, Corrupt, InvalidRuntime
from tests.refusals import refusal
from tests.servers.patience import PATIENCE_S

PAGE = 4096
SIZES = {"data/a.tar": 5 * PAGE + 17, "data/b.tar": 3 * PAGE, "data/c.tar": 40, "log/1.json": 90}


@st.composite
def reads(draw):
    """(key, spans), in turn, by one of two readers."""
    key = draw(st.sampled_from(sorted(SIZES)))
    places = st.tuples(st.integers(0, SIZES[key]), st.integers(0, SIZES[key]))
    spans = [(min(pair), max(pair) - min(pair)) for pair in draw(st.lists(places, max_size=5))]
    return draw(st.integers(0, 1)), key, spans


@settings(max_examples=80, deadline=None, derandomize=True)
@given(script=st.lists(reads(), min_size=1, max_size=8), whole=st.booleans(), limit=st.sampled_from([8, 64]))
@example(  # the second reader's page, beside what the first may write, is more than the limit
    script=[
        (0, "data/a.tar", [(0, 16385)]),
        (0, "data/b.tar", [(0, 4097)]),
        (1, "data/b.tar", [(0, 8193)]),
    ],
    whole=True,
    limit=8,
)
@example(  # a page that was kept gives way to the next one before it is read
    script=[
        (0, "data/b.tar", [(0, 1)]),
        (0, "data/a.tar", [(0, 16385)]),
        (0, "data/b.tar", [(0, 8193)]),
    ],
    whole=True,
    limit=8,
)
def test_same_bytes_as_without_a_cache(script, whole, limit, make_origin, reader, body, tmp_path_factory):
    """Any pattern of access, by two jobs in turn, also while pages are evicted; hits and misses are pages touched."""
    origin = make_origin(SIZES)
    origin.sizes = {key: size for key, size in SIZES.items() if key.startswith("data/")}
    folder = tmp_path_factory.mktemp("any") / "cache"
    readers = [reader(origin, folder, limit_pages=limit, whole_pages=False) for _ in range(2)]
    for who, key, spans in script:
        if whole and key in origin.sizes:
            readers[who].keep(key, *spans)
        before = readers[who].counts.copy()
        truth = body(key, SIZES[key])
        assert readers[who].get(key, *spans) == [truth[low : low + n] for low, n in spans]
        touched = {p for low, n in spans if n for p in range(low // PAGE, (low + n - 1) // PAGE + 1)}
        done = readers[who].counts - before
        assert done["hits"] + done["misses"] == (len(touched) if key in origin.sizes else 0)
        held = sum(path.stat().st_size for path in folder.rglob("*") if path.parent.parent.name == "pages")
        assert held <= limit * PAGE
    assert all(not one.counts["failed"] and not one.counts["corrupt"] for one in readers)


def test_what_was_read_is_not_asked_for_again(make_origin, reader, folder):
    origin = make_origin(SIZES)
    first = reader(origin, folder)
    first.get("data/a.tar", (10, 20), (PAGE + 1, 5), (5 * PAGE, 17))
    assert origin.asked == [("data/a.tar", 0, PAGE), ("data/a.tar", PAGE, PAGE), ("data/a.tar", 5 * PAGE, 17)]
    origin.asked.clear()
    for again in (first, reader(origin, folder)):
        again.get("data/a.tar", (0, 2 * PAGE), (5 * PAGE + 3, 14))
    assert origin.asked == []


def test_cost_is_that_of_the_pages_touched(make_origin, reader, folder, monkeypatch):
    """Not that of the pages that the cache holds, or of the object."""
    import loader.cache.pages as pages

    sizes = {"data/large.tar": 200 * PAGE}
    origin = make_origin(sizes)
    one = reader(origin, folder, limit_pages=1000)
    one.get("data/large.tar", (0, 200 * PAGE))
    opened, real = [], pages.os.open
    monkeypatch.setattr(pages.os, "open", lambda *args: opened.append(args) or real(*args))
    one.get("data/large.tar", (7, 1), (9, 4), (100 * PAGE - 1, 2))
    assert len(opened) == 3


def test_only_pages_worth_keeping_are_fetched_whole(make_origin, reader, folder, page_files, body):
    """Where pages will be gone before they are used again, a small read stays small."""
    origin = make_origin(SIZES)
    one = reader(origin, folder, whole_pages=False)
    truth = body("data/a.tar", SIZES["data/a.tar"])
    assert one.get("data/a.tar", (10, 20), (PAGE, PAGE // 2)) == [
        truth[10:30],
        truth[PAGE : PAGE + PAGE // 2],
    ]
    assert origin.asked == [("data/a.tar", PAGE, PAGE), ("data/a.tar", 10, 20)]
    assert len(page_files()) == 1


def test_memory_is_bounded(make_origin, reader, folder):
    """A read that touches every page of a large object holds a few of them, not all."""
    size = 48 * 2**20
    origin = make_origin({"data/large.tar": size})
    content = origin.content("data/large.tar")
    origin.content = lambda key: content
    one = reader(origin, folder, limit_pages=100, page_bytes=2**20)
    spans = [(at, 10) for at in range(0, size, 2**20)]
    for _ in range(2):
        tracemalloc.start()
        one.get("data/large.tar", *spans)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 40 * 2**20
    assert (one.counts["hits"], one.counts["misses"]) == (2 * 48, 48)


def test_first_batch_claims_no_page_and_waits_for_none(make_origin, reader, folder, page_files, monkeypatch):
    """Whatever part of a page it reads, and also if another reader fetches that page."""
    monkeypatch.setattr("loader.cache.node_cache.time.sleep", lambda s: pytest.fail("it waits"))
    origin = make_origin(SIZES)
    one = reader(origin, folder, whole_pages=False)
    eager = CachedStore(origin, one.cache, origin.content, fraction=0.0)
    other = reader(origin, folder)
    assert isinstance(other.store.claim("data/b.tar", 1), Grant)
    with waiting_for_no_page():
        for store in (one.store, eager):
            store.get_ranges("data/b.tar", [(0, 3 * PAGE)])
    assert origin.asked == [("data/b.tar", at, PAGE) for at in (0, PAGE, 2 * PAGE)] * 2
    assert page_files() == []
    assert len(list((folder / "claims").iterdir())) == 1


def test_threads_that_want_one_page_ask_once(make_origin, reader, folder, body):
    arrived = threading.Barrier(8)
    origin = make_origin(SIZES)
    one, truth = reader(origin, folder), body("data/a.tar", SIZES["data/a.tar"])
    wrong = []

    def work(number):
        arrived.wait(PATIENCE_S)
        if one.get("data/a.tar", (number, 3 * PAGE)) != [truth[number : number + 3 * PAGE]]:
            wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not wrong
    assert sorted(origin.asked) == [("data/a.tar", at, PAGE) for at in range(0, 4 * PAGE, PAGE)]


def test_page_that_comes_just_before_the_claim_is_not_fetched_again(make_origin, reader, folder, monkeypatch):
    origin = make_origin(SIZES)
    one, other = reader(origin, folder), reader(origin, folder)
    take = one.cache._claims.take

    def late(name):
        other.get("data/b.tar", (0, 1))
        return take(name)

    monkeypatch.setattr(one.cache._claims, "take", late)
    one.get("data/b.tar", (0, 9))
    assert origin.asked == [("data/b.tar", 0, PAGE)]


def test_one_range_comes_from_the_origin_and_drops_its_pages(make_origin, reader, folder, page_files, body):
    """What the reading layer asks for when a checksum of the version's index is wrong."""
    origin = make_origin(SIZES)
    one = reader(origin, folder)
    etag = one.store.get_ranges("data/a.tar", [(0, 3 * PAGE)])[0].etag
    origin.asked.clear()
    blob = one.store.get_range("data/a.tar", PAGE - 1, 2, etag)
    assert blob == (body("data/a.tar", SIZES["data/a.tar"])[PAGE - 1 : PAGE + 1], etag)
    assert origin.asked == [("data/a.tar", PAGE - 1, 2)]
    assert len(page_files()) == 1


def test_replaced_object_is_an_error(make_origin, reader, folder):
    origin = make_origin(SIZES)
    one = reader(origin, folder)
    one.get("data/a.tar", (0, 5))
    origin.inner.put("data/a.tar", b"x" * SIZES["data/a.tar"])
    one.get("data/a.tar", (0, 5))  # what was read is still what the version says
    with pytest.raises(Changed):
        one.get("data/a.tar", (PAGE, 5))
    with pytest.raises(Changed):
        one.store.get_range("data/a.tar", 0, 5)
    with refusal(Changed, what="etag", where=f"{origin.url}/data/a.tar", given="another"):
        one.store.get_ranges("data/a.tar", [(0, 5)], etag="another")


def test_range_behind_the_end(make_origin, reader, folder):
    one = reader(make_origin(SIZES), folder)
    with refusal(Corrupt, what="range", where=f"{one.store.url}/data/c.tar", given=40):
        one.get("data/c.tar", (30, 11))


@pytest.mark.parametrize(
    "wrong",
    [
        {"path": "s3://bucket/cache"},
        {"path": ""},
        {"path": "~/cache"},
        {"path": "/x", "limit_bytes": 2**20},
        {"path": "/x", "limit_bytes": 1e12},
        {"path": "/x", "page_bytes": 1000},
    ],
)
def test_what_no_cache_is(wrong):
    *_, (what, given) = wrong.items()
    what = {"path": "cache path"}.get(what, what)
    with refusal(InvalidRuntime, what=what, given=given):
        NodeCache(**wrong)
    with refusal(InvalidRuntime, what="cache", given=7.5):
        cache_spec(7.5)
