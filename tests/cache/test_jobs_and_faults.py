"""Jobs that share a cache, jobs that are killed, disks that refuse: real processes, real errors of the kernel."""

import json
import logging
import os
import time
from pathlib import Path

import pytest

from loader.cache.claims import CLAIM_S
from loader.cache.node_cache import SLACK_PAGES, OpenCache
from loader.cache.page_cache import Absence, Grant
from loader.cache.pages import HEADER_BYTES, Pages
from loader.cache.room import ABANDONED_S
from loader.cache.spec import NodeCache
from tests.servers.patience import PATIENCE_S

PAGE = 64 * 2**10
SIZES = {f"data/{i}.tar": 6 * PAGE + 100 * i for i in range(3)}
PAGES = sum(-(-size // PAGE) for size in SIZES.values())
ALL = [(key, (0, size)) for key, size in SIZES.items()]


def everything(one, body):
    """Whether a reader gives every byte of every object."""
    return all(one.get(key, span) == [body(key, SIZES[key])] for key, span in ALL)


def age(path, seconds):
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_two_jobs_at_once_share_pages(on_disk, start, folder, reader, body, tmp_path):
    """Both read everything, beginning at the same moment, from an origin that takes its time: no page is fetched
    twice."""
    origin = on_disk(SIZES)
    jobs = [start("read", sizes=SIZES, page_bytes=PAGE, limit_pages=100, slow_s=0.01) for _ in range(2)]
    for job in jobs:
        assert job.stdout.readline() == "ready\n"
    for job in jobs:
        job.stdin.write("go\n")
        job.stdin.flush()
    done = [json.loads(job.stdout.readline()) for job in jobs]
    assert all(one["right"] for one in done)
    asked = Path(tmp_path / "log").read_text().splitlines()
    assert len(asked) == len(set(asked)) == PAGES
    assert [sum(one.get(name, 0) for one in done) for name in ("misses", "failed")] == [PAGES, 0]
    third = reader(origin, folder, page_bytes=PAGE)
    assert everything(third, body)
    assert (third.counts["hits"], origin.asked) == (PAGES, [])


@pytest.mark.parametrize("sign", [1, -1])  # -1: the clock was set back
def test_job_killed_in_mid_write_leaves_no_page(sign, on_disk, start, folder, reader, body, page_files):
    origin = on_disk(SIZES)
    job = start("stop in mid-write", sizes=SIZES, page_bytes=PAGE, limit_pages=100)
    assert job.stdout.readline() == "half\n"
    job.kill()
    job.wait()
    (unfinished,) = (path for path in (folder / "writing").iterdir())
    assert 0 < unfinished.stat().st_size < PAGE
    assert page_files() == []
    (claim,) = (folder / "claims").iterdir()
    age(claim, sign * (CLAIM_S + 1))  # the time for which it is respected is over
    age(unfinished, sign * (ABANDONED_S + 1))
    after = reader(origin, folder, page_bytes=PAGE)
    assert everything(after, body)
    assert (after.counts["misses"], after.counts["corrupt"], after.counts["failed"]) == (PAGES, 0, 0)
    assert not unfinished.exists()
    assert not claim.exists()


def test_jobs_killed_anywhere_leave_whole_pages(on_disk, start, folder, page_files, body):
    on_disk(SIZES)
    seen = 0
    for pause_s in (0.0, 0.003, 0.02):
        job = start("write for ever", sizes={}, page_bytes=PAGE, limit_pages=20)
        assert job.stdout.readline() == "ready\n"
        time.sleep(pause_s)  # where it is killed; whatever it was doing, the same holds
        while pause_s == 0.02 and not page_files() and job.poll() is None:
            time.sleep(0.001)  # the last one has written something, however slow the machine
        job.kill()
        job.wait()
        pages = Pages(str(folder))
        for path in page_files():
            found, _ = pages.read(path.name, [slice(0, PAGE)], None)
            assert len(found[0]) == PAGE
            seen += 1
        held = sum(path.stat().st_size for path in page_files())
        assert held <= 20 * PAGE
    assert seen


def test_killed_job_gives_its_room_back(on_disk, start, folder, page_files, monkeypatch):
    """Its sign has no lock any more: no minute passes until its limit, and no ten until its claims, stop to count."""
    on_disk(SIZES)
    job = start("stop in mid-write", sizes=SIZES, page_bytes=PAGE, limit_pages=1000)
    assert job.stdout.readline() == "half\n"
    spec = NodeCache(path=folder, limit_bytes=2000 * PAGE, page_bytes=PAGE)
    cache = OpenCache(spec, lambda what, amount: None)
    alone = 2000 * PAGE - SLACK_PAGES * (PAGE + HEADER_BYTES)
    assert cache._capacity_bytes < alone // 2 + PAGE

    def look_again():
        cache._next_beat_s = 0.0
        cache.beat()

    look_again()
    assert len(cache._running) == 2
    job.kill()
    job.wait(PATIENCE_S)
    for module in ("claims", "room", "node_cache"):
        monkeypatch.setattr(f"loader.cache.{module}.CLAIM_S", 0.0)  # as seconds later
    look_again()
    assert len(cache._running) == 1
    assert cache._capacity_bytes == alone
    look_again()
    files = [*page_files(), *(folder / "writing").iterdir()]
    assert cache._room.held_bytes() == sum(path.stat().st_size for path in files)
    cache.close()


def test_claims_of_a_killed_job_cost_a_bounded_wait(make_origin, reader, folder, body, monkeypatch):
    """A call waits once for all the pages that nobody will write, then it reads the ranges."""
    waits = []
    monkeypatch.setattr("loader.cache.cached_store.WAIT_S", 0.2)
    monkeypatch.setattr("loader.cache.node_cache.POLL_S", 0.05)
    sleep = time.sleep
    monkeypatch.setattr("loader.cache.node_cache.time.sleep", lambda s: waits.append(s) or sleep(s))
    origin = make_origin(SIZES)
    dead, one = reader(origin, folder, page_bytes=PAGE), reader(origin, folder, page_bytes=PAGE)
    for number in range(6):
        assert isinstance(dead.store.claim("data/0.tar", number), Grant)
        assert one.store.claim("data/0.tar", number) is Absence.COMING
    assert one.get("data/0.tar", (0, 6 * PAGE)) == [body("data/0.tar", SIZES["data/0.tar"])[: 6 * PAGE]]
    assert one.counts["failed"] == 0
    assert 1 <= len(waits) <= 4  # not for each page
    assert sum(nbytes for _, _, nbytes in origin.asked) == 6 * PAGE


def test_late_page_or_release_frees_no_other_claim(make_origin, reader, folder, page_files, monkeypatch):
    monkeypatch.setattr("loader.cache.claims.CLAIM_S", 0.0)  # a claim expires at once
    origin = make_origin(SIZES)
    slow, other = reader(origin, folder, page_bytes=PAGE), reader(origin, folder, page_bytes=PAGE)
    name = slow.store.page_name("data/0.tar", 0)
    first = slow.store.claim("data/0.tar", 0)
    second = other.store.claim("data/0.tar", 0)
    assert isinstance(first, Grant)
    assert isinstance(second, Grant)
    assert first.nonce != second.nonce
    slow.cache.put(name, first.nonce, bytes(PAGE))
    slow.cache.release(name, first.nonce)
    slow.cache.release(name, second.nonce)
    assert page_files() == []
    assert (folder / "claims" / name).exists()
    other.cache.put(name, second.nonce, bytes(PAGE))
    assert [path.name for path in page_files()] == [name]
    assert list((folder / "claims").iterdir()) == []


def test_full_disk_fails_no_batch(on_disk, start, folder, page_files):
    """The kernel refuses the second half of every page (EFBIG): no half is left, everything comes from the origin."""
    on_disk(SIZES)
    arguments = {"sizes": SIZES, "page_bytes": PAGE, "limit_pages": 100, "most_bytes": PAGE // 2}
    job = start("small files", **arguments)
    done = json.loads(job.stdout.readline())
    assert done["right"]
    assert done["failed"] >= 1
    assert done.get("written_bytes", 0) <= sum(path.stat().st_size for path in page_files())
    assert all(path.stat().st_size <= PAGE // 2 for path in page_files())
    assert list((folder / "writing").iterdir()) == []
    assert list((folder / "claims").iterdir()) == []


def test_disk_that_refuses_is_not_read_for_in_vain(on_disk, start, tmp_path):
    """Whole pages that nobody can keep are not fetched again and again: after the first, only what is asked for."""
    sizes = {"data/0.tar": 8 * PAGE}
    on_disk(sizes)
    job = start("small files", sizes=sizes, page_bytes=PAGE, limit_pages=100, most_bytes=PAGE // 2)
    assert json.loads(job.stdout.readline())["right"]
    asked = sum(int(line.split()[2]) for line in Path(tmp_path / "log").read_text().splitlines())
    assert asked <= 8 * PAGE + 2 * PAGE


@pytest.mark.parametrize("flip", [0, 3, 13, 16, PAGE, -1])
def test_corrupt_page_is_found_and_read_again(flip, make_origin, reader, folder, page_files, body, caplog):
    origin = make_origin(SIZES)
    assert everything(reader(origin, folder, page_bytes=PAGE), body)
    damaged = page_files()[:2]
    for path in damaged:
        data = bytearray(path.read_bytes())
        data[min(flip, len(data) - 1)] ^= 4
        path.write_bytes(data)
    origin.asked.clear()
    with caplog.at_level(logging.WARNING):
        after = reader(origin, folder, page_bytes=PAGE)
        assert everything(after, body)
    assert (after.counts["corrupt"], after.counts["misses"], len(origin.asked)) == (2, 2, 2)
    assert len([record for record in caplog.records if "not what was written" in record.message]) == 1
    last = reader(origin, folder, page_bytes=PAGE)
    assert everything(last, body)
    assert (last.counts["hits"], last.counts["corrupt"]) == (PAGES, 0)


@pytest.mark.parametrize("damage", ["cut", "empty", "other page"])
def test_page_that_is_another_file(damage, make_origin, reader, folder, page_files, body):
    origin = make_origin(SIZES)
    assert everything(reader(origin, folder, page_bytes=PAGE), body)
    first, second = page_files()[:2]
    content = {"cut": first.read_bytes()[:-1], "empty": b"", "other page": second.read_bytes()}
    first.write_bytes(content[damage])
    after = reader(origin, folder, page_bytes=PAGE)
    assert everything(after, body)
    assert (after.counts["corrupt"], after.counts["misses"]) == (1, 1)


def test_pages_that_vanish_are_read_again(make_origin, reader, folder, page_files, body):
    origin = make_origin(SIZES)
    one = reader(origin, folder, page_bytes=PAGE)
    assert everything(one, body)
    for path in page_files():
        path.unlink()
    assert everything(one, body)
    for path in folder.rglob("*"):
        if path.is_file():
            path.unlink()
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir()
    folder.rmdir()
    assert everything(one, body)
    assert one.counts["failed"] >= 1


@pytest.mark.parametrize("place", ["file/below", "/proc/penstock-cache"])
def test_place_that_cannot_be_written(place, make_origin, reader, tmp_path, body, caplog):
    """Below a file, and where the kernel makes no folders: refused whoever asks."""
    (tmp_path / "file").write_bytes(b"a file")
    origin = make_origin(SIZES)
    with caplog.at_level(logging.WARNING):
        one = reader(origin, tmp_path / place, page_bytes=PAGE)
        assert everything(one, body)
        assert everything(one, body)
    assert one.counts["failed"] >= 1
    assert one.counts["hits"] == 0
    said = [record.message for record in caplog.records]
    assert said
    assert len(said) == len({text.split(":")[1] for text in said})


def test_cache_that_became_read_only_still_serves(make_origin, reader, folder, body):
    """Its pages are read; new ones are not kept. (A file stands where the temporary files would be.)"""
    origin = make_origin(SIZES)
    reader(origin, folder, page_bytes=PAGE).get("data/0.tar", (0, SIZES["data/0.tar"]))
    (folder / "writing").rmdir()
    (folder / "writing").write_bytes(b"")
    origin.asked.clear()
    one = reader(origin, folder, page_bytes=PAGE)
    assert everything(one, body)
    assert one.counts["hits"] == -(-SIZES["data/0.tar"] // PAGE)
    assert one.counts["failed"] >= 1
    assert {key for key, _, _ in origin.asked} == {"data/1.tar", "data/2.tar"}
