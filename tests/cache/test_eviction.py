"""What a cache keeps when its limit is reached, and where a cache may not be."""

import errno
import json
import logging
import os
import shutil
import time

import pytest

import loader
from loader.cache.fixed_share import page_rank
from loader.cache.node_cache import SLACK_PAGES, OpenCache
from loader.cache.object_sets import EXPIRES_S, ObjectSet
from loader.cache.pages import FORMAT, HEADER_BYTES, former_page_name, make_place, object_prefix, page_name
from loader.cache.running_loaders import DEAD_S
from loader.cache.spec import NodeCache
from loader.errors import InvalidRuntime
from tests.refusals import refusal

PAGE = 4096
FILE = PAGE + HEADER_BYTES
SHA, OTHER = "5" * 64, "6" * 64


@pytest.fixture(autouse=True)
def _count_at_once(monkeypatch):
    monkeypatch.setattr("loader.cache.room.COUNT_PAUSE", 0)


def name(number, sha=SHA):
    return page_name(sha, PAGE, number)


def objects(count, sha=SHA):
    return ObjectSet.of([(sha, count * PAGE)])


def by_rank(count, sha=SHA):
    """Pages 0 to count - 1, those of the lowest rank first."""
    return sorted(range(count), key=lambda number: page_rank(name(number, sha)))


def numbers(page_files, among=400, sha=SHA):
    """Which pages are there."""
    known = {name(number, sha): number for number in range(among)}
    return {known[path.name] for path in page_files() if path.name in known}


def fill(put, cache, count):
    """Pages 0 to count - 1, used in that order, long ago."""
    for number in range(count):
        assert put(cache, name(number), bytes(PAGE))
        then = time.time() - 10_000 + number
        os.utime(cache._pages.path(name(number)), (then, then))


def opened(folder, room_pages, *sets, loaders=1, counts=None):
    """A cache with room for so many pages, if so many loaders run."""
    limit = (room_pages + SLACK_PAGES * loaders) * FILE
    spec = NodeCache(path=folder, limit_bytes=limit, page_bytes=PAGE)
    counts = {} if counts is None else counts
    return OpenCache(spec, lambda what, n: counts.update({what: counts.get(what, 0) + n}), lambda: sets)


def look_again(*caches):
    """As after ten seconds."""
    for cache in caches:
        cache._next_beat_s = 0.0
        cache.beat()


def test_pages_below_the_share_stay_and_nothing_is_written_once_they_are_there(folder, page_files, put):
    """A few more may lie below it than there is room for: the first ones stay."""
    for room in (30, 40, 50):
        shutil.rmtree(folder, ignore_errors=True)
        cache = opened(folder, room, objects(100))
        for number in range(100):
            put(cache, name(number), bytes(PAGE))
            assert len(page_files()) <= room
        below = [number for number in by_rank(100) if page_rank(name(number)) < cache.share.share]
        assert cache.share.share == room / 100
        assert len(page_files()) == min(room, len(below))
        assert numbers(page_files) <= set(below)
        before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
        assert before.keys() > set(page_files())
        for _ in range(3):
            cache.begin_epoch()
            taken = [put(cache, name(number), bytes(PAGE)) for number in range(100)]
            assert not any(taken)
        after = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
        changed = {path for path in after if before.get(path) != after[path]}
        # The sign's time is the begin of the epoch. The count of the files may be renewed.
        assert {path.parent.name for path in changed} <= {"loaders", "cache"}
        assert before.keys() == after.keys()


def test_page_that_was_refused_waits_for_the_next_epoch(folder, put):
    """Otherwise its first samples would be read twice in an epoch."""
    cache, other = (
        opened(folder, 50, objects(100), loaders=2),
        opened(folder, 50, objects(100, OTHER), loaders=2),
    )
    low, middle = by_rank(100)[0], by_rank(100)[40]
    assert put(
        other, name(by_rank(100, OTHER)[0], OTHER), bytes(PAGE)
    )  # 200 pages are read: the share is a fourth
    assert not put(cache, name(middle), bytes(PAGE))
    other.close()
    for path in (folder / "wanted").iterdir():
        if path.name == objects(100, OTHER).id:
            os.utime(path, (0, time.time() - EXPIRES_S - 1))
    look_again(cache)
    assert cache.share.share > 0.49
    assert not put(cache, name(middle), bytes(PAGE))
    assert put(cache, name(low), bytes(PAGE))
    cache.begin_epoch()
    assert put(cache, name(middle), bytes(PAGE))


def test_page_stays_for_the_epoch_that_wrote_it(folder, page_files, put):
    """A job that begins takes room from pages that have paid for themselves, not from those of this epoch."""
    cache = opened(folder, 96, objects(100), loaders=2)
    for number in by_rank(100)[:90]:
        assert put(cache, name(number), bytes(PAGE))
    other = opened(folder, 96, objects(100, OTHER), loaders=2)
    low = by_rank(100, OTHER)[:20]
    assert [put(other, name(number, OTHER), bytes(PAGE)) for number in low] == [True] * 6 + [False] * 14
    assert len(numbers(page_files)) == 90
    assert list((folder / "claims").iterdir()) == []
    look_again(cache)
    cache.begin_epoch()
    other.begin_epoch()
    look_again(other)
    assert [put(other, name(number, OTHER), bytes(PAGE)) for number in low] == [False] * 6 + [True] * 14
    assert numbers(page_files) == set(by_rank(100)[:76])
    assert len(page_files()) == 96


def test_pages_that_nobody_reads_go_first(folder, page_files, put):
    """Also those of a lower rank; oldest use first."""
    old = opened(folder, 60)
    fill(put, old, 60)
    old.close()
    counts = {}
    cache = opened(folder, 60, objects(100, OTHER), counts=counts)
    low = by_rank(100, OTHER)[:20]
    assert all(put(cache, name(number, OTHER), bytes(PAGE)) for number in low)
    assert numbers(page_files) == set(range(20, 60))
    assert numbers(page_files, sha=OTHER) == set(low)
    assert counts["cache_evicted"] == 20


def test_limit_is_never_passed(folder, page_files, put):
    cache = opened(folder, 32)
    for number in range(150):
        put(cache, name(number), bytes(PAGE))
        assert len(page_files()) <= 32
    assert len(page_files()) == 32


def test_what_is_being_written_counts(folder, page_files, put):
    make_place(str(folder))
    (folder / "writing" / "somebody").write_bytes(bytes(20 * FILE))
    cache = opened(folder, 32)
    for number in range(60):
        put(cache, name(number), bytes(PAGE))
        assert len(page_files()) <= 12


def test_codes_of_searches_count_and_go_before_pages_that_are_read(folder, page_files, put):
    make_place(str(folder))
    codes = folder / "search"
    codes.mkdir()
    for number, suffix in enumerate((".faiss", ".json", ".faiss.0123abcd")):
        (codes / f"segment{suffix}").write_bytes(bytes(8 * FILE))
        then = time.time() - 20_000 + number
        os.utime(codes / f"segment{suffix}", (then, time.time()))
    cache = opened(folder, 32, objects(32))
    for number in range(32):
        assert put(cache, name(number), bytes(PAGE))
    # One of them is being written, and is not part of the cache yet.
    assert [path.name for path in codes.iterdir()] == ["segment.faiss.0123abcd"]
    assert numbers(page_files) == set(range(32))


def test_several_jobs_share_the_limit(folder, page_files, put):
    caches = [opened(folder, 64, loaders=4) for _ in range(4)]
    look_again(*caches)
    for number in range(160):
        put(caches[number % 4], name(number), bytes(PAGE))
        assert len(page_files()) <= 64


def test_lowest_limit_of_the_sharers_holds(folder, page_files, put):
    large, small = opened(folder, 64, loaders=2), opened(folder, 16, loaders=2)
    look_again(large)
    for number in range(40):
        put(large, name(number), bytes(PAGE))
    assert len(page_files()) == 16
    small.close()
    look_again(large)
    put(large, name(50), bytes(PAGE))
    assert len(page_files()) == 17


def test_smaller_limit_of_the_next_job(folder, page_files, put):
    first = opened(folder, 100)
    fill(put, first, 80)
    first.close()
    counts = {}
    opened(folder, 16, counts=counts)
    assert numbers(page_files) == set(range(64, 80))  # those used last
    assert counts["cache_evicted"] == 64


def test_read_is_a_use(folder, page_files, put):
    first = opened(folder, 100)
    fill(put, first, 40)
    first.close()
    for number in (3, 17):
        assert first.read(name(number), [slice(0, 1)]) == [b"\0"]
    opened(folder, 16)
    assert {3, 17} < numbers(page_files)


def test_uses_are_noted_whatever_the_mount_options(folder, page_files, put, monkeypatch):
    """A time of use in the future is one that no mount option touches: a read that sets it back is ours."""
    monkeypatch.setattr("loader.cache.pages.TOUCH_S", -10_000)
    cache = opened(folder, 100)
    fill(put, cache, 1)
    (page,) = page_files()
    later, written = time.time() + 5_000, page.stat().st_mtime_ns
    os.utime(page, ns=(int(later * 10**9), written))
    cache.read(name(0), [slice(0, 1)])
    assert page.stat().st_atime < later - 1_000
    assert page.stat().st_mtime_ns == written


@pytest.mark.parametrize("age_s", [EXPIRES_S + 5, EXPIRES_S - 5, -EXPIRES_S - 5])
def test_set_that_nobody_touches_for_an_hour_is_read_by_nobody(age_s, folder, put):
    """A file of the future is one of now: the clock was set back."""
    first = opened(folder, 50, objects(50), loaders=2)
    assert put(first, name(0), bytes(PAGE))
    first.close()
    (path,) = (folder / "wanted").iterdir()
    then = time.time() - age_s
    os.utime(path, (then, then))
    second = opened(folder, 50, objects(50, OTHER), loaders=2)
    assert put(second, name(by_rank(50, OTHER)[0], OTHER), bytes(PAGE))
    expired = age_s > EXPIRES_S
    assert second.share.share == (1.0 if expired else (50 + SLACK_PAGES) / 100)
    assert path.exists() == (not expired)
    if not expired:
        assert -1 < time.time() - path.stat().st_mtime < EXPIRES_S


def test_object_of_two_sets_counts_once(folder, put):
    both = ObjectSet.of([(SHA, 40 * PAGE), (OTHER, 60 * PAGE)])
    cache = opened(folder, 50, objects(40), both)
    put(cache, name(by_rank(40)[0]), bytes(PAGE))
    assert cache.share.share == 0.5


@pytest.mark.parametrize("damage", ["cut", "forged", "pipe", "folder", "huge"])
def test_damaged_set_does_not_count_and_is_named_once(damage, folder, put, caplog):
    make_place(str(folder))
    good = ObjectSet.of([(SHA, 100 * PAGE), (OTHER, 100 * PAGE)])
    path = folder / "wanted" / good.id
    if damage == "cut":
        path.write_bytes(good.body[:16])
    elif damage == "forged":
        path.write_bytes(good.body[:-1] + b"\1")
    elif damage == "pipe":
        os.mkfifo(path)
    elif damage == "folder":
        path.mkdir()
    else:
        huge = ObjectSet.of([(SHA, 2**60)])
        path = folder / "wanted" / huge.id
        path.write_bytes(huge.body)
    with caplog.at_level(logging.WARNING):
        cache = opened(folder, 50, objects(50))
        assert put(cache, name(0), bytes(PAGE))
        look_again(cache)
        look_again(cache)
    assert cache.share.share == 1.0
    assert len([record for record in caplog.records if path.name in record.message]) == 1


def fail_once(monkeypatch, call, path, number):
    """Let a system call fail once for a file that `os.open` opens, or its descriptor."""
    real = {"open": os.open, "read": os.read}
    descriptors = set()
    faults = [OSError(number, os.strerror(number))]

    def open_file(name, *arguments, **options):
        if call == "open" and name == str(path) and faults:
            raise faults.pop()
        descriptor = real["open"](name, *arguments, **options)
        if name == str(path):
            descriptors.add(descriptor)
        return descriptor

    def read(descriptor, nbytes):
        if call == "read" and descriptor in descriptors and faults:
            raise faults.pop()
        return real["read"](descriptor, nbytes)

    monkeypatch.setattr(os, "open", open_file)
    monkeypatch.setattr(os, "read", read)


@pytest.mark.parametrize(
    ("call", "number"), [("open", errno.EMFILE), ("open", errno.ENOENT), ("read", errno.EIO)]
)
def test_set_that_could_not_be_read_once_counts_from_the_next_look(
    call, number, folder, put, caplog, monkeypatch
):
    make_place(str(folder))
    other = objects(100, OTHER)
    (folder / "wanted" / other.id).write_bytes(other.body)
    fail_once(monkeypatch, call, folder / "wanted" / other.id, number)
    cache = opened(folder, 50, objects(100))
    assert put(cache, name(by_rank(100)[0]), bytes(PAGE))
    look_again(cache)
    assert cache.share.share == pytest.approx(0.25)
    assert caplog.records == []


def test_sets_whose_rows_could_not_be_read_once_count_from_the_next_look(folder, put):
    first = opened(folder, 50, objects(100), loaders=2)
    put(first, name(by_rank(100)[0]), bytes(PAGE))
    other = objects(100, OTHER)
    path = folder / "wanted" / other.id
    path.write_bytes(other.body)
    assert other.id in first._sets.read()
    path.unlink()
    path.mkdir()  # reading it fails
    look_again(first)
    assert first.share.share == pytest.approx(0.51)
    path.rmdir()
    path.write_bytes(other.body)
    look_again(first)
    assert first.share.share == pytest.approx(0.255)


def test_sign_that_could_not_be_read_once_counts_from_the_next_look(folder, monkeypatch):
    first = opened(folder, 50, loaders=2)
    second = opened(folder, 60, loaders=2)
    fail_once(monkeypatch, "read", second._loaders._own, errno.EIO)
    look_again(first)
    assert len(first._running) == 1
    look_again(first)
    assert len(first._running) == 2


@pytest.mark.parametrize("age_s", [DEAD_S + 1, -DEAD_S - 1])
def test_dead_loader_takes_no_room(age_s, folder):
    first, second = opened(folder, 50, loaders=2), opened(folder, 50, loaders=2)
    assert second._capacity_bytes == 50 * FILE
    (sign,) = (path for path in (folder / "loaders").iterdir() if str(path) == first._loaders._own)
    then = time.time() - age_s  # in the future if the clock was set back
    os.utime(sign, (then, then))
    look_again(second)
    assert second._capacity_bytes == (50 + SLACK_PAGES) * FILE
    assert not sign.exists()
    look_again(first)  # it runs, and was only slow
    assert sign.exists()


@pytest.mark.parametrize("body", [b"", b"abc", bytes(9)])
def test_damaged_sign_is_no_harm(body, folder, put):
    make_place(str(folder))
    (folder / "loaders" / "somebody").write_bytes(body)
    cache = opened(folder, 50)
    assert put(cache, name(0), bytes(PAGE))
    assert cache._capacity_bytes == 50 * FILE


@pytest.mark.parametrize("record", [b"", b"abc", bytes(8) + b"\xff" * 8, b"\x7f" * 24, b"\xff" * 24])
def test_damaged_count_is_counted_again(record, folder, page_files, put):
    cache = opened(folder, 32)
    fill(put, cache, 30)
    (folder / "held").write_bytes(record)
    for number in range(40, 50):
        put(cache, name(number), bytes(PAGE))
    assert len(page_files()) == 32


def test_folder_of_the_format_before_is_accepted_and_its_pages_go_first(folder, page_files, put):
    make_place(str(folder))
    (folder / "penstock-cache.json").write_bytes(b'{"format": 1}\n')
    (folder / "hints").mkdir()
    (folder / "hints" / "somebody").write_bytes(b"")
    for number in range(20):
        former = former_page_name(SHA, PAGE, number)
        path = folder / "pages" / former[:2] / former
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(FILE))
    cache = opened(folder, 30, objects(30))
    assert (folder / "penstock-cache.json").read_bytes() == FORMAT
    assert not (folder / "hints").exists()
    for number in range(30):
        assert cache.read(name(number), [slice(0, 1)]) != [b"\0"]
        assert put(cache, name(number), bytes(PAGE))
        assert len(page_files()) <= 30
    assert numbers(page_files) == set(range(30))


def test_folder_of_a_later_format_is_refused(folder):
    make_place(str(folder))
    (folder / "penstock-cache.json").write_text(json.dumps({"format": 3}))
    with refusal(InvalidRuntime, what="format", where=folder, given=3, accepted=2):
        opened(folder, 30)


def test_name_of_a_page_begins_with_its_object():
    assert name(7)[:16] == name(8)[:16] == object_prefix(SHA) != name(7, OTHER)[:16]
    assert len({name(number)[16:] for number in range(100)}) == 100
    assert len(name(7)) == 40
    ranks = [page_rank(name(number)) for number in range(400)]
    assert 0.45 < sum(ranks) / 400 < 0.55


def test_without_a_limit_half_of_the_free_disk(folder):
    cache = OpenCache(NodeCache(path=folder, page_bytes=PAGE), lambda what, n: None)
    disk = os.statvfs(folder)
    assert 0.4 < cache.limit_bytes / (disk.f_bavail * disk.f_frsize) < 0.6


def test_never_in_a_root(tmp_path):
    root = loader.Root(str(tmp_path / "root"))
    root.create()
    os.symlink(tmp_path / "root" / "data", tmp_path / "link")
    for place in (tmp_path / "root", tmp_path / "root" / "data" / "x" / "cache", tmp_path / "link" / "cache"):
        with refusal(InvalidRuntime, what="cache", where=place, given="a penstock root"):
            opened(place, 100)
    assert not (tmp_path / "root" / "data").exists()


def test_never_among_other_files(tmp_path):
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "cat.jpg").write_bytes(b"a cat")
    with refusal(
        InvalidRuntime,
        what="cache",
        where=f"{tmp_path}/landing",
        given="cat.jpg",
        accepted="an empty folder",
    ):
        opened(tmp_path / "landing", 100)
    (tmp_path / "landing" / "_origins.json").write_bytes(b"{}")
    with refusal(InvalidRuntime, what="cache", where=f"{tmp_path}/landing/cache", given="a landing place"):
        opened(tmp_path / "landing" / "cache", 100)
    assert sorted(os.listdir(tmp_path / "landing")) == ["_origins.json", "cat.jpg"]
