"""What is thrown away when the limit is reached, and where a cache may not be."""

import os
import time

import pytest

import loader
from loader.cache.node_cache import DEAD_S, OpenCache
from loader.cache.pages import HEADER_BYTES, page_name
from loader.cache.spec import NodeCache
from loader.errors import InvalidRuntime

PAGE = 4096
SHA = "5" * 64


def name(number):
    return page_name(SHA, PAGE, number)


def numbers(page_files, among=200):
    """Which pages are there."""
    known = {name(number): number for number in range(among)}
    return {known[path.name] for path in page_files()}


def fill(cache, count):
    """Pages 0 to count - 1, used in that order, long ago."""
    for number in range(count):
        cache.write(name(number), bytes(PAGE))
        then = time.time() - 10_000 + number
        os.utime(cache._pages.path(name(number)), (then, then))


def opened(folder, limit_pages, counts=None):
    limit = limit_pages * (PAGE + HEADER_BYTES)
    spec = NodeCache(path=folder, limit_bytes=limit, page_bytes=PAGE)
    counts = {} if counts is None else counts
    return OpenCache(spec, lambda what, n: counts.update({what: counts.get(what, 0) + n}))


def test_limit_is_never_passed(folder, page_files):
    cache = opened(folder, 32)
    for number in range(150):
        cache.write(name(number), bytes(PAGE))
        assert len(page_files()) <= 32
    assert len(page_files()) >= 20
    assert 149 in numbers(page_files)


def test_what_is_being_written_counts(folder, page_files):
    cache = opened(folder, 32)
    (folder / "writing" / "somebody").write_bytes(bytes(20 * PAGE))
    for number in range(60):
        cache.write(name(number), bytes(PAGE))
        assert len(page_files()) <= 12 + 4  # four may be written before the folder is looked at again


def test_codes_of_searches_count_and_go_before_needed_pages(folder, page_files):
    cache = opened(folder, 32)
    codes = folder / "search"
    codes.mkdir()
    for number, suffix in enumerate((".faiss", ".json", ".faiss.0123abcd")):
        (codes / f"segment{suffix}").write_bytes(bytes(8 * PAGE))
        then = time.time() - 20_000 + number
        os.utime(codes / f"segment{suffix}", (then, time.time()))
    fill(cache, 10)
    assert sum(path.stat().st_size for path in codes.iterdir()) == 24 * PAGE
    # A page past the limit: the codes were used the longest ago, and one of them is being written.
    for number in range(10, 30):
        cache.write(name(number), bytes(PAGE))
    assert [path.name for path in codes.iterdir()] == ["segment.faiss.0123abcd"]
    assert len(page_files()) >= 20
    then = time.time() - 20_000
    os.utime(codes / "segment.faiss.0123abcd", (then, then))
    for number in range(30, 60):
        cache.write(name(number), bytes(PAGE))
    assert list(codes.iterdir()) == []


def test_several_jobs_share_the_limit(folder, page_files):
    caches = [opened(folder, 64) for _ in range(4)]
    for cache in caches:
        cache._next_beat_s = 0.0
        cache.beat(tuple)
    for number in range(160):
        caches[number % 4].write(name(number), bytes(PAGE))
        assert len(page_files()) <= 64


def test_smaller_limit_of_the_next_job(folder, page_files):
    first = opened(folder, 100)
    fill(first, 80)
    first.close()
    counts = {}
    opened(folder, 16, counts)
    left = numbers(page_files)
    assert 8 <= len(left) <= 16
    assert left == set(range(80 - len(left), 80))  # those used last
    assert counts["cache_evicted"] == 80 - len(left)


def test_read_is_a_use(folder, page_files):
    first = opened(folder, 100)
    fill(first, 40)
    for number in (3, 17):
        assert first.read(name(number), [slice(0, 1)]) == [b"\0"]
    opened(folder, 16)
    assert {3, 17} < numbers(page_files)


def test_uses_are_noted_whatever_the_mount_options(folder, page_files, monkeypatch):
    """A time of use in the future is one that no mount option touches: a read that sets it back is ours."""
    monkeypatch.setattr("loader.cache.pages.TOUCH_S", -10_000)
    cache = opened(folder, 100)
    fill(cache, 1)
    (page,) = page_files()
    later, written = time.time() + 5_000, page.stat().st_mtime_ns
    os.utime(page, ns=(int(later * 10**9), written))
    cache.read(name(0), [slice(0, 1)])
    assert page.stat().st_atime < later - 1_000
    assert page.stat().st_mtime_ns == written


def test_what_a_running_job_needs_soon_stays(folder, page_files):
    """Longer than what was used last; and of that, what is needed last goes first."""
    first = opened(folder, 100)
    fill(first, 60)
    first.beat(tuple)  # not yet due: what it says first is what it wrote when it was opened
    first._next_beat_s, first._pressed = 0.0, True
    first.beat(lambda: (name(number) for number in range(30)))
    opened(folder, 24)
    left = numbers(page_files)
    assert left == set(range(len(left)))
    first.close()
    opened(folder, 8)
    assert not numbers(page_files) & {0, 1, 2}  # it needs nothing any more


@pytest.mark.parametrize("age_s", [DEAD_S + 1, -DEAD_S - 1])
def test_dead_job_needs_nothing(age_s, folder, page_files):
    first = opened(folder, 100)
    fill(first, 60)
    first._next_beat_s, first._pressed = 0.0, True
    first.beat(lambda: (name(number) for number in range(30)))
    (hint,) = (folder / "hints").iterdir()
    then = time.time() - age_s  # in the future if the clock was set back
    os.utime(hint, (then, then))
    opened(folder, 24)
    left = numbers(page_files)
    assert left == set(range(60 - len(left), 60))
    assert not hint.exists()


def test_damaged_hint_is_no_harm(folder, page_files):
    first = opened(folder, 100)
    fill(first, 60)
    (folder / "hints" / "somebody").write_bytes(bytes.fromhex(name(0)) + b"half a name"[:7])
    opened(folder, 24)
    left = numbers(page_files)
    assert 0 in left
    assert left - {0} == set(range(61 - len(left), 60))


def test_hint_is_bounded_and_that_of_a_cache_with_room_is_empty(folder):
    cache = opened(folder, 100)
    (hint,) = (folder / "hints").iterdir()
    cache._next_beat_s = 0.0
    cache.beat(lambda: pytest.fail("nobody needs to know"))
    assert hint.stat().st_size == 0
    cache._next_beat_s, cache._pressed = 0.0, True
    cache.beat(lambda: (name(number) for number in range(10**9)))
    assert hint.stat().st_size == 4096 * 20
    cache.close()
    assert not hint.exists()


def test_without_a_limit_half_of_the_free_disk(folder):
    cache = OpenCache(NodeCache(path=folder, page_bytes=PAGE), lambda what, n: None)
    disk = os.statvfs(folder)
    assert 0.4 < cache.limit_bytes / (disk.f_bavail * disk.f_frsize) < 0.6


def test_never_in_a_root(tmp_path):
    root = loader.Root(str(tmp_path / "root"))
    root.create()
    os.symlink(tmp_path / "root" / "data", tmp_path / "link")
    for place in (tmp_path / "root", tmp_path / "root" / "data" / "x" / "cache", tmp_path / "link" / "cache"):
        with pytest.raises(InvalidRuntime, match="a penstock root"):
            opened(place, 100)
    assert not (tmp_path / "root" / "data").exists()


def test_never_among_other_files(tmp_path):
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "cat.jpg").write_bytes(b"a cat")
    with pytest.raises(InvalidRuntime, match=r"cat\.jpg"):
        opened(tmp_path / "landing", 100)
    (tmp_path / "landing" / "_origins.json").write_bytes(b"{}")
    with pytest.raises(InvalidRuntime, match="a landing place"):
        opened(tmp_path / "landing" / "cache", 100)
    assert sorted(os.listdir(tmp_path / "landing")) == ["_origins.json", "cat.jpg"]
